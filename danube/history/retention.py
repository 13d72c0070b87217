"""Computes the start offset of a topic from its retention rules. Pure.

There are three independent rules: age, size, and "acknowledged by all subscriptions". Older messages are removed, in
the catalogue first and in the backends a grace period later.

Sealed history is removed by whole parts: a part is removed when all of it may be. Data in the journal is removed by
offset for acknowledgements, and approximately, by the journal's sparse index, for age and size. The end offset is never
lowered: a topic whose messages are all removed continues to count.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

import msgspec

from danube.history.parts import TopicHistory
from danube.log.index import TopicIndex
from danube.model.ids import FIRST_OFFSET, Offset
from danube.model.policies import Retention

__all__ = ["Measured", "RetentionPlan", "plan_retention"]


class Measured(Protocol):
    """The part of a topic's log that retention looks at; see :class:`danube.log.TopicLog`."""

    start_offset: Offset
    end_offset: Offset
    journal_start: Offset
    index: TopicIndex
    unsealed_bytes: int
    unsealed_surplus_bytes: int


class RetentionPlan(msgspec.Struct, frozen=True):
    """Effect that retention would have on one topic now."""

    topic: str
    start_offset: Offset
    new_start_offset: Offset
    freed_bytes: int
    """Bytes of sealed batches; bytes freed in the journal are available when its files are recycled."""
    freed_parts: int


def plan_retention(
    name: str,
    policy: Retention,
    log: Measured,
    history: TopicHistory | None,
    floors: Sequence[Offset],
    now_us: int,
) -> RetentionPlan:
    """Return the new start offset of a topic, with reasons.

    Args:
        name: of the topic, for the plan.
        policy: its retention rules.
        log, history: its log and history; None: nothing is sealed.
        floors: cursor floors of its durable subscriptions.
        now_us: wall clock.
    """
    start = log.start_offset
    parts = [record.part for record in history.parts] if history is not None else []
    if policy.acknowledged and floors:
        floor = min(floors)
        # In the journal any offset is a possible start; sealed parts are removed only as a whole.
        border = max((part.end_offset for part in parts if part.end_offset <= floor), default=FIRST_OFFSET)
        start = max(start, floor if floor >= log.journal_start else border)
    if policy.max_age_s > 0:
        before_us = now_us - int(policy.max_age_s * 1e6)
        # Only from the front: after a step back of the clock, a part with an old time may follow newer ones.
        old = list(takewhile(lambda part: part.last_time_us < before_us, parts))
        start = max(start, old[-1].end_offset if old else FIRST_OFFSET)
        if start >= log.journal_start:
            start = max(start, log.index.before_time(before_us) or FIRST_OFFSET)
    if policy.max_bytes > 0:
        # After a restart the unsealed bytes are an estimate: the possible surplus must not remove existing data.
        unsealed_bytes = max(0, log.unsealed_bytes - log.unsealed_surplus_bytes)
        # Parts that are entered, and not released from the journal yet, count there: once, and not twice.
        sealed = [part for part in parts if part.end_offset <= log.journal_start]
        excess = sum(part.size_bytes for part in sealed if part.end_offset > start) + unsealed_bytes
        excess -= policy.max_bytes
        for part in sealed:
            if part.end_offset <= start:
                continue
            excess -= part.size_bytes
            if excess < 0:
                break
            start = part.end_offset
        if excess > 0 and start >= log.journal_start and len(sealed) == len(parts):
            start = max(start, log.index.offset_keeping(unsealed_bytes - excess))
    start = min(start, log.end_offset)
    gone = [part for part in parts if part.end_offset <= start]
    return RetentionPlan(name, log.start_offset, start, sum(part.size_bytes for part in gone), len(gone))
