"""What the rules let stand on a surface is what the independent account can send, and no more.

Random surfaces with few call ids, which come back all the time, and random replacements of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from refold.runtime.audit import RequestAudit, Unexplained
from refold.runtime.envelope import Draft, Event, Replace, draft
from refold.runtime.errors import HistoryUnbalanced, Refused, RuleBroken
from refold.runtime.events import (
    AssistantMessage,
    ContextMessage,
    EndReason,
    StepEnd,
    StepStart,
    ToolResult,
    Trigger,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from refold.runtime.history import History
from refold.runtime.messages import USER, Block, TextBlock, ToolCallBlock
from refold.runtime.request_header import EpochHeader, LlmCallConfig, RequestHeader
from refold.runtime.rules import Rules
from refold.runtime.rules.soundness import last_sound_end, refusal_of

IDS = ("call-1", "call-2", "call-3")
HEADER = draft(RequestHeader(EpochHeader(LlmCallConfig("p", model="m")), "change"))


def text(chance: random.Random) -> tuple[TextBlock, ...]:
    return (TextBlock(f"text {chance.randrange(9)}"),)


def calls(chance: random.Random, most: int = 3) -> tuple[Block, ...]:
    ids = chance.sample(IDS, chance.randint(0, most))
    return tuple(ToolCallBlock(id_, "look", "{}") for id_ in ids)


class Log:
    """A log with its folds; it grows by what is let in."""

    def __init__(self, events: Sequence[Event] = ()) -> None:
        self.session = History()
        self.rules = Rules(self.session.surface)
        for event in events:
            self.session.replay(event)
            self.rules.apply(event)

    @property
    def events(self) -> Sequence[Event]:
        return self.session.events

    def add(self, *drafts: Draft) -> None:
        """Append, whatever the rules say."""
        for made in drafts:
            self.rules.apply(self.session.append(made, 0))

    def add_allowed(self, *drafts: Draft) -> None:
        for made in drafts:
            self.rules.check(made, self.session.next_seq)
            self.add(made)

    def turn(self, chance: random.Random) -> None:
        """A turn within the rules, of up to three steps."""
        number = self.rules.standing.turn + 1
        self.add_allowed(draft(TurnStart(number, Trigger("message", USER))))
        self.add_allowed(draft(UserMessage(text(chance), USER)))
        for step in range(1, chance.randint(2, 4)):
            self.add_allowed(draft(StepStart(number, step)))
            asked = calls(chance)
            content = (*(text(chance) if asked else text(chance)[: chance.randint(0, 1)]), *asked)
            self.add_allowed(draft(AssistantMessage(number, step, content)))
            ids = [call.id for call in asked if isinstance(call, ToolCallBlock)]
            for id_ in chance.sample(ids, len(ids)):
                self.add_allowed(draft(ToolResult(number, step, id_, text(chance), False)))
            self.add_allowed(draft(StepEnd(number, step)))
        self.add_allowed(draft(TurnEnd(number, EndReason("completed"))))


def replacement(log: Log, chance: random.Random) -> Draft:
    nodes = log.session.surface.nodes
    first = chance.randrange(len(nodes))
    shadowed = tuple(nodes[first : first + chance.choice([1, 1, 2, 3, 5, 9])])
    old = log.events[shadowed[0]].data
    call_id = old.call_id if isinstance(old, ToolResult) else chance.choice(IDS)
    data = chance.choice(
        [
            ContextMessage(text(chance), USER),
            AssistantMessage(1, 1, ()),
            AssistantMessage(1, 1, (*text(chance), *calls(chance))),
            ToolResult(1, 1, call_id, text(chance), is_error=False),
            ToolResult(getattr(old, "turn", 1), getattr(old, "step", 1), call_id, (), False),
        ]
    )
    return draft(data, cites=shadowed, replaces=Replace(shadowed[0], shadowed[-1]))


def problem(log: Log, made: Draft) -> str | None:
    """What the rules say of a replacement that the surface can take."""
    log.session.check(made)
    try:
        log.rules.check(made, log.session.next_seq)
    except RuleBroken as broken:
        return broken.problem
    return None


def can_be_sent(log: Log) -> bool:
    """Whether the account of the invariants, which has folds of its own, explains a request."""
    turn = log.rules.standing.turn + 1
    more = [draft(StepStart(turn, 1)), HEADER]
    new = [made.at(seq, 0) for seq, made in enumerate(more, len(log.events))]
    audit = RequestAudit(lambda seq: log.events[seq])
    for event in (*log.events, *new):
        audit.feed(event)
    try:
        audit.expected("chat/1")
    except Unexplained:
        return False
    return True


@pytest.mark.parametrize("seed", range(40))
def test_the_rules_let_in_what_can_be_sent_and_refuse_what_cannot(seed: int) -> None:
    chance = random.Random(seed)
    log, verdicts = Log(), [0, 0]
    for _ in range(60):
        if chance.random() < 0.2 or not log.events:
            log.turn(chance)
            continue
        made = replacement(log, chance)
        broken = problem(log, made)
        verdicts[broken is None] += 1
        if broken is None:
            log.add(made)
            assert can_be_sent(log)
            assert refusal_of(log.events) is None
        elif "content of one tool/result only" not in broken:
            other = Log(log.events)
            other.add(made)
            assert not can_be_sent(other)
    assert min(verdicts) > 3


def test_most_of_those_replacements_split_a_pair_whose_id_comes_back() -> None:
    """The self-test: judged by ids over the whole surface, some of them would be taken."""
    split = 0
    for seed in range(40):
        chance, log = random.Random(seed), Log()
        for _ in range(8):
            log.turn(chance)
        for _ in range(20):
            made = replacement(log, chance)
            other = Log(log.events)
            other.add(made)
            split += not can_be_sent(other) and _ids_are_balanced(other)
    assert split > 20


def _ids_are_balanced(log: Log) -> bool:
    """What comparing ids over the whole surface finds."""
    waiting: list[str] = []
    for node in log.session.surface.nodes:
        data = log.events[node].data
        if isinstance(data, AssistantMessage):
            waiting += [block.id for block in data.content if isinstance(block, ToolCallBlock)]
        elif isinstance(data, ToolResult):
            if data.call_id not in waiting:
                return False
            waiting = [id_ for id_ in waiting if id_ != data.call_id]
    return not waiting


def node(chance: random.Random) -> Draft:
    """Any surface event, which seldom belongs where it comes."""
    made = chance.choice(
        [
            UserMessage(text(chance), USER),
            AssistantMessage(1, 1, (*text(chance), *calls(chance, 2))),
            AssistantMessage(1, 1, ()),
            *[ToolResult(1, 1, id_, text(chance), is_error=False) for id_ in IDS],
        ]
    )
    if chance.random() < 0.02:
        made = AssistantMessage(1, 1, (ToolCallBlock("call-1", "look", "{}"),) * 2)
    return draft(made)


def test_of_any_surface_the_rules_and_the_account_say_the_same() -> None:
    verdicts = [0, 0]
    for seed in range(60):
        chance, log = random.Random(seed), Log()
        for _ in range(40):
            log.add(node(chance))
            if log.rules.pairing.walk.faults and chance.random() < 0.95:
                log = Log(log.events[:-1])  # else nearly all would be broken from the start
            sound = not log.rules.faults()
            verdicts[sound] += 1
            assert can_be_sent(log) == sound
            assert isinstance(refusal_of(log.events), HistoryUnbalanced) != sound
    assert min(verdicts) > 400


@pytest.mark.parametrize("seed", range(10))
def test_a_refused_batch_leaves_the_pairing_as_it_was(seed: int) -> None:
    chance, log = random.Random(seed), Log()
    for _ in range(4):
        log.turn(chance)
    for _ in range(30):
        marks = log.session.mark(), log.rules.mark()
        before = (log.rules.pairing.walk, dict(log.rules.pairing._nodes), log.rules.standing)
        made = [replacement(log, chance), draft(AssistantMessage(1, 1, calls(chance)))]
        for one in made:
            try:
                log.session.check(one)
            except Refused:
                continue
            log.add(one)
        log.session.restore(marks[0])
        log.rules.restore(marks[1])
        after = (log.rules.pairing.walk, dict(log.rules.pairing._nodes), log.rules.standing)
        assert after == before


def test_the_last_sound_end_is_one_from_which_all_before_can_be_sent() -> None:
    chance, log = random.Random(3), Log()
    ends = []
    for _ in range(3):
        log.turn(chance)
        ends.append(log.session.next_seq - 1)
    assert last_sound_end(log.events) == ends[-1]
    log.add(draft(ToolResult(9, 9, "x", (), is_error=False)))
    log.turn(chance)
    assert last_sound_end(log.events) == ends[-1]
    shadowed = (ends[-1] + 1,)
    made = draft(ContextMessage((), USER), cites=shadowed, replaces=Replace(*shadowed, *shadowed))
    log.add(made)  # it takes the orphan's place
    log.turn(chance)
    assert last_sound_end(log.events) == log.session.next_seq - 1


def asking(step: int, *ids: str) -> Draft:
    blocks = tuple(ToolCallBlock(id_, "look", "{}") for id_ in ids)
    return draft(AssistantMessage(1, step, blocks))


def unbalanced(*drafts: Draft) -> tuple[tuple[int, ...], ...]:
    log = Log()
    log.add(*drafts)
    refused = refusal_of(log.events)
    assert isinstance(refused, HistoryUnbalanced)
    return refused.seqs, refused.orphans, refused.doubled


BEGIN = [draft(TurnStart(1, Trigger("message", USER))), draft(StepStart(1, 1))]


def test_a_refusal_names_every_fault_of_a_kind() -> None:
    orphan = draft(ToolResult(1, 1, "x", (), is_error=False))
    doubled, answer = asking(1, "a", "a"), draft(ToolResult(1, 1, "a", (), is_error=False))
    assert unbalanced(orphan, orphan, doubled, answer, doubled, answer) == ((), (0, 1), (2, 4))
    assert unbalanced(asking(1, "a"), asking(1, "b")) == ((0, 1), (), ())


def test_the_open_step_s_calls_are_to_have_results_only_where_these_would_answer_them() -> None:
    """Two messages in one step: what closes it gives both results to the later one."""
    log = Log()
    log.add(*BEGIN, asking(1, "a"))
    assert refusal_of(log.events) is None
    assert unbalanced(*BEGIN, asking(1, "a"), asking(1, "b")) == ((2, 3), (), ())


def test_a_refusal_is_judged_by_the_surface_as_it_was_replaced() -> None:
    prompt = draft(UserMessage((TextBlock("u"),), USER))
    other = draft(UserMessage((TextBlock("v"),), USER), cites=(0,), replaces=Replace(0, 0))
    assert unbalanced(prompt, asking(1, "a"), prompt, other) == ((1,), (), ())
