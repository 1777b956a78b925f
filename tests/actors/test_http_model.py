"""The way to a provider, tested over real sockets against a server that misbehaves on purpose."""

from __future__ import annotations

import gc
import gzip
import logging
import math
import socket
import threading
import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import orjson
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from refold.actors.request.http_model import HttpModel, open_client
from refold.actors.request.http_stream import Timeouts
from refold.actors.request.model import Model, Stream
from refold.runtime.stream.chunks import Chunk, Finish, TextDelta
from refold.runtime.stream.failures import Failure, LlmFailure
from refold.runtime.wire.providers import (
    BUILT_IN,
    InvalidModelName,
    InvalidProvider,
    Provider,
    UnknownProvider,
    find_provider,
    read_key,
    split_model,
)
from tests.agents import opened
from tests.fake_server import (
    DONE,
    Ending,
    FakeServer,
    Part,
    Step,
    answer,
    delta,
    drop,
    event,
    hang,
    raw,
    reply,
    stream,
)

KEY = "very+secret"


def provider_at(url: str, *, keep_alive: bool = True) -> Provider:
    return Provider("fake", "chat/1", url + "/v1", "FAKE_KEY", keep_alive=keep_alive)


async def ask(model: Model, body: bytes = b"{}", seen: list[Chunk] | None = None) -> str:
    seen = [] if seen is None else seen
    async with opened(model, body) as answer_:
        while chunks := await answer_.receive():
            seen += chunks
    return text_of(seen)


def text_of(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))


@asynccontextmanager
async def open_answer(server: FakeServer) -> AsyncIterator[Stream]:
    async with (
        open_client() as client,
        opened(HttpModel(provider_at(server.url), client)) as answer_,
    ):
        yield answer_


async def ask_once(server: FakeServer, timeouts: Timeouts | None = None) -> str:
    async with open_client() as client:
        model = HttpModel(provider_at(server.url), client, KEY, timeouts or Timeouts())
        return await ask(model)


async def failure_of(server: FakeServer, timeouts: Timeouts | None = None) -> Failure:
    with pytest.raises(LlmFailure) as caught:
        await ask_once(server, timeouts)
    return caught.value.failure


async def until(flag: threading.Event) -> None:
    """Wait until the server raised `flag` and this side has read all that was sent before."""
    assert await trio.to_thread.run_sync(flag.wait, 10)
    flag.clear()
    await wait_all_tasks_blocked()


# Out


async def test_the_body_goes_out_byte_for_byte_as_json_with_the_key() -> None:
    body = b'{"b" : 1,\n "a":"\xc3\xa9\\u00e9"}'
    with FakeServer(stream(*answer("hi"))) as server:
        async with open_client() as client:
            await ask(HttpModel(provider_at(server.url), client, KEY), body)
    (request,) = server.requests
    assert request.line == "POST /v1/chat/completions HTTP/1.1"
    assert request.body == body
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["accept-encoding"] == "identity"


async def test_without_a_key_nothing_is_authorized() -> None:
    with FakeServer(stream(*answer("hi"))) as server:
        async with open_client() as client:
            await ask(HttpModel(provider_at(server.url), client))
    assert "authorization" not in server.requests[0].headers


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with FakeServer(stream(*answer("hi"))) as server:
        assert await ask_once(server) == "hi"


# In


async def test_chunks_arrive_until_an_empty_list_says_that_the_answer_is_complete() -> None:
    with FakeServer(stream(*answer("hi"))) as server:
        async with open_client() as client:
            seen: list[Chunk] = []
            assert await ask(HttpModel(provider_at(server.url), client, KEY), seen=seen) == "hi"
    assert isinstance(seen[-1], Finish)


async def test_receiving_again_after_the_end_says_again_that_it_is_complete() -> None:
    with FakeServer(stream(*answer("hi"))) as server:
        async with open_answer(server) as answer_:
            while await answer_.receive():
                pass
            assert await answer_.receive() == []


