"""Properties that hold for every log: incremental equals whole, refusals change nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from refold.runtime.audit import RequestAudit
from refold.runtime.envelope import Draft, Event, Replace, decode_line, draft
from refold.runtime.errors import Refused
from refold.runtime.events import (
    AssistantMessage,
    ContextMessage,
    RequestSealed,
    StepEnd,
    StepStart,
    TodoWrite,
    UserMessage,
)
from refold.runtime.history import History
from refold.runtime.messages import USER, Message, Provenance, Source, TextBlock
from refold.runtime.request import Request, fold_request_header, rebuild_request
from refold.runtime.request_header import EpochHeader, LlmCallConfig, RequestHeader
from refold.runtime.surface import fold_surface
from refold.runtime.wire.chat import CHAT
from refold.runtime.wire.request_encoder import RequestEncoder, encode_request

TEXT = st.text(max_size=20)
HEADERS = st.builds(
    EpochHeader,
    st.builds(LlmCallConfig, st.just("p"), model=st.sampled_from(["m", "n"])),
    st.sampled_from(["", "S", "another"]),
    message_prefix=st.sampled_from([(), (Message("user", (TextBlock("before"),)),)]),
)


def surface_data(text: str, kind: str) -> object:
    content = (TextBlock(text),)
    match kind:
        case "user":
            return UserMessage(content, USER)
        case "context":
            return ContextMessage(content, Source("plugin", plugin="p"))
        case "empty":
            return AssistantMessage(1, 1, (), Provenance("p", "m"))
    return AssistantMessage(1, 1, content, Provenance("p", "m"))


KINDS = st.sampled_from(["user", "context", "assistant", "empty"])


class SessionMachine(RuleBasedStateMachine):
    """Any order of appends, replacements, refusals, marks and requests."""

    @initialize()
    def begin(self) -> None:
        self.session = History()
        self.encoder = RequestEncoder()
        self.handed_out: list[tuple[tuple[Message, ...], int]] = []

    def append(self, made: Draft) -> Event:
        return self.session.append(made, 0)

    @rule(text=TEXT, kind=KINDS)
    def append_surface(self, text: str, kind: str) -> None:
        self.append(draft(surface_data(text, kind)))

    @rule()
    def append_log_only(self) -> None:
        before = self.session.derive_messages()
        self.append(draft(TodoWrite(())))
        assert self.session.derive_messages() == before

    @rule(header=HEADERS)
    def append_header(self, header: EpochHeader) -> None:
        self.append(draft(RequestHeader(header, "change")))
        assert self.session.header == header

    @precondition(lambda self: len(self.session.surface.nodes) > 0)
    @rule(data=st.data(), text=TEXT, kind=KINDS)
    def replace(self, data: st.DataObject, text: str, kind: str) -> None:
        nodes = list(self.session.surface.nodes)
        first = data.draw(st.integers(0, len(nodes) - 1))
        last = data.draw(st.integers(first, len(nodes) - 1))
        generation = self.session.surface.replace_generation
        op = Replace(nodes[first], nodes[last])
        cited = tuple(nodes[first : last + 1])
        event = self.append(draft(surface_data(text, kind), cites=cited, replaces=op))
        after = [*nodes[:first], event.seq, *nodes[last + 1 :]]
        assert list(self.session.surface.nodes) == after
        assert self.session.surface.replace_generation == generation + 1

    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        seq = self.session.next_seq
        wrong = data.draw(st.integers(0, seq + 3))
        nodes = self.session.surface.nodes
        cites = (wrong,) if wrong not in nodes else (seq,)
        bad = draft(surface_data("x", "user"), cites=cites, replaces=Replace(wrong, wrong))
        before = (seq, self.session.surface.snapshot(), self.session.derive_messages())
        try:
            self.append(bad)
        except Refused:
            pass
        else:
            raise AssertionError("a replacement that cites the wrong node was accepted")
        after = (
            self.session.next_seq,
            self.session.surface.snapshot(),
            self.session.derive_messages(),
        )
        assert after == before

    @rule(texts=st.lists(TEXT, min_size=1, max_size=4), replace=st.booleans())
    def take_a_batch_back(self, texts: Sequence[str], replace: bool) -> None:
        session = self.session
        before = (session.next_seq, session.surface.snapshot(), session.derive_messages())
        header, mark = session.header, session.mark()
        for text in texts:
            self.append(draft(surface_data(text, "user")))
        self.append(draft(RequestHeader(EpochHeader(LlmCallConfig("q", model="z")), "change")))
        if replace:
            last = session.surface.nodes[-1]
            self.append(
                draft(surface_data("r", "user"), cites=(last,), replaces=Replace(last, last))
            )
        session.restore(mark)
        after = (session.next_seq, session.surface.snapshot(), session.derive_messages())
        assert (after, session.header) == (before, header)
        assert len(session.events) == before[0]

    @rule()
    def hand_out(self) -> None:
        messages = self.session.derive_messages()
        self.handed_out.append((messages, len(messages)))

    @precondition(lambda self: self.session.header is not None)
    @rule()
    def request(self) -> None:
        """The live request, the rebuilt one, and what an independent account expects, agree."""
        session = self.session
        boundary = self.append(draft(StepStart(1, 1)))
        header, derived = session.header, session.derive_messages()
        assert header is not None
        request = Request(header, derived)
        encoded = self.encoder.encode(CHAT, header, derived, session.surface.replace_generation)
        assert encoded.request_digest == request.digest()
        assert encoded.body == encode_request(request, CHAT).body
        assert encoded.wire_digest == hashlib.sha256(encoded.body).hexdigest()
        seal = RequestSealed(
            1, 1, CHAT.name, encoded.request_digest, encoded.wire_digest, 0, 0, "off"
        )
        self.append(draft(seal))
        assert rebuild_request(session.events, boundary.seq) == request
        audit = RequestAudit(lambda seq: decode_line(session.events[seq].encoded))
        for event in session.events:
            audit.feed(decode_line(event.encoded))
        expected = audit.expected(CHAT.name)
        assert (expected.request, expected.wire) == (encoded.request_digest, encoded.wire_digest)
        self.append(draft(StepEnd(1, 1)))

    @invariant()
    def the_live_folds_are_the_whole_folds(self) -> None:
        events = [decode_line(event.encoded) for event in self.session.events]
        fresh = History(events)
        assert fresh.derive_messages() == self.session.derive_messages()
        assert fold_surface(events) == self.session.surface.snapshot()
        assert fold_request_header(events) == self.session.header
        assert [event.data for event in events] == [event.data for event in self.session.events]
        assert [event.seq for event in events] == list(range(len(events)))

    @invariant()
    def tuples_handed_out_never_grow(self) -> None:
        assert all(len(messages) == length for messages, length in self.handed_out)


SessionMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, derandomize=True
)
TestSession = SessionMachine.TestCase


@given(st.lists(st.tuples(TEXT, KINDS), min_size=2, max_size=12), st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_requests_without_a_replacement_extend_one_another(
    messages: list[tuple[str, str]], data: st.DataObject
) -> None:
    session, encoder = History(), RequestEncoder()
    header = data.draw(HEADERS)
    previous = b""
    for text, kind in messages:
        session.append(draft(surface_data(text, kind)), 0)
        encoded = encoder.encode(CHAT, header, session.derive_messages(), 0)
        if previous:
            kept = previous.removesuffix(CHAT.closing)
            assert encoded.body.startswith(kept)
            assert encoded.shared_prefix_bytes >= len(kept)
        previous = encoded.body


@given(st.lists(HEADERS, min_size=2, max_size=6))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_the_shared_prefix_is_exact_across_header_changes(headers: list[EpochHeader]) -> None:
    encoder, previous = RequestEncoder(), b""
    derived = (Message("user", (TextBlock("hi"),)),)
    for header in headers:
        encoded = encoder.encode(CHAT, header, derived, 0)
        shared = encoded.shared_prefix_bytes
        assert encoded.body[:shared] == previous[:shared]
        longer = shared < min(len(previous), len(encoded.body))
        assert not longer or previous[shared] != encoded.body[shared]
        previous = encoded.body
