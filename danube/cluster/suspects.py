"""Which brokers' sessions are ended early, because their processes seem to be dead. Pure: times are passed in.

A session ends with its time to live, 3 s after its broker's last keep-alive. A process that was killed can be noticed
sooner: its links break, and its port refuses connections (:class:`danube.peers.Lost`). That is a hint only. A firewall
may refuse connections, too, and then to one broker only. A wrong hint costs what the loss of a session costs, and never
data: the broker opens another session and goes on; of its topics, those that store nothing may have moved. So hints are
used, under these rules:

* **One decides**: the coordinator. It knows all sessions, gives the topics that store nothing to others anyway, and
  there is one with every metadata engine; the leader of the metadata knows leases, and not whose they are. Only the
  coordinator's own session is ended by any other broker that has a hint about it.
* **Only a broker whose session is certain to be alive decides**, so one that is cut off soon decides nothing. Its
  own hints say little about others: what a cut swallows does not refuse connections.
* **Others are asked first** (:func:`witnesses`, :func:`verdict`): one that reaches the broker acquits it, and one at
  least must have answered. So what is wrong between two brokers only ends no session, and of two brokers on one
  metadata store each waits for the end of the other's time to live.
* A hint is about **one start** of a broker and one session. It is void when that has ended, and after :data:`HINT_S`.
* A session that was opened **again** by the same start is not ended early for :data:`AGAIN_S`: the last hint was wrong,
  or the broker was slow. Another start proves that the earlier one is dead, so it does not count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

__all__ = ["AGAIN_S", "HINT_S", "MOST_WITNESSES", "Session", "Suspect", "Suspects", "Verdict", "verdict", "witnesses"]

HINT_S: Final = 5.0
"""How long a hint is worth something: a coordinator, or a leader of the metadata, may have to be elected first."""
AGAIN_S: Final = 60.0
"""A session that was opened again lives at least so long, or ends with its time to live."""
MOST_WITNESSES: Final = 4
"""Most brokers that are asked about one."""


class Session(NamedTuple):
    """A session as the metadata have it."""

    life: int
    """The start of the broker to which it belongs."""
    revision: int


class Suspect(NamedTuple):
    """A broker whose process seems to be dead."""

    name: str
    session: Session
    """Which is to be ended."""


class Verdict(Enum):
    """What the answers of others come to."""

    ACQUITTED = "another broker reaches it"
    UNDECIDED = "no other broker has answered"
    DEAD = "no other broker reaches it"


class _Hint(NamedTuple):
    session: Session
    at: float


class Suspects:
    """The hints that one broker has, by the names of brokers (``b2``)."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        """The last one of each broker that was seen, also if it has ended."""
        self._opened_again: dict[str, float] = {}
        self._hints: dict[str, _Hint] = {}

    def see(self, sessions: Mapping[str, Session], brokers: Collection[str], now: float) -> None:
        """Note the present sessions; to be called whenever they have changed, and before anything else is.

        Args:
            sessions: by broker.
            brokers: all that exist; what is noted of others is forgotten.
            now: the time.
        """
        for name, session in sessions.items():
            known = self._sessions.get(name)
            if known == session:
                continue
            self._sessions[name] = session
            if known is not None and known.life == session.life:
                self._opened_again[name] = now
            else:
                self._opened_again.pop(name, None)
        for name in [each for each, hint in self._hints.items() if sessions.get(each) != hint.session]:
            del self._hints[name]
        for name in [each for each in self._sessions if each not in sessions and each not in brokers]:
            del self._sessions[name]
            self._opened_again.pop(name, None)

    def hint(self, name: str, life: int, sessions: Mapping[str, Session], now: float) -> bool:
        """Note that a start of a broker seems to be dead; False if it has no session that this could end."""
        session = sessions.get(name)
        if session is None or session.life != life:
            return False
        self._hints[name] = _Hint(session, now)
        return True

    def acquit(self, name: str) -> None:
        """Drop the hint about a broker."""
        self._hints.pop(name, None)

    @property
    def names(self) -> Collection[str]:
        """The brokers about which there are hints."""
        return self._hints.keys()

    def due(self, me: str, coordinator: str | None, now: float) -> list[Suspect]:
        """Return the brokers whose sessions this one is to end if others agree.

        Args:
            me: this broker.
            coordinator: None: there is none, and one is about to be elected.
            now: the time.
        """
        for name in [each for each, hint in self._hints.items() if now - hint.at >= HINT_S]:
            del self._hints[name]
        return [
            Suspect(name, hint.session)
            for name, hint in sorted(self._hints.items())
            if name != me and coordinator in (me, name) and not self._is_protected(name, now)
        ]

    def _is_protected(self, name: str, now: float) -> bool:
        return now - self._opened_again.get(name, -math.inf) < AGAIN_S


def witnesses(me: str, suspect: str, sessions: Iterable[str], suspects: Collection[str]) -> list[str]:
    """Return the brokers that are asked whether they reach another one.

    Args:
        me: the broker that asks.
        suspect: the one that may be dead.
        sessions: the brokers that have a session.
        suspects: all that may be dead. They are asked last, and not left out: a broker whose connections are all
            refused suspects all others.
    """
    others = (name for name in sessions if name not in (me, suspect))
    return sorted(others, key=lambda name: (name in suspects, name))[:MOST_WITNESSES]


def verdict(answers: Collection[bool]) -> Verdict:
    """Return what the answers of others come to: whether each one that has answered reaches the suspect."""
    if any(answers):
        return Verdict.ACQUITTED
    return Verdict.DEAD if answers else Verdict.UNDECIDED