async def test_the_first_chunk_does_not_wait_for_the_second() -> None:
    gate = threading.Event()
    late = stream(delta(content="a"), gate, delta(content="b"), delta("stop"), DONE)
    with FakeServer(late) as server:
        async with open_answer(server) as answer_:
            assert text_of(await answer_.receive()) == "a"
            gate.set()
            assert text_of(await answer_.receive()) == "b"


async def test_any_chunking_gives_the_same_text() -> None:
    whole = b"".join([b": ping\n\n", *answer("caf\u00e9 \U0001f600")])
    for size in (1, 2, 3, 7, len(whole)):
        parts = [whole[at : at + size] for at in range(0, len(whole), size)]
        with FakeServer(stream(*parts)) as server:
            assert await ask_once(server) == "caf\u00e9 \U0001f600"


@pytest.mark.parametrize("ending", ["whole", "cut", "reset"])
async def test_a_stream_without_its_terminal_event_is_a_failure(ending: Ending) -> None:
    with FakeServer(stream(delta(content="par"), ending=ending)) as server:
        assert (await failure_of(server)).code == "STREAM_CLOSED"


@pytest.mark.parametrize("ending", ["cut", "reset"])
async def test_a_broken_ending_after_the_terminal_event_is_a_success(ending: Ending) -> None:
    with FakeServer(stream(*answer("hi"), ending=ending)) as server:
        assert await ask_once(server) == "hi"


async def test_an_error_inside_a_stream_is_a_failure() -> None:
    error = event({"error": {"message": "no capacity left", "code": 502}})
    with FakeServer(stream(delta(content="par"), error, DONE)) as server:
        assert "no capacity left" in (await failure_of(server)).message


@pytest.mark.parametrize(
    ("status", "code"), [(401, "AUTH"), (429, "RATE_LIMIT"), (500, "SERVER"), (529, "OVERLOADED")]
)
async def test_an_error_status_is_a_failure_that_quotes_the_server(status: int, code: str) -> None:
    body = b'{"error":{"message":"not today"}}'
    with FakeServer(reply(status, body, content_type="application/json")) as server:
        failure = await failure_of(server)
    assert (failure.code, failure.status) == (code, status)
    assert "not today" in failure.message


async def test_the_wish_to_wait_is_kept() -> None:
    with FakeServer(reply(429, b"{}", retry_after="3")) as server:
        assert (await failure_of(server)).retry_after_ms == 3000


async def test_error_statuses_are_not_tried_again() -> None:
    with FakeServer(reply(500, b""), stream(*answer("hi"))) as server:
        await failure_of(server)
    assert len(server.requests) == 1


async def test_an_error_body_that_never_ends_is_cut_short(autojump_clock: MockClock) -> None:
    autojump_clock.autojump_threshold = math.inf
    half = stream(b"broken", status=500, ending="hang")
    with FakeServer(half) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect, server, "SERVER", "broken")
            await until(server.waiting)
            autojump_clock.jump(6)
        assert await trio.to_thread.run_sync(server.peer_left.wait, 10)


async def _expect(server: FakeServer, code: str, words: str) -> None:
    failure = await failure_of(server)
    assert failure.code == code
    assert words in failure.message


async def test_a_redirect_is_not_followed_and_names_its_target() -> None:
    with FakeServer(reply(307, b"", location="https://else.example/v1")) as server:
        failure = await failure_of(server)
    assert failure.code == "INVALID_REQUEST"
    assert "has moved; set the base URL to https://else.example/v1" in failure.message


@pytest.mark.parametrize("mime", ["application/json", "text/html; charset=utf-8"])
async def test_a_page_is_refused_once_whatever_its_type(mime: str) -> None:
    with FakeServer(reply(200, b"<h1>Log in</h1>", content_type=mime)) as server:
        failure = await failure_of(server)
    assert failure.code == "MALFORMED_RESPONSE"
    assert failure.message.endswith("check the base URL: <h1>Log in</h1>")


