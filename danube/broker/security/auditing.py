"""Notes what the audit log is to contain: who has changed what, who was denied what, which proofs were refused.

Calls do not wait for the log: events are noted (:class:`danube.security.audit.AuditLedger`), and a task of the broker
enters them (:mod:`danube.broker.audit_log`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import msgspec
import trio

from danube.security.audit import AuditEvent, AuditKind, AuditLedger
from danube.security.claims import Identity
from danube.security.limits import SecurityLimits
from danube.security.throttle import network_of

__all__ = ["Audit", "Origin", "proof_of"]

_SHOWN_CHARS: Final = 200
"""Longest value of a field of a request."""
_PARTS: Final = ("binding", "role", "principal")
"""Fields of upstream's requests whose own fields are shown."""
_FIELDS: Final = (
    "name",
    "id",
    "subject",
    "route",
    "principal",
    "roles",
    "role",
    "scope",
    "permissions",
    "token_id",
    "key_id",
    "kid",
    "durability",
    "partitions",
    "changes",
    "policies",
    "retention",
    "topics",
    "storage",
    "binding_id",
    "principal_name",
    "principal_type",
    "role_name",
    "resource_name",
    "resource_type",
)
"""Fields of requests that say what a change was about. No other is shown: it might be a secret."""


class Origin(Protocol):
    """Where a call came from: the part of its context that is entered."""

    @property
    def peer(self) -> str:
        """The address of the caller."""
        ...

    @property
    def path(self) -> str:
        """The path of the call."""
        ...


def proof_of(identity: Identity) -> str:
    """Return how a caller has proven who it is, without any secret."""
    return f"{identity.kind} {identity.id}" if identity.id else identity.kind


def _request_of(request: Any) -> str:
    """Return the fields of a request that say what it changes."""
    found = [f"{name}={shown}" for name in _FIELDS if (shown := _shown(getattr(request, name, None)))]
    for part in _PARTS:
        value = getattr(request, part, None)
        if value is not None and not isinstance(value, str):
            found.append(_request_of(value))
    return " ".join(filter(None, found))


def _shown(value: Any) -> str:
    """Return a value as text; empty if it is empty, or an object."""
    if isinstance(value, str | int | float | dict):
        text = str(value) if value or value == 0 else ""
    elif value is not None and not hasattr(value, "DESCRIPTOR") and isinstance(value, Iterable):
        text = ",".join(map(str, value))
    else:
        return ""
    return text[:_SHOWN_CHARS]


class Audit:
    """Notes events; see the module.

    Args:
        limits: of access control.
        clock_us: the wall clock.
    """

    def __init__(self, limits: SecurityLimits, clock_us: Callable[[], int]) -> None:
        self.ledger = AuditLedger(limits)
        """What waits to be entered."""
        self.counts = dict.fromkeys(AuditKind, 0)
        """Events of each kind since the broker was started."""
        self.news = trio.Event()
        """Set when something was noted; its reader replaces it."""
        self._clock_us = clock_us

    # --- What happens

    def refused(self, origin: Origin, reason: str) -> None:
        """A proof was not accepted."""
        self._note(AuditEvent(kind=AuditKind.REFUSED, address=network_of(origin.peer), path=origin.path, reason=reason))

    def denied(self, origin: Origin, identity: Identity | None, resource: str, reason: str) -> None:
        """A caller lacks a right."""
        self._note(_event(AuditKind.DENIED, origin, identity, resource=resource, reason=reason))

    def opened(self, origin: Origin, identity: Identity, resource: str) -> None:
        """A producer or consumer is opened."""
        self._note(_event(AuditKind.OPENED, origin, identity, resource=resource))

    def session(self, origin: Origin, identity: Identity, outcome: str) -> None:
        """A session of a browser has begun or ended."""
        self._note(_event(AuditKind.SESSION, origin, identity, outcome=outcome))

    def changed(self, origin: Origin, identity: Identity, resource: str, request: Any, outcome: str) -> None:
        """An administrative call was carried out, or has failed."""
        self._note(
            _event(
                AuditKind.CHANGED,
                origin,
                identity,
                resource=resource,
                request=_request_of(request),
                outcome=outcome,
            )
        )

    def _note(self, event: AuditEvent) -> None:
        self.counts[event.kind] += 1
        self.ledger.note(msgspec.structs.replace(event, time_us=self._clock_us()), trio.current_time())
        self.news.set()


def _event(
    kind: AuditKind,
    origin: Origin,
    identity: Identity | None,
    *,
    resource: str = "",
    reason: str = "",
    request: str = "",
    outcome: str = "",
) -> AuditEvent:
    return AuditEvent(
        kind=kind,
        principal="" if identity is None else str(identity.principal),
        proof="" if identity is None else proof_of(identity),
        address=network_of(origin.peer),
        path=origin.path,
        resource=resource,
        reason=reason,
        request=request,
        outcome=outcome,
    )
