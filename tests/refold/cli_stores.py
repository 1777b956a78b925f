"""The store that the tests of the command line read, made with the public API."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import attrs
import click.testing
import trio

import refold
from refold.actors.request.script import Answer, Call, Fail, Hang, Say, Think
from refold.actors.turn.seams import Seams, StepView
from refold.cli import main
from refold.runtime.envelope import Event, Replace, decode_line, draft
from refold.runtime.events import ContextMessage
from refold.runtime.messages import Source, TextBlock
from refold.runtime.request_header import LlmCallConfig
from refold.runtime.storage import MaintainedStore, SessionHeader, open_sessions
from refold.runtime.surface import fold_surface

HOSTILE = (
    "esc \x1b]0;owned\x07\x1b[2J "
    "c1 \x9b31m\x85 del \x7f "
    "bidi \u202egpj.exe\u2066 "
    "zero \u200b\u200d\ufeff line \u2028 tag \U000e0041 cr \rover"
)
"""Text that a terminal would obey or hide; every kind that `render` speaks of."""

SYSTEM = "You are a careful agent. "


@refold.tool
async def read_file(path: str) -> str:
    """Read a file."""
    return HOSTILE if path == "hostile" else f"content of {path}"


@refold.tool
async def fail() -> str:
    """Fail."""
    raise ValueError("no such thing")


@attrs.frozen
class Ran:
    """What one run of the command did."""

    code: int
    out: str
    err: str
    raw: bytes

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@attrs.frozen
class CliStore:
    """A store, and the command run on it. `fork` is the id of the fork of `tour`.

    `file` is the SQLite file that holds the sessions; None where `path` is their folder.
    """

    path: Path
    fork: str = ""
    file: Path | None = None

    @property
    def address(self) -> str:
        return str(self.path) if self.file is None else f"sqlite:///{self.file}"

    def run(self, *arguments: str, said: str | None = None) -> Ran:
        """Run the command with `said` on its standard input, which has no terminal."""
        environment = {"REFOLD_STORE": self.address, "NO_COLOR": "1"}
        runner = click.testing.CliRunner(env=environment)
        result = runner.invoke(main, arguments, input=said, prog_name="refold")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr, result.stdout_bytes)

    def events(self, session: str) -> list[Event]:
        with self.opened() as sessions:
            return [decode_line(record.encoded) for record in sessions.read(session).records]

    @contextmanager
    def opened(self) -> Iterator[MaintainedStore]:
        with closing(open_sessions(self.address)) as sessions:
            yield sessions

    def ids(self) -> list[str]:
        with self.opened() as sessions:
            return sessions.list()

    def raw(self, session: str) -> bytes:
        with self.opened() as sessions:
            return sessions.raw(session)

    def put(self, session: str, data: bytes) -> None:
        """Make these the stored bytes of a log that is there, as damage does."""
        if self.file is None:
            self.log(session).write_bytes(data)
            return
        header, *lines = data.splitlines(keepends=True)
        with closing(sqlite3.connect(self.file)) as db, db:
            query = "UPDATE sessions SET header = ? WHERE id = ? RETURNING number"
            [(number,)] = db.execute(query, (header, session)).fetchall()
            db.execute("DELETE FROM lines WHERE session = ?", (number,))
            rows = [(number, seq, line) for seq, line in enumerate(lines)]
            db.executemany("INSERT INTO lines VALUES (?, ?, ?)", rows)

    def head(self, session: str) -> Path:
        """The session's head file."""
        heads = self.path if self.file is None else Path(f"{self.file}-beside")
        return heads / f"{session}.head"

    def first(self, session: str, type_: str) -> Event:
        return next(event for event in self.events(session) if event.type == type_)

    def log(self, session: str) -> Path:
        return self.path / f"{session}.jsonl"

    def rewrite(self, source: str, target: str, change: Callable[[Event], bytes]) -> None:
        """Write a log whose events are those of another, each with changed bytes."""
        self.write(target, *(change(event) for event in self.events(source)))

    def write(self, session: str, *events: bytes, header: SessionHeader | None = None) -> None:
        """A closed log of these events, in one batch."""
        with self.opened() as sessions:
            log = sessions.create(header or SessionHeader(session, created_at=0))
            log.append([*events])
            log.close()


async def build(path: Path) -> CliStore:
    """The sessions `hostile`, `cancelled`, `changed`, a fork of it, and `tour`, written last."""
    await _hostile(path)
    await _cancelled(path)
    await _changed(path)
    fork = await _forked(path)
    await _tour(path)
    return CliStore(path, fork)


def _script(*answers: Answer) -> refold.Script:
    return refold.Script(list(answers))


async def _tour(path: Path) -> None:
    script = _script(Call("read_file", {"path": "a"}), [Think("hm"), Say("done")], Say("again"))
    async with refold.open(path, providers=[script]) as runtime:
        agent = await runtime.start_agent(
            session_id="tour", model="script/x", system=SYSTEM, tools=[read_file]
        )
        await agent.ask("hello")
        await agent.ask("more")


async def _hostile(path: Path) -> None:
    script = _script(
        Call("read_file", {"path": "hostile"}, id=f"id {HOSTILE}"),
        Call("fail"),
        [Think(HOSTILE), Say(f"first line\n{HOSTILE}")],
        Fail("INVALID_REQUEST", HOSTILE),
    )
    async with refold.open(path, providers=[script]) as runtime:
        agent = await runtime.start_agent(
            session_id="hostile", model="script/x", name=HOSTILE, tools=[read_file, fail]
        )
        await agent.inject(HOSTILE, plugin=HOSTILE)
        await agent.ask(HOSTILE)
        await agent.ask("and now fail")


async def _cancelled(path: Path) -> None:
    script = _script([Say("partial"), Hang()], Say("after"))
    async with refold.open(path, providers=[script]) as runtime:
        agent = await runtime.start_agent(session_id="cancelled", model="script/x")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.ask, "wait for ever")
            while not script.bodies:
                await trio.lowlevel.checkpoint()
            await agent.cancel("enough")


async def _changed(path: Path) -> None:
    """1.1, 2.1 with another temperature, 3.1 after a replacement, 4.1 in a new loop instance."""

    async def warmer(config: LlmCallConfig) -> LlmCallConfig:
        return attrs.evolve(config, temperature=0.5) if len(script.bodies) == 1 else config

    async def compact(view: StepView) -> None:
        if len(script.bodies) == 2:
            nodes = fold_surface([event async for event in view.log.events()]).nodes
            summary = ContextMessage((TextBlock("a summary"),), Source("plugin", plugin="compact"))
            await view.log.append(
                draft(summary, cites=nodes[:2], replaces=Replace(nodes[0], nodes[1]))
            )

    script = _script(*[Say(f"answer {number}") for number in range(4)])
    seams = Seams(request=(warmer,), pre_step=(compact,))
    async with refold.open(path, providers=[script]) as runtime:
        agent = await runtime.start_agent(
            session_id="changed", model="script/x", system=SYSTEM, seams=seams
        )
        for number in range(3):
            await agent.ask(f"question {number}")
        await agent.close()
        again = await runtime.resume("changed", system="You are another agent. ")
        await again.ask("question 3")


async def _forked(path: Path) -> str:
    script = _script(Say("in the fork"))
    async with refold.open(path, providers=[script]) as runtime:
        point = next(e.seq for e in CliStore(path).events("changed") if e.type == "turn/end")
        agent = await runtime.fork("changed", at=point, name="what if")
        await agent.ask("something else")
        return agent.session_id