@pytest.mark.parametrize("mime", ["application/json", "text/html", "application/x-ndjson", "a/b"])
async def test_a_stream_is_read_whatever_its_type(mime: str) -> None:
    body = b"".join(answer("hello there"))
    with FakeServer(reply(200, body, content_type=mime)) as server:
        async with open_client() as client:
            assert await ask(HttpModel(provider_at(server.url), client)) == "hello there"


@pytest.mark.parametrize("form", ["whole", "lines", "packed"])
async def test_an_answer_in_another_form_is_read(form: str) -> None:
    said = {"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}
    body = orjson.dumps(said)
    more: dict[str, str] = {}
    if form == "lines":
        body = delta(content="hi").removeprefix(b"data: ").strip() + b"\n" + body
    if form == "packed":
        body, more = gzip.compress(b"".join(answer("hi"))), {"content_encoding": "gzip"}
    with FakeServer(reply(200, body, content_type="application/json", **more)) as server:
        async with open_client() as client:
            assert await ask(HttpModel(provider_at(server.url), client)) == "hi"


async def test_an_error_that_is_packed_keeps_its_words() -> None:
    body = gzip.compress(b'{"error":{"message":"no such model"}}')
    with FakeServer(reply(404, body, content_encoding="gzip")) as server:
        assert "no such model" in (await failure_of(server)).message


@pytest.mark.parametrize("body", [b"\x00\x01", gzip.compress(b"data: x" * 99)[:-20] + b"xxx"])
async def test_what_cannot_be_unpacked_is_no_answer(body: bytes) -> None:
    with FakeServer(reply(200, body, content_encoding="gzip")) as server:
        assert (await failure_of(server)).code in ("MALFORMED_RESPONSE", "STREAM_CLOSED")


async def test_a_success_without_content_is_refused_with_the_address() -> None:
    with FakeServer(reply(204, b"")) as server:
        failure = await failure_of(server)
    assert failure.code == "MALFORMED_RESPONSE"
    assert "sent no answer (HTTP 204); check the base URL" in failure.message


async def test_an_error_with_a_good_status_keeps_its_own_code() -> None:
    body = b'{"error":{"message":"slow down","code":429}}'
    with FakeServer(reply(200, body, content_type="application/json")) as server:
        assert (await failure_of(server)).code == "RATE_LIMIT"


async def test_an_error_behind_content_does_not_wait_for_the_stream_to_end() -> None:
    both = delta(content="par") + event({"error": {"message": "no capacity left"}})
    seen: list[Chunk] = []
    with FakeServer(stream(both, ending="hang")) as server:
        async with open_client() as client:
            with pytest.raises(LlmFailure, match="no capacity left"):
                await ask(HttpModel(provider_at(server.url), client), seen=seen)
        assert await trio.to_thread.run_sync(server.peer_left.wait, 10)
    assert text_of(seen) == "par"


# Reaching it


def unused_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_an_unreachable_server_is_named() -> None:
    url = unused_url()
    async with open_client() as client:
        with pytest.raises(LlmFailure) as caught:
            await ask(HttpModel(provider_at(url), client))
    assert str(caught.value) == (
        f"TRANSPORT: cannot reach {url}/v1/chat/completions; is the server running?"
    )


async def test_a_server_without_tls_is_told_from_one_that_is_not_there() -> None:
    with FakeServer() as server:
        url = server.url.replace("http:", "https:")
        async with open_client() as client:
            with pytest.raises(LlmFailure, match=r"TRANSPORT: .* does not speak TLS"):
                await ask(HttpModel(provider_at(url), client))


async def test_a_kept_connection_serves_the_next_request() -> None:
    with FakeServer(stream(*answer("1")), stream(*answer("2"))) as server:
        async with open_client() as client:
            model = HttpModel(provider_at(server.url), client)
            assert [await ask(model), await ask(model)] == ["1", "2"]
    assert server.connections == 1


async def test_without_keep_alive_each_request_has_its_own_connection() -> None:
    with FakeServer(stream(*answer("1")), stream(*answer("2"))) as server:
        async with open_client() as client:
            model = HttpModel(provider_at(server.url, keep_alive=False), client)
            assert [await ask(model), await ask(model)] == ["1", "2"]
    assert server.connections == 2
    assert server.requests[0].headers["connection"] == "close"


async def two_requests(*steps: Step) -> tuple[FakeServer, str | Failure]:
    """Ask twice with one client; the outcome of the second."""
    with FakeServer(*steps) as server:
        async with open_client() as client:
            model = HttpModel(provider_at(server.url), client)
            await ask(model)
            try:
                return server, await ask(model, b'{"n":2}')
            except LlmFailure as error:
                return server, error.failure


async def test_a_kept_connection_that_closes_before_the_head_is_replaced_at_once() -> None:
    server, outcome = await two_requests(stream(*answer("1")), drop, stream(*answer("2")))
    assert outcome == "2"
    assert [request.body for request in server.requests[1:]] == [b'{"n":2}'] * 2
    assert [request.connection for request in server.requests] == [1, 1, 2]


async def test_the_replacement_is_not_replaced() -> None:
    server, outcome = await two_requests(stream(*answer("1")), drop, drop, stream(*answer("2")))
    assert isinstance(outcome, Failure)
    assert outcome.code == "TRANSPORT"
    assert len(server.requests) == 3


async def test_a_kept_connection_that_breaks_after_the_head_is_not_replaced() -> None:
    broken = stream(delta(content="par"), ending="reset")
    server, outcome = await two_requests(stream(*answer("1")), broken, stream(*answer("2")))
    assert isinstance(outcome, Failure)
    assert outcome.code == "STREAM_CLOSED"
    assert len(server.requests) == 2


@pytest.mark.parametrize("step", [drop, raw(b"garbage\r\n\r\n")])
async def test_a_new_connection_that_breaks_before_the_head_is_not_tried_again(step: Step) -> None:
    with FakeServer(step, stream(*answer("hi"))) as server:
        failure = await failure_of(server)
    assert failure.code == "TRANSPORT"
    assert failure.message.endswith("hung up before it answered; try again")
    assert len(server.requests) == 1


# Limits


async def test_silence_before_the_head_has_a_limit(autojump_clock: MockClock) -> None:
    autojump_clock.autojump_threshold = math.inf
    with FakeServer(hang) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect, server, "TIMEOUT", "was silent for 300 s")
            await until(server.waiting)
            autojump_clock.jump(301)


