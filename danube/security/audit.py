"""What is entered in the audit log, and how often: repeated refusals are counted, and floods are bounded. Pure.

::

    note(event) ──▶ change, opening ─────────────────────────────▶ entered
                    refused proof, denial: first of its key ─────▶ entered; opens a window of 10 s
                                           within the window ────▶ counted; one event with the count at its end
    more than ``audit_events_per_s`` ────────────────────────────▶ counted as lost; one event says how many

The key is the principal, the address and the path: not what a caller may choose at will, such as the names of topics.
Events never contain secrets: a proof is named by its kind and id.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import StrEnum
from typing import Final

import msgspec

from danube.model import api
from danube.security.limits import SecurityLimits
from danube.security.pace import Pace
from danube.security.permissions import Permission
from danube.security.rights import Condition, Rule

__all__ = ["WINDOW_S", "AuditEvent", "AuditKind", "AuditLedger", "is_change", "is_opening"]

WINDOW_S: Final = 10.0
"""Repetitions of a refusal are counted for so long before they are entered together."""


_MANAGES: Final = (
    Permission.MANAGE_NAMESPACE
    | Permission.MANAGE_TOPIC
    | Permission.MANAGE_SUBSCRIPTION
    | Permission.MANAGE_SCHEMA
    | Permission.MANAGE_BROKER
    | Permission.MANAGE_CLUSTER
    | Permission.MANAGE_SECURITY
)
_READS: Final = frozenset(
    {
        "connections.list_connections",
        "security.explain",
        "security.list_bindings",
        "security.list_issuers",
        "security.list_keys",
        "security.list_principals",
        "security.list_revoked",
        "security.list_roles",
        "security.show_binding",
        "security.show_quota",
        "stages.list",
        "storages.check_storage",
        "storages.list_stranded",
        "storages.storages_status",
    }
)
"""Operations that need a managing permission, and change nothing."""
_OPENINGS: Final = frozenset(
    {
        api.Method.PUBLISH,
        api.Method.CONSUME,
        "/danube.ProducerService/CreateProducer",
        "/danube.ConsumerService/Subscribe",
    }
)


def is_change(rule: Rule) -> bool:
    """Whether calls of a path are entered as changes: what needs a managing permission, and does more than read."""
    manages = (each.permission & _MANAGES for each in rule.requirements if each.condition is Condition.ALWAYS)
    return any(manages) and rule.operation not in _READS


def is_opening(rule: Rule) -> bool:
    """Whether calls of a path open a producer or a consumer."""
    return rule.path in _OPENINGS


class AuditKind(StrEnum):
    """What has happened."""

    REFUSED = "refused"
    """A proof was not accepted."""
    DENIED = "denied"
    """A caller lacks a right."""
    CHANGED = "changed"
    """An administrative call was carried out, or has failed."""
    OPENED = "opened"
    """A producer or consumer was opened."""
    SESSION = "session"
    """A session of a browser has begun or ended; ``outcome`` says which."""
    LOST = "lost"
    """Events were not entered, because there were too many, or the log could not be written."""


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the audit log; a message of the topic, as a JSON object. What is empty is left out."""

    kind: AuditKind
    time_us: int = 0
    """When, in microseconds since the epoch; of repetitions, when the last one happened. Entered as text."""
    principal: str = ""
    """Who: ``service:orders-api``."""
    proof: str = ""
    """How that was proven: ``token t-17``, ``api-key Ab3dEf...``, ``certificate 5f2a...``."""
    address: str = ""
    """Where the call came from, without the port; of IPv6 the network."""
    path: str = ""
    """Of the call: ``/danube.native.v1.Topics/Create``."""
    resource: str = ""
    """What the call is about: ``/shop/orders``, ``/shop/orders#billing``, ``namespace:shop``; several with commas."""
    request: str = ""
    """Of a change: the fields of the request that say what it changes, as ``name=value``."""
    outcome: str = ""
    """Of a change: ``done``, or the code of its error. Of a session: ``begun`` or ``ended``."""
    reason: str = ""
    """Why it was refused or denied."""
    count: int = 1
    """How many times it has happened since the entry before."""


