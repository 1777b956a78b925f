"""The actor kernel: async functions with bounded mailboxes, owned by supervisors (design 3.1)."""

from actors.kernel.errors import ActorCrashed, ActorStopped, MailboxFull
from actors.kernel.mailbox import Ask, Mail, Mailbox, Promise, Ref
from actors.kernel.supervisor import Spec, Supervisor, open_supervisor, sole_error

__all__ = [
    "ActorCrashed",
    "ActorStopped",
    "Ask",
    "Mail",
    "Mailbox",
    "MailboxFull",
    "Promise",
    "Ref",
    "Spec",
    "Supervisor",
    "open_supervisor",
    "sole_error",
]
