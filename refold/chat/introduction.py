"""What is said at the beginning and at the end: which session, what was last said, what waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from refold.chat.conversation import Conversation
from refold.chat.person import MORE, PROMPT
from refold.cli.shared.transcript import transcript
from refold.render import plural, shortened, styled, visible
from refold.runtime.envelope import Event
from refold.runtime.events import AssistantMessage, SessionOwner, UserMessage
from refold.runtime.messages import text_of

REMEMBERED = 2000
"""How many characters of the last prompt, and of its answer, are shown again."""


def introduce_new(conversation: Conversation) -> None:
    """Name a session in which nothing was said yet."""
    conversation.teller.note(f"session {conversation.agent.session_id}, {conversation.model}")


def introduce(conversation: Conversation) -> None:
    """Name a session that goes on: its last exchange, what opening it had to mend, what waits."""
    teller, events = conversation.teller, conversation.events()
    turns = sum(event.type == "turn/start" for event in events)
    session = conversation.agent.session_id
    teller.note(f"session {session} goes on after {plural(turns, 'turn')}, {conversation.model}")
    for line in _last_exchange(events):
        teller.lines(line)
    opened_at = max(event.seq for event in events if isinstance(event.data, SessionOwner))
    for line in transcript(events, opened_at):
        teller.lines(line)
    tell_pending(conversation)


def _last_exchange(events: Sequence[Event]) -> Iterator[str]:
    """The last prompt, and what was answered to it since."""
    said = [event.data for event in events if isinstance(event.data, UserMessage)]
    if not said:
        return
    at = max(event.seq for event in events if event.data is said[-1])
    yield styled(f"{PROMPT}{_remembered(text_of(said[-1].content))}", "dim")
    for event in events[at:]:
        if isinstance(event.data, AssistantMessage) and (text := text_of(event.data.content)):
            yield styled(_remembered(text).replace(f"\n{MORE}", "\n"), "dim")


def _remembered(text: str) -> str:
    cut = text if len(text) <= REMEMBERED else f"{text[:REMEMBERED]}..."
    return visible(cut).replace("\n", f"\n{MORE}")


def tell_pending(conversation: Conversation) -> None:
    """Tell what waits in the inbox, and what can be done about it; nothing where nothing does."""
    teller, pending = conversation.teller, conversation.agent.pending()
    if not pending:
        return
    teller.note("this waits, and the model has not seen it:")
    for number, entry in enumerate(pending, 1):
        teller.lines(f"  {number}. {entry.kind}: {shortened(entry.text, 200)}")
    if any(entry.held for entry in pending):
        teller.note("/pending send lets that have its turns; /pending drop takes it back")


def part(conversation: Conversation, again: str) -> None:
    """Tell how to come back, where there is anything to come back to; `again` are the options."""
    session = conversation.agent.session_id
    if conversation.events():
        conversation.teller.note(f"come back with: refold chat {session}{again}")
    else:
        conversation.teller.note(f"nothing was said, so session {session} was not kept")
