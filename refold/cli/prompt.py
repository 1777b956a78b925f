"""`refold prompt`: one prompt, one answer."""

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


@click.command("prompt", short_help="Send one prompt and print the answer.")
@click.argument("text")
@click.option(
    "--session", metavar="SESSION", help="Go on with this session; without it, a new one."
)
@click.option("--json", "as_json", is_flag=True, help="Print the events, a line of JSON each.")
@agent_options
@store_option
def command(
    *, text: str, session: str | None, as_json: bool, store: MaintainedStore, **said: Any
) -> None:
    """Send one prompt, wait for its turn, and print the answer.

    TEXT is the prompt; `-` means all of standard input, as it is. The answer goes to standard
    output, all else to standard error. With --json standard output holds each event of the session
    from the prompt to the end of its turn, as soon as it is written.

    A session that goes on keeps its model and system prompt unless others are named here; a new
    one takes what is not named from refold.toml. Ctrl-C cancels the turn.

    \b
    Exit codes, by how the turn ended:
      0    completed
      1    an error, or the prompt was rejected
      2    usage; nothing was sent
      3    the session cannot be opened; nothing was sent
      4    the session's log is damaged; nothing was sent
      5    the answer ended at the limit of tokens
      6    the turn ended at its budget
      7    the turn was cancelled, interrupted or given up, but not from here
      130  Ctrl-C, and 143 SIGTERM: the turn was cancelled

    \b
    Examples:
      refold prompt 'Why is the sky blue?' --script answers.py
      refold prompt 'And at dusk?' --session last --script answers.py
      echo 'Hello!' | refold prompt - --script answers.py --json
    """
    try:
        prompt = sys.stdin.buffer.read().decode(errors="replace") if text == "-" else text
        if not prompt.strip():
            raise click.UsageError("the prompt is empty; give it a text")
        opened = wanted(store, session, Said(**said))
    except RefoldError as error:
        say(str(error))
        sys.exit(opening_code(error))
    sys.exit(_run(opened, prompt, as_json=as_json))


def _run(opened: Wanted, prompt: str, *, as_json: bool) -> int:
    import trio

    from refold.chat.once import ask_once

    try:
        return trio.run(ask_once, opened, prompt, as_json)
    except KeyboardInterrupt:  # while the session was being opened or closed
        return 128 + signal.SIGINT