async def test_silence_in_the_stream_has_a_limit(autojump_clock: MockClock) -> None:
    autojump_clock.autojump_threshold = math.inf
    with FakeServer(stream(delta(content="par"), ending="hang")) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect, server, "TIMEOUT", "was silent for 300 s")
            await until(server.waiting)
            autojump_clock.jump(301)
        assert await trio.to_thread.run_sync(server.peer_left.wait, 10)


async def test_pings_break_the_silence_but_not_the_total(autojump_clock: MockClock) -> None:
    autojump_clock.autojump_threshold = math.inf
    gates = [threading.Event() for _ in range(7)]
    pings: list[Part] = []
    for gate in gates:
        pings += [b": ping\n\n", gate]
    with FakeServer(stream(*pings, ending="hang")) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect, server, "TIMEOUT", "not complete after 1800 s in total")
            for gate in gates:
                await until(server.waiting)
                autojump_clock.jump(270)
                await wait_all_tasks_blocked()
                gate.set()


def read_to_end(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65536), b""))


async def test_a_handshake_without_an_end_hits_the_connect_limit(
    autojump_clock: MockClock,
) -> None:
    autojump_clock.autojump_threshold = math.inf
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"

        async def attempt() -> None:
            async with open_client() as client:
                with pytest.raises(LlmFailure, match=r"TIMEOUT: could not connect .* within 10 s"):
                    await ask(HttpModel(provider_at(url), client))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt)
            sock, _ = await trio.to_thread.run_sync(listener.accept)
            with sock:
                sock.settimeout(10)
                await wait_all_tasks_blocked()
                autojump_clock.jump(11)
                assert await trio.to_thread.run_sync(read_to_end, sock)
        gc.collect()  # where a forgotten socket would complain


