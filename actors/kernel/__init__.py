"""The actor kernel: async functions with bounded mailboxes, owned by supervisors."""

from actors.kernel.errors import (
    ActorCrashed,
    ActorStopped,
    AskCycle,
    MailboxFull,
    RestartLimit,
)
from actors.kernel.mailbox import (
    Ask,
    Mail,
    Mailbox,
    Message,
    Promise,
    Ref,
    waiting,
    waiting_chain,
)
from actors.kernel.nursery import PROGRAM_ENDS, open_flat_nursery, sole_error
from actors.kernel.spec import Spec
from actors.kernel.supervisor import ActorSnapshot, Supervisor, open_supervisor

__all__ = [
    "PROGRAM_ENDS",
    "ActorCrashed",
    "ActorSnapshot",
    "ActorStopped",
    "Ask",
    "AskCycle",
    "Mail",
    "Mailbox",
    "MailboxFull",
    "Message",
    "Promise",
    "Ref",
    "RestartLimit",
    "Spec",
    "Supervisor",
    "open_flat_nursery",
    "open_supervisor",
    "sole_error",
    "waiting",
    "waiting_chain",
]
