"""The actor kernel: async functions with bounded mailboxes, owned by supervisors (design 3.1)."""

from actors.kernel.errors import (
    ActorCrashed,
    ActorStopped,
    AskCycle,
    MailboxFull,
    RestartLimit,
)
from actors.kernel.mailbox import Ask, Mail, Mailbox, Promise, Ref, waiting, waiting_chain
from actors.kernel.spec import Spec, sole_error
from actors.kernel.supervisor import ActorSnapshot, Supervisor, open_supervisor

__all__ = [
    "ActorCrashed",
    "ActorSnapshot",
    "ActorStopped",
    "Ask",
    "AskCycle",
    "Mail",
    "Mailbox",
    "MailboxFull",
    "Promise",
    "Ref",
    "RestartLimit",
    "Spec",
    "Supervisor",
    "open_supervisor",
    "sole_error",
    "waiting",
    "waiting_chain",
]
