"""The commands there are, in the order in which `refold --help` lists them."""

from __future__ import annotations

COMMANDS = {
    "demo": "The two-minute tour: an agent is killed, comes back, and every request is checked.",
    "sessions": "The sessions of a store, and the state that each is in.",
    "chat": "Talk to an agent in the terminal.",
    "prompt": "Send one prompt, print the answer, and end as the turn ended.",
    "show": "A readable transcript of a session, or its raw events; --follow goes on.",
    "request": "The exact request of a step, rebuilt from the log.",
    "diff": "Where two requests part, and the event that caused it.",
    "verify": "Rebuild every request from the stored bytes and compare digests.",
    "usage": "Tokens, cache hits and kept prefixes, a row a step.",
    "check": "Integrity and rules: is this log whole, and is it one that refold would write?",
    "fork": "A new session that begins with the events of another.",
    "repair": "Explain what is wrong with a log, ask, and keep what can be kept.",
    "export": "The stored bytes of a session, as a file or into another store.",
    "import": "Take a log file into the store, also one that refold did not write.",
    "delete": "Remove sessions for good.",
    "prune": "Remove the sessions that were not used for long.",
}
"""The commands and what the list says of each; `refold.cli.NAME` has it as `command`."""

MODULES = {"import": "import_"}
"""The commands whose module cannot have their name."""