async def test_the_time_of_the_reader_counts_for_no_silence(autojump_clock: MockClock) -> None:
    autojump_clock.autojump_threshold = math.inf
    with FakeServer(stream(*answer("hi"))) as server:
        async with open_answer(server) as answer_:
            autojump_clock.jump(1000)
            while await answer_.receive():
                pass


async def test_leaving_a_complete_answer_waits_half_a_second_for_its_end(
    autojump_clock: MockClock,
) -> None:
    autojump_clock.autojump_threshold = math.inf
    left = trio.Event()
    with FakeServer(stream(*answer("hi"), ending="hang")) as server:

        async def leave() -> None:
            assert await ask_once(server) == "hi"
            left.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            await until(server.waiting)
            autojump_clock.jump(0.4)
            await wait_all_tasks_blocked()
            assert not left.is_set()
            autojump_clock.jump(0.2)
            await left.wait()
        assert await trio.to_thread.run_sync(server.peer_left.wait, 10)


# Leaving


@pytest.mark.parametrize(
    "step", [hang, stream(ending="hang"), stream(b": ping\n\n", ending="hang")]
)
async def test_the_server_sees_a_cancellation_at_once(step: Step) -> None:
    with FakeServer(step) as server:
        async with open_client() as client:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask, HttpModel(provider_at(server.url), client))
                    await until(server.waiting)
                    scope.cancel()
            # The client is still open: it was the request that closed the connection.
            assert await trio.to_thread.run_sync(server.peer_left.wait, 10)


async def test_the_server_sees_an_early_leave_at_once() -> None:
    with FakeServer(stream(delta(content="a"), delta(content="b"), ending="hang")) as server:
        async with open_client() as client:
            async with opened(HttpModel(provider_at(server.url), client)) as answer_:
                await answer_.receive()
            assert await trio.to_thread.run_sync(server.peer_left.wait, 10)


async def test_an_error_of_the_reader_passes_through_as_it_is() -> None:
    with FakeServer(stream(delta(content="a"), ending="hang")) as server:
        async with open_client() as client:
            with pytest.raises(KeyError, match="mine"):
                async with opened(HttpModel(provider_at(server.url), client)):
                    raise KeyError("mine")


async def test_no_way_of_leaving_disturbs_the_garbage_collector() -> None:
    endless = stream(delta(content="a"), delta(content="b"), ending="hang")
    with FakeServer(endless, endless, endless, stream(*answer("hi"))) as server:
        async with open_client() as client:
            model = HttpModel(provider_at(server.url), client)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                async with opened(model):
                    pass
                async with opened(model) as answer_:
                    await answer_.receive()
                with trio.CancelScope() as scope:
                    async with opened(model) as answer_:
                        await answer_.receive()
                        scope.cancel()
                        while True:
                            await answer_.receive()
                gc.collect()
                await wait_all_tasks_blocked()
                assert await ask(model) == "hi"
    assert [str(warning.message) for warning in caught] == []


async def test_many_cancelled_requests_leave_the_client_healthy() -> None:
    steps = [step for _ in range(20) for step in (hang, stream(b": ping\n\n", ending="hang"))]
    with FakeServer(*steps, stream(*answer("hi"))) as server:
        async with open_client() as client:
            model = HttpModel(provider_at(server.url), client)
            for _ in steps:
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(ask, model)
                        await until(server.waiting)
                        scope.cancel()
            assert await ask(model) == "hi"


async def test_the_client_closes_although_cancelled() -> None:
    clients = []
    with FakeServer(stream(*answer("hi"))) as server, trio.CancelScope() as scope:
        async with open_client() as client:
            clients.append(client)
            await ask(HttpModel(provider_at(server.url), client))
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert clients[0].is_closed


# The key


