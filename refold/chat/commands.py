"""What a line that begins with a slash does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import attrs

from refold.actors.tools import collect
from refold.chat.conversation import Conversation
from refold.chat.introduction import introduce, introduce_new, tell_pending
from refold.cli.shared.transcript import transcript
from refold.render import indented, number, percent, shortened, styled, table
from refold.runtime.errors import RefoldError
from refold.runtime.messages import (
    Block,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    text_of,
)
from refold.runtime.usage import StepUsage, usage_by_step


class Desk(Protocol):
    """Where commands are given: what they may do beside looking at the conversation."""

    conversation: Conversation

    @property
    def busy(self) -> bool: ...

    def interrupt(self) -> None: ...

    def leave(self, code: int) -> None: ...

    async def release(self) -> None: ...


Action: TypeAlias = Callable[[Desk, str], Awaitable[None]]


@attrs.frozen
class Command:
    """A command: what follows its name, what it does in a line, and how."""

    wants: str
    help: str
    run: Action


async def obey(desk: Desk, line: str) -> None:
    """Do what `line`, which begins with a slash, says; an unknown command is only named."""
    name, _, rest = line[1:].partition(" ")
    command = COMMANDS.get(name)
    if command is not None:
        await command.run(desk, rest.strip())
        return
    desk.conversation.teller.note(
        f"there is no command /{name}; /help lists them, and a blank before the slash makes it text"
    )


async def _help(desk: Desk, _rest: str) -> None:
    rows = [(f"/{name} {c.wants}".rstrip(), c.help) for name, c in COMMANDS.items()]
    width = max(len(name) for name, _ in rows)
    listed = [f"  {name.ljust(width)}  {text}" for name, text in rows]
    desk.conversation.teller.lines("\n".join([*listed, *(f"  {line}" for line in KEYS)]))


async def _quit(desk: Desk, _rest: str) -> None:
    desk.leave(0)


async def _cancel(desk: Desk, _rest: str) -> None:
    if desk.busy:
        desk.interrupt()
    else:
        desk.conversation.teller.note("there is no turn to cancel")


async def _inject(desk: Desk, rest: str) -> None:
    conversation = desk.conversation
    if not rest:
        conversation.teller.note("say what to inject: /inject TEXT")
        return
    await conversation.agent.inject(rest)
    conversation.teller.note("the next request will hold that as context")


async def _steer(desk: Desk, rest: str) -> None:
    conversation, busy = desk.conversation, desk.busy
    if not rest:
        conversation.teller.note("say what the turn should know: /steer TEXT")
        return
    await conversation.agent.steer(rest)
    if busy:
        conversation.teller.note("the turn that runs will hear that with its next step")


async def _pending(desk: Desk, rest: str) -> None:
    conversation, teller = desk.conversation, desk.conversation.teller
    pending = conversation.agent.pending()
    verb, _, number = rest.partition(" ")
    chosen = pending[int(number) - 1 : int(number)] if number.isdecimal() else pending
    if not pending:
        teller.note("nothing waits")
    elif verb == "send" and not number and any(entry.held for entry in pending):
        await desk.release()
    elif verb == "drop" and chosen and (not number or number.isdecimal()) and number != "0":
        dropped = [await conversation.drop(entry.seq) for entry in chosen]
        teller.note(f"taken back: {sum(dropped)} of {len(pending)}")
    else:
        tell_pending(conversation)


async def _model(desk: Desk, rest: str) -> None:
    conversation = desk.conversation
    if rest and _is_still(desk):
        await _told(desk, conversation.ask_another(rest))
    if not rest or conversation.model == rest:
        conversation.teller.note(f"{conversation.model} answers")


async def _tools(desk: Desk, _rest: str) -> None:
    tools = collect(desk.conversation.options.get("tools", ()))
    listed = [f"  {tool.name}  {shortened(tool.schema.description, 100)}" for tool in tools]
    desk.conversation.teller.lines("\n".join(listed or [NO_TOOLS]))


async def _new(desk: Desk, rest: str) -> None:
    if _is_still(desk) and await _told(desk, desk.conversation.begin(rest or None)):
        introduce_new(desk.conversation)


async def _resume(desk: Desk, rest: str) -> None:
    conversation = desk.conversation
    if not rest:
        conversation.teller.note("say which session: /resume SESSION; `refold sessions` lists them")
    elif _is_still(desk) and await _told(desk, conversation.resume(rest)):
        introduce(conversation)


async def _undo(desk: Desk, _rest: str) -> None:
    conversation, teller = desk.conversation, desk.conversation.teller
    if not _is_still(desk):
        return
    events = conversation.events()
    ends = [event.seq for event in events if event.type == "turn/end"]
    if not ends:
        teller.note("there is nothing to undo: no turn has ended")
        return
    parent = conversation.agent.session_id
    before = conversation.begin(None) if len(ends) == 1 else conversation.fork(None, ends[-2])
    if await _told(desk, before):
        session = conversation.agent.session_id
        teller.note(f"this is session {session} now, without the last turn of {parent}")


def _is_still(desk: Desk) -> bool:
    """Whether no turn is running; else that is told."""
    if desk.busy:
        desk.conversation.teller.note("a turn is running; wait for its end, or /cancel it first")
    return not desk.busy


async def _told(desk: Desk, step: Awaitable[None]) -> bool:
    """Whether a step was taken; what refuses it is told."""
    try:
        await step
    except RefoldError as error:
        desk.conversation.teller.note(str(error))
        return False
    return True


async def _fork(desk: Desk, rest: str) -> None:
    conversation, teller = desk.conversation, desk.conversation.teller
    if not _is_still(desk):
        return
    if not any(event.type == "turn/end" for event in conversation.events()):
        teller.note("there is nothing to fork yet: no turn has ended")
        return
    parent = conversation.agent.session_id
    if await _told(desk, conversation.fork(rest or None)):
        teller.note(f"this is session {conversation.agent.session_id} now, a fork of {parent}")


async def _messages(desk: Desk, _rest: str) -> None:
    messages = desk.conversation.agent.messages()
    told = [line for message in messages for line in _message(message)]
    desk.conversation.teller.lines("\n".join(told or ["  there are none yet"]))


async def _show(desk: Desk, _rest: str) -> None:
    desk.conversation.teller.lines("\n".join(transcript(desk.conversation.events())))


async def _usage(desk: Desk, _rest: str) -> None:
    rows = usage_by_step(desk.conversation.events())
    titles = ("step", "in", "cached", "out", "kept")
    told = table(titles, map(_usage_cells, rows), left=frozenset({0}))
    desk.conversation.teller.lines(told)


def _usage_cells(row: StepUsage) -> Sequence[str]:
    counts = (row.tokens_in, row.tokens_cached, row.tokens_out)
    return (f"{row.turn}.{row.step}", *map(number, counts), percent(row.kept))


def _message(message: Message) -> Iterator[str]:
    yield styled(f"{message.role}:", "bold")
    for block in message.content:
        yield from indented(_block(block))


def _block(block: Block) -> str:
    match block:
        case TextBlock(text=text):
            return text
        case ReasoningBlock(text=text):
            return f"(thinking) {text}"
        case ToolCallBlock(name=name, arguments=arguments):
            return f"call {name} {shortened(arguments, 400)}"
        case _:
            return f"result of {block.tool_call_id}: {text_of(block.content)}"


NO_TOOLS = "  there are none; `tools` in refold.toml names them"

KEYS = (
    "Ctrl-C cancels the turn, or clears the line; Ctrl-D on an empty line leaves.",
    "Alt-Enter, or a backslash before Enter, begins another line; Ctrl-R searches what was typed.",
)

COMMANDS: Mapping[str, Command] = {
    "help": Command("", "List the commands.", _help),
    "quit": Command("", "Leave; a turn that runs is ended.", _quit),
    "cancel": Command("", "Cancel the turn that runs; what it said so far is kept.", _cancel),
    "inject": Command("TEXT", "Leave context for the next request, without a turn.", _inject),
    "steer": Command("TEXT", "Say something to the turn that runs, for its next step.", _steer),
    "fork": Command("[NAME]", "Go on in a new session that begins with this one.", _fork),
    "undo": Command("", "Go on in a new session, without the last turn.", _undo),
    "new": Command("[NAME]", "Go on in a new session that begins with nothing.", _new),
    "resume": Command("SESSION", "Go on in another session.", _resume),
    "model": Command("[PROVIDER/MODEL]", "Who answers, or who is to.", _model),
    "tools": Command("", "What the model can call.", _tools),
    "pending": Command("[send|drop [NUMBER]]", "What waits in the inbox.", _pending),
    "messages": Command("", "What the next request would hold.", _messages),
    "show": Command("", "The transcript of the session so far.", _show),
    "usage": Command("", "Tokens and kept prefixes, a row a step.", _usage),
}
