"""Checks of requests to a metadata store, and the errors that all engines share. Pure: no I/O, no clock.

They need nothing of the store, so an engine makes them before it queues or sends a request: every engine refuses the
same requests, with the same words.
"""

from __future__ import annotations

from collections.abc import Sequence

from danube.metadata._contract import Condition, Delete, LeaseId, Put
from danube.metadata._keys import validate_key, validate_prefix
from danube.model.errors import InvalidArgumentError, NotFoundError
from danube.model.limits import Limits

__all__ = ["RequestChecks", "conflict", "lease_ended"]


class RequestChecks:
    """Checks requests against limits.

    Args:
        limits: the limits whose names begin with ``metadata_``.
    """

    __slots__ = ("limits",)

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def check_key(self, key: str) -> str:
        """Raise :class:`InvalidArgumentError` unless ``key`` is valid."""
        return validate_key(key, self.limits.metadata_max_key_bytes)

    def check_prefix(self, prefix: str) -> str:
        """Raise :class:`InvalidArgumentError` unless ``prefix`` is valid."""
        return validate_prefix(prefix, self.limits.metadata_max_key_bytes)

    def check_ttl(self, ttl_s: float) -> float:
        """Raise :class:`InvalidArgumentError` unless this time to live is allowed."""
        longest = self.limits.metadata_max_lease_s
        if not 0 < ttl_s <= longest:
            raise InvalidArgumentError(
                f"a metadata lease of {ttl_s} s is invalid: it must be more than 0 and at most"
                f" metadata_max_lease_s = {longest} s"
            )
        return ttl_s

    def check_transaction(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> None:
        """Raise :class:`InvalidArgumentError` unless the transaction is well-formed and within the limits."""
        limits = self.limits
        total = 0
        for what, parts in (("conditions", conditions), ("operations", operations)):
            if len(parts) > limits.metadata_max_transaction_changes:
                raise InvalidArgumentError(
                    f"a metadata transaction with {len(parts)} {what} exceeds"
                    f" metadata_max_transaction_changes = {limits.metadata_max_transaction_changes}; split it"
                )
            seen: set[str] = set()
            for part in parts:
                self.check_key(part.key)
                if part.key in seen:
                    raise InvalidArgumentError(f"metadata key {part.key!r} is named by two {what} of one transaction")
                seen.add(part.key)
                total += len(part.key)
                if isinstance(part, Put):
                    if not isinstance(part.value, bytes):
                        raise InvalidArgumentError(
                            f"the value of metadata key {part.key!r} is {type(part.value).__name__}; it must be bytes"
                        )
                    if len(part.value) > limits.metadata_max_value_bytes:
                        raise InvalidArgumentError(
                            f"the value of metadata key {part.key!r} has {len(part.value)} bytes; at most"
                            f" metadata_max_value_bytes = {limits.metadata_max_value_bytes} are allowed"
                        )
                    total += len(part.value)
                elif isinstance(part, Condition) and part.mod_revision < 0:
                    raise InvalidArgumentError(
                        f"expected revision {part.mod_revision} of metadata key {part.key!r} is negative;"
                        " use 0 for a key that must not exist"
                    )
        if total > limits.metadata_max_transaction_bytes:
            raise InvalidArgumentError(
                f"a metadata transaction of {total} bytes exceeds metadata_max_transaction_bytes ="
                f" {limits.metadata_max_transaction_bytes}; split it"
            )

    def check_start(self, start_revision: int | None) -> None:
        """Raise :class:`InvalidArgumentError` unless a watch may start at this revision."""
        if start_revision is not None and start_revision < 1:
            raise InvalidArgumentError(
                f"a metadata watch cannot start at revision {start_revision}; the first one is 1"
            )


def lease_ended(lease: LeaseId) -> NotFoundError:
    """Return the error for a lease that is not active."""
    return NotFoundError(f"metadata lease {lease} has ended or never existed; grant a new one and put its keys again")


def conflict(key: str, expected: int, present: int) -> str:
    """Return the text of the error for a condition that does not hold."""
    if expected == 0:
        return f"metadata key {key!r} exists already (revision {present}); read it and try again"
    found = f"it is at {present}" if present else "it does not exist"
    return f"metadata key {key!r} was expected at revision {expected}, but {found}; read it and try again"