async def test_the_key_shows_in_no_repr_error_or_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    quoting = f'{{"error":{{"message":"bad key {KEY}"}}}}'.encode()
    spelt = "".join(f"\\u{ord(char):04x}" for char in KEY)
    hidden = f'{{"error":{{"message":"{"x " * 225}{spelt}"}}}}'.encode()
    steps = [
        reply(401, quoting, content_type="application/json"),
        stream(b"data: " + quoting + b"\n\n"),
        reply(200, quoting, content_type="application/json"),
        reply(401, hidden, content_type="application/json"),
        stream(b"data: " + hidden + b"\n\n"),
    ]
    for step in steps:
        with FakeServer(step) as server:
            failure = await failure_of(server)
        assert step in steps[3:] or "[removed]" in failure.message  # those are cut before it
        assert KEY[:8] not in repr(failure)
    async with open_client() as client:
        assert KEY not in repr(HttpModel(provider_at("http://127.0.0.1:1"), client, KEY))
    assert KEY not in caplog.text


async def test_a_key_that_no_header_can_carry_is_refused_without_showing_it() -> None:
    async with open_client() as client:
        with pytest.raises(InvalidProvider) as caught:
            HttpModel(provider_at("http://127.0.0.1:1"), client, KEY + "\n")
    assert KEY not in str(caught.value)


async def test_a_provider_of_another_codec_is_refused() -> None:
    async with open_client() as client:
        with pytest.raises(InvalidProvider, match="speaks script, which HTTP does not carry"):
            HttpModel(Provider("mine", "script"), client)


def test_a_key_is_read_from_its_variable_without_white_space() -> None:
    assert read_key(BUILT_IN["deepseek"], {"DEEPSEEK_API_KEY": f" {KEY}\n"}) == KEY
    assert read_key(BUILT_IN["local"], {}) is None


@pytest.mark.parametrize("environ", [{}, {"OPENAI_API_KEY": ""}, {"DEEPSEEK_API_KEY": "x"}])
def test_a_missing_key_names_the_variable_to_set(environ: dict[str, str]) -> None:
    with pytest.raises(LlmFailure, match="MISSING_CREDENTIAL: set OPENAI_API_KEY to your key"):
        read_key(BUILT_IN["openai"], environ)


@pytest.mark.parametrize("key", ["two words", "l\u00e4nge", "a\x00b"])
def test_a_key_that_cannot_be_sent_is_not_shown(key: str) -> None:
    with pytest.raises(LlmFailure, match="MISSING_CREDENTIAL") as caught:
        read_key(BUILT_IN["openai"], {"OPENAI_API_KEY": key})
    assert key not in str(caught.value)


# Records


def test_a_model_name_is_split_at_its_first_slash() -> None:
    assert split_model("deepseek/deepseek-chat") == ("deepseek", "deepseek-chat")
    assert split_model("local/org/model") == ("local", "org/model")


@pytest.mark.parametrize("model", ["", "gpt", "/gpt", "openai/"])
def test_another_form_of_model_name_is_refused_with_the_right_one(model: str) -> None:
    with pytest.raises(InvalidModelName, match="write PROVIDER/MODEL"):
        split_model(model)


def test_providers_of_the_user_win_over_built_in_ones() -> None:
    own = Provider("local", "chat/1", "http://127.0.0.1:1234/v1")
    assert find_provider("local", [own]) is own
    assert find_provider("local") is BUILT_IN["local"]


def test_an_unknown_provider_is_answered_with_the_known_ones() -> None:
    own = Provider("mine", "script")
    with pytest.raises(UnknownProvider, match="use one of deepseek, local, mine, ollama, openai"):
        find_provider("gpt", [own])


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8080", "ftp://a", "http://", "http://[a", "http://a:x", "http://u:p@host/"],
)
def test_a_base_url_that_cannot_work_or_holds_a_password_is_refused(url: str) -> None:
    with pytest.raises(InvalidProvider):
        Provider("mine", "chat/1", url)


def test_records_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        BUILT_IN["local"].defaults["cache_prompt"] = False  # type: ignore[index] # that is the test
