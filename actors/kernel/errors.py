"""How an ask can end other than in a reply, and how a supervisor gives up.

`ActorStopped`: you, or the end of the run, closed it. `ActorCrashed`: it broke while it had your
message, or before. `MailboxFull`: nothing was taken; wait, or send less. `AskCycle`: waiting would
never have ended. `RestartLimit`: a child broke too often.
"""

from __future__ import annotations

import attrs

from refold.runtime.errors import Broken, Refused


@attrs.define(eq=False)
class ActorStopped(Refused):
    """The actor was stopped; it did not handle the message."""

    actor: str

    def __str__(self) -> str:
        return f"{self.actor} has stopped; open the session again to go on"


@attrs.define(eq=False)
class ActorCrashed(Broken):
    """The actor failed; the failure is attached as `__cause__`."""

    actor: str

    def __str__(self) -> str:
        return f"{self.actor} failed: {self.__cause__}"


@attrs.define(eq=False)
class MailboxFull(Refused):
    """A message that must not wait found no room."""

    actor: str

    def __str__(self) -> str:
        return f"the mailbox of {self.actor} is full; send less, or later"


@attrs.define(eq=False)
class AskCycle(Refused):
    """An ask that would have waited for itself; `chain` names the actors that wait, in order."""

    chain: tuple[str, ...]

    def __str__(self) -> str:
        return f"{' -> '.join(self.chain)} would wait for itself; send a message and go on instead"


@attrs.define(eq=False)
class RestartLimit(Broken):
    """A child that was restarted too often; its last crash is attached as `__cause__`."""

    actor: str
    restarts: int
    period: float

    def __str__(self) -> str:
        return (
            f"{self.actor} failed more than {self.restarts} times in {self.period:g} s, "
            f"the last time with: {self.__cause__}"
        )
