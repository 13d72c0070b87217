"""Ends open streams whose proof or right has ended. Pure; the times are passed in.

====================================  ==============  ==================================================================
what happens                          stream ends as  when
====================================  ==============  ==================================================================
the proof expires                     EXPIRED         at the next check
the proof is revoked, or its key      REVOKED         at the next check
or issuer is removed
a binding or role changes, or the     DENIED          at the next check, unless the principal still has all that the
principal is suspended                                stream needs
the broker does not reach the         STALE           after ``security_stale_s``; streams of brokers stay: without
metadata                                              them it would never reach the metadata again
====================================  ==============  ==================================================================

The guard checks at least every :data:`CHECK_S`, and after each change of the metadata. A check with many streams is
made in slices, so that other work is not delayed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from danube.model.errors import CredentialsExpiredError, DanubeError, PermissionDeniedError, UnavailableError
from danube.security.claims import Identity
from danube.security.evaluate import Rights
from danube.security.limits import SecurityLimits
from danube.security.permissions import Permission
from danube.security.roles import PrincipalType
from danube.security.scopes import Resource

__all__ = ["CHECK_S", "End", "Ending", "Freshness", "Need", "OpenStreams", "error_of"]

CHECK_S: Final = 0.5
"""Longest interval between two checks, in seconds."""
SLICE: Final = 200
"""Streams examined at a time."""


class Need(NamedTuple):
    """A permission that an open stream uses."""

    permission: Permission
    resource: Resource


class Ending(Enum):
    """Why a stream ends."""

    EXPIRED = "expired"
    REVOKED = "revoked"
    DENIED = "denied"
    STALE = "stale"


class End(NamedTuple):
    """A stream that ends now."""

    stream: int
    why: Ending


class _Open:
    __slots__ = ("examined", "identity", "needs")

    def __init__(self, identity: Identity, needs: tuple[Need, ...], examined: int) -> None:
        self.identity = identity
        self.needs = needs
        self.examined = examined
        """Number of the last change that it was examined after."""


class Freshness:
    """How current a broker's copy of the metadata is. Times are seconds of a clock that never steps back."""

    def __init__(self, limits: SecurityLimits, now: float) -> None:
        self._limits = limits
        self._confirmed_at = now

    def confirmed(self, now: float) -> None:
        """The metadata have answered: the copy was current at this time."""
        self._confirmed_at = max(now, self._confirmed_at)

    def accepts_new_proofs(self, now: float) -> bool:
        """Whether credentials may be verified; those verified before stay in use until the copy is stale."""
        return now < self._confirmed_at + self._limits.security_fresh_s

    def is_stale(self, now: float) -> bool:
        """Whether known rights count no longer."""
        return now >= self.stale_at

    @property
    def stale_at(self) -> float:
        """When known rights end, unless the metadata answer before."""
        return self._confirmed_at + self._limits.security_stale_s


class OpenStreams:
    """The open streams of a broker.

    Args:
        rights: roles and bindings; streams are examined again when its generation has changed.
        freshness: of these.
        is_valid: whether a proof is still accepted: its token is not revoked, its API key or issuer exists unchanged.
            Asked again after :meth:`proofs_changed`.
    """

    def __init__(self, rights: Rights, freshness: Freshness, is_valid: Callable[[Identity], bool]) -> None:
        self._rights = rights
        self._freshness = freshness
        self._is_valid = is_valid
        # In the order of their last examination, so that a storm of changes does not delay any of them indefinitely.
        self._open: dict[int, _Open] = {}
        self._expiries: list[tuple[float, int]] = []
        self._generation = rights.generation
        self._changes = 0

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, stream: int, identity: Identity, needs: Iterable[Need]) -> None:
        """Watch a stream that was allowed just now. Its number must not be in use."""
        self._note_changes()
        self._open[stream] = _Open(identity, tuple(needs), self._changes)
        if identity.expires_at_s < math.inf:
            heapq.heappush(self._expiries, (identity.expires_at_s, stream))

    def needs_also(self, stream: int, need: Need) -> None:
        """An open stream uses a further permission, for which it was allowed just now."""
        found = self._open.get(stream)
        if found is not None and need not in found.needs:
            found.needs = (*found.needs, need)

    def closed(self, stream: int) -> None:
        """Forget a stream that has ended. No-op if it is not known."""
        self._open.pop(stream, None)
        if len(self._expiries) > 2 * len(self._open) + SLICE:  # most of them are of closed streams
            self._expiries = [each for each in self._expiries if each[1] in self._open]
            heapq.heapify(self._expiries)

    def proofs_changed(self) -> None:
        """A token was revoked, or API keys or issuers have changed."""
        self._changes += 1

    def _note_changes(self) -> None:
        if self._generation != self._rights.generation:
            self._generation = self._rights.generation
            self._changes += 1

    def check(self, now: float, wall_s: float) -> tuple[list[End], bool]:
        """Return streams that end now, and whether there is more to examine at once. They are no longer watched.

        Args:
            now: a clock that never steps back, in seconds.
            wall_s: Unix time in seconds.
        """
        ends = [*self._stale(now), *self._expired(wall_s)]
        self._note_changes()
        for _ in range(SLICE):
            stream, found = next(iter(self._open.items()), (0, None))
            if found is None or found.examined == self._changes:
                return ends, False
            del self._open[stream]
            why = self._judge(found)
            if why is None:
                found.examined = self._changes
                self._open[stream] = found  # at the end
            else:
                ends.append(End(stream, why))
        return ends, True

    def _stale(self, now: float) -> list[End]:
        if not self._freshness.is_stale(now):
            return []
        gone = [
            stream for stream, each in self._open.items() if each.identity.principal.type is not PrincipalType.BROKER
        ]
        for stream in gone:
            del self._open[stream]
        return [End(stream, Ending.STALE) for stream in gone]

    def _expired(self, wall_s: float) -> list[End]:
        ends = []
        while self._expiries and self._expiries[0][0] <= wall_s:
            expires_at_s, stream = heapq.heappop(self._expiries)
            found = self._open.get(stream)
            # The number may belong to a later stream.
            if found is not None and found.identity.expires_at_s <= expires_at_s:
                del self._open[stream]
                ends.append(End(stream, Ending.EXPIRED))
        return ends

    def _judge(self, found: _Open) -> Ending | None:
        if not self._is_valid(found.identity):
            return Ending.REVOKED
        if self._rights.is_suspended(found.identity.principal):
            return Ending.DENIED
        for need in found.needs:
            if not self._rights.allows(found.identity.principal, need.permission, need.resource):
                return Ending.DENIED
        return None


def error_of(why: Ending, needs: Sequence[Need] = ()) -> DanubeError:
    """Return the error with which a stream ends."""
    match why:
        case Ending.EXPIRED:
            return CredentialsExpiredError("the credentials of this stream have expired; connect with new ones")
        case Ending.REVOKED:
            return CredentialsExpiredError("the credentials of this stream were revoked; connect with others")
        case Ending.STALE:
            return UnavailableError(
                "this broker has not reached the metadata for security_stale_s, so the rights that it knows no longer"
                " count; connect to another broker"
            )
        case Ending.DENIED:
            what = " and ".join(f"{each.permission.title} on {each.resource}" for each in needs)
            return PermissionDeniedError(f"the principal of this stream has lost {what or 'its rights'}")
