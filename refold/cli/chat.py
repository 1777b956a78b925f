"""`refold chat`: talk to an agent in the terminal."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from refold.chat.refusal import opening_code
from refold.cli.shared.exit_codes import say
from refold.cli.shared.options import store_option
from refold.cli.shared.talking import Said, agent_options, wanted
from refold.runtime.errors import RefoldError

if TYPE_CHECKING:
    from refold.chat.opening import Wanted
    from refold.runtime.storage import MaintainedStore


@click.command("chat", short_help="Talk to an agent in the terminal.")
@click.argument("session", required=False)
@agent_options
@store_option
def command(*, session: str | None, store: MaintainedStore, **said: Any) -> None:
    """Talk to an agent in the terminal.

    Without SESSION a new session begins, and its id is printed; with it that session goes on, with
    the model and the system prompt that it had unless others are named here. Model, system prompt,
    temperature, limit of tokens, store, providers and tools can stand in refold.toml; those of the
    first four are for new sessions.

    Ctrl-C cancels the turn that runs, and what was said so far is kept. A line that is typed
    meanwhile is queued. Alt-Enter, or a backslash at the end of a line, begins another line; what
    is pasted is one text and never a command. Ctrl-D on an empty line or /quit leaves; /help lists
    what else there is. The line editor wants the extra `chat`: pip install 'refold[chat]'.

    Where input or output is no terminal, each line of the input is a prompt, even one
    that begins with /, answers go to standard output and all else to standard error. Exit code 1
    if a turn ended in an error, 3 if the session cannot be opened. `refold prompt` sends all of its
    input as one prompt.

    \b
    Examples:
      refold chat --model deepseek/deepseek-chat
      refold chat last
      echo 'Hello!' | refold chat --script answers.py
    """
    try:
        opened = wanted(store, session, Said(**said))
    except RefoldError as error:
        say(str(error))
        sys.exit(opening_code(error))
    sys.exit(_run(opened))


def _run(opened: Wanted) -> int:
    import trio

    from refold.chat.run import chat

    try:
        return trio.run(chat, opened)
    except KeyboardInterrupt:  # while the session was being opened or closed
        return 128 + signal.SIGINT
