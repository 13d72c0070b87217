"""The audit log of one broker: a topic of its own, ``/system/audit-b3``, which it creates, owns and writes.

It is a topic as others are: durable, consumed and read by those who have the right, sealed into the storage, and
readable by Spark. Only brokers write to the namespace ``system`` (:mod:`danube.security.evaluate`). Each message is a
JSON object::

    {"time": "2026-11-24T01:23:45.678Z", "broker": "b3", "kind": "denied", "principal": "service:orders-api", ...}

If the topic cannot be written, events wait within the limits of the ledger, and an entry says how many were lost.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import trio

from danube.broker.intake.internal_producer import InternalProducer, Target
from danube.broker.security.auditing import Audit
from danube.model.batch import Record
from danube.model.errors import DanubeError
from danube.model.log_events import log_event
from danube.security.audit import AuditEvent, AuditKind

__all__ = ["AUDIT_PREFIX", "AuditLog"]

_log = logging.getLogger("danube.broker")

AUDIT_PREFIX: Final = "/system/audit-"
"""The topics of the brokers: followed by the name of each."""
_BATCH_S: Final = 0.2
"""Events wait for others so long."""
_BATCH: Final = 500
"""Most events of one batch."""
_RETRY_S: Final = 5.0
_CLOSE_S: Final = 2.0


class AuditLog:
    """Enters the events of a broker in its audit log; see the module.

    Args:
        audit: has the events.
        broker: name of the broker.
        clock_us: the wall clock.
    """

    def __init__(self, audit: Audit, broker: str, clock_us: Callable[[], int]) -> None:
        self._audit = audit
        self._ledger = audit.ledger
        self._broker = broker
        self._clock_us = clock_us
        self._entered = trio.Event()
        self._closing = trio.Event()

    async def run(self, opened: Callable[[str], Awaitable[Target]]) -> None:
        """Enter events until cancelled.

        Args:
            opened: returns the topic of this name; creates it if it does not exist.
        """
        problem = ""
        while True:
            try:
                topic = await opened(AUDIT_PREFIX + self._broker)
                with await InternalProducer.open(topic, f"audit-{self._broker}", self._waits) as producer:
                    if problem:
                        _log.info("the audit log is written again")
                        problem = ""
                    await self._enter(producer)
            except DanubeError as error:
                if error.message != problem:
                    problem = error.message
                    _log.error(
                        "the audit log %s%s cannot be written: %s",
                        AUDIT_PREFIX,
                        self._broker,
                        error,
                        extra=log_event("audit.failing"),
                    )
            await trio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Enter what waits, with the repetitions that were counted; what is not entered within ``_CLOSE_S`` is lost."""
        self._closing.set()
        self._audit.news.set()
        with trio.move_on_after(_CLOSE_S):
            await self._entered.wait()

    def _waits(self, error: DanubeError | None) -> None:
        if error is not None:
            _log.warning("the audit log waits: %s", error, extra=log_event("audit.delayed"))

    async def _enter(self, producer: InternalProducer) -> None:
        while True:
            await self._until_news()
            events = self._ledger.take(math.inf if self._closing.is_set() else trio.current_time(), _BATCH)
            if not events:
                if self._closing.is_set():
                    self._entered.set()
                    await trio.sleep_forever()
                continue
            try:
                await self._publish(producer, events)
            except BaseException:
                self._ledger.lose(sum(each.count for each in events))
                raise

    async def _until_news(self) -> None:
        while not self._ledger.is_waiting and not self._closing.is_set():
            self._audit.news = trio.Event()
            ends_at = self._ledger.next_at
            with trio.move_on_at(ends_at) if ends_at is not None else trio.CancelScope() as waiting:
                await self._audit.news.wait()
            if waiting.cancelled_caught:
                return
        if not self._closing.is_set():
            with trio.move_on_after(_BATCH_S):
                await self._closing.wait()

    async def _publish(self, producer: InternalProducer, events: Sequence[AuditEvent]) -> None:
        for each in events:
            if each.kind is AuditKind.LOST:
                _log.warning(
                    "%d events are not in the audit log: %s",
                    each.count,
                    each.reason,
                    extra=log_event("audit.dropped", count=each.count),
                )
            elif each.kind is AuditKind.REFUSED:  # repetitions are counted, so these lines are few
                _log.info("credentials from %s for %s: %s (%d)", each.address, each.path, each.reason, each.count)
        records = [Record(payload=self._encoded(each)) for each in events]
        await producer.publish(records, self._clock_us())

    def _encoded(self, event: AuditEvent) -> bytes:
        """Return a JSON object that begins with the time as text, and the name of the broker."""
        members = msgspec.to_builtins(event)
        time = datetime.fromtimestamp(members.pop("time_us", self._clock_us()) / 1e6, UTC)
        shown = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return msgspec.json.encode({"time": shown, "broker": self._broker, **members})