_Key = tuple[AuditKind, str, str, str]


class _Window:
    """Repetitions of one refusal."""

    __slots__ = ("count", "ends_at", "last")

    def __init__(self, ends_at: float, first: AuditEvent) -> None:
        self.ends_at = ends_at
        self.count = 0
        self.last = first


class _Lane:
    """Events that wait, with a rate and a bound of their own."""

    def __init__(self, limits: SecurityLimits) -> None:
        self._pace = Pace(limits.audit_events_per_s, limits.audit_events_per_s)
        self._paid_at = 0.0
        self._most = limits.audit_waiting
        self.waiting: deque[AuditEvent] = deque()

    def add(self, event: AuditEvent, now: float) -> bool:
        """Add an event; return whether there was room."""
        if self._pace.allowed_at(self._paid_at) > now or len(self.waiting) >= self._most:
            return False
        self._paid_at = self._pace.take(self._paid_at, 1, now)
        self.waiting.append(event)
        return True


class AuditLedger:
    """The events that wait to be entered.

    Changes have a lane of their own: no flood of refusals and openings keeps them out.

    Args:
        limits: ``audit_events_per_s``, ``audit_waiting`` and ``audit_repeated``.
    """

    def __init__(self, limits: SecurityLimits) -> None:
        self._limits = limits
        self._changes, self._others = _Lane(limits), _Lane(limits)
        self._repeated: OrderedDict[_Key, _Window] = OrderedDict()
        """Windows by what is repeated."""
        self._lost = 0

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to enter now."""
        return bool(self._changes.waiting or self._others.waiting) or self._lost > 0

    @property
    def next_at(self) -> float | None:
        """When the first window ends; None: none is open."""
        return next(iter(self._repeated.values())).ends_at if self._repeated else None

    def note(self, event: AuditEvent, now: float) -> None:
        """Note what has happened.

        Args:
            event: with a count of 1, and the time.
            now: a clock that never steps back, in seconds.
        """
        if event.kind is AuditKind.CHANGED:
            self._add(self._changes, event, now)
            return
        if event.kind in (AuditKind.REFUSED, AuditKind.DENIED):
            # Not by what the caller chooses at will: the names of resources, and reasons that contain them.
            key = event.kind, event.principal, event.address, event.path
            window = self._repeated.get(key)
            if window is not None:
                window.count += 1
                window.last = event
                return
            if len(self._repeated) >= self._limits.audit_repeated:
                self._close(self._repeated.popitem(last=False)[1], now)
            self._repeated[key] = _Window(now + WINDOW_S, event)
        self._add(self._others, event, now)

    def _add(self, lane: _Lane, event: AuditEvent, now: float) -> None:
        if not lane.add(event, now):
            self._lost += event.count

    def lose(self, count: int) -> None:
        """Events that were taken could not be entered."""
        self._lost += count

    def take(self, now: float, most: int) -> list[AuditEvent]:
        """Return up to ``most`` events that are to be entered now, changes first, and forget them."""
        while self._repeated:
            key, window = next(iter(self._repeated.items()))
            if window.ends_at > now:
                break
            del self._repeated[key]
            self._close(window, now)
        found: list[AuditEvent] = []
        for lane in (self._changes, self._others):
            found += [lane.waiting.popleft() for _ in range(min(most - len(found), len(lane.waiting)))]
        if self._lost and len(found) < most:
            found.append(
                AuditEvent(kind=AuditKind.LOST, count=self._lost, reason="too many events, or the log was not writable")
            )
            self._lost = 0
        return found

    def _close(self, window: _Window, now: float) -> None:
        if window.count:
            self._add(self._others, msgspec.structs.replace(window.last, count=window.count), now)
