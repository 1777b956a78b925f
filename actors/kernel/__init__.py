"""The actor kernel: async functions with bounded mailboxes, owned by supervisors."""

from refold.actors.kernel.errors import (
    ActorCrashed,
    ActorStopped,
    AskCycle,
    MailboxFull,
    RestartLimit,
)
from refold.actors.kernel.mailbox import (
    Ask,
    Mail,
    Mailbox,
    Message,
    Promise,
    Ref,
    waiting,
    waiting_chain,
)
from refold.actors.kernel.nursery import PROGRAM_ENDS, open_flat_nursery, sole_error
from refold.actors.kernel.restarts import Spec
from refold.actors.kernel.supervisor import ActorSnapshot, Supervisor, open_supervisor

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
