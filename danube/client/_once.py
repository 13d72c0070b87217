"""Messages that are published once however often the call is repeated: how they are cut into batches. Pure.

The broker knows a repeated batch by its producer, its first sequence number and its number of messages. So a call that
may be repeated by another process has a producer whose name is made of the caller's token, numbers its messages from 0
on, and cuts them into the same batches each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from danube.client._outbox import RECORD_OVERHEAD, OutBatch, Outbox, Verdict, record_size
from danube.client._payloads import due_us, encoded_key, to_bytes, to_record
from danube.model.api import PublishOpened
from danube.model.batch import Record
from danube.model.errors import (
    DanubeError,
    DuplicateSequenceError,
    FailedPreconditionError,
    LimitExceededError,
    ProducerFencedError,
    SequenceGapError,
)
from danube.model.names import route_key

__all__ = [
    "MOST_BATCHES",
    "Cut",
    "OnceMessage",
    "OnceOutbox",
    "Prepared",
    "RepeatedTokenError",
    "cut",
    "prepared",
    "producer_of",
]

MOST_BATCHES: Final = 64
"""Batches of one partition that the broker remembers of a producer."""


class RepeatedTokenError(FailedPreconditionError):
    """The token was used for other messages."""

    code = "token-repeated"


class OnceMessage(NamedTuple):
    """A message to be published."""

    payload: bytes
    key: str | bytes | None = None
    attributes: dict[str, str] | None = None
    deliver_at: datetime | None = None
    """A date with a time zone, before which subscriptions do not deliver it."""
    deliver_after_s: float | None = None
    """The same as a delay from the call on."""


class Prepared(NamedTuple):
    """A message that was checked."""

    record: Record
    size: int
    deliver_at_us: int
    """Microseconds since the epoch; 0: at once."""


def prepared(message: OnceMessage, now_us: int) -> Prepared:
    """Check a message.

    Args:
        message: as it was given.
        now_us: the same for all messages of a call: equal delays are equal times.

    Raises:
        InvalidArgumentError: a value is invalid.
    """
    key = None if message.key is None else encoded_key(message.key)
    record = to_record(to_bytes(message.payload), key, message.attributes)
    size = record_size(len(record.payload), key, record.attributes) + RECORD_OVERHEAD
    return Prepared(record, size, due_us(message.deliver_at, message.deliver_after_s, lambda: now_us))


class Cut(msgspec.Struct):
    """One batch."""

    partition: int
    indexes: list[int]
    """Of its messages."""
    size: int
    deliver_at_us: int


def producer_of(token: str) -> str:
    """Return the name of the producer for a token."""
    return f"once-{hashlib.sha256(token.encode()).hexdigest()[:40]}"


def cut(
    messages: Sequence[Prepared], partitions: int, token: str, batch_max_bytes: int, batch_max_messages: int
) -> list[Cut]:
    """Cut messages into batches, in the order of the messages of each partition.

    Messages without a key go to one partition, which the token chooses.

    Args:
        messages: to be published.
        partitions: of the topic; 1 for a plain topic.
        token: of the call.
        batch_max_bytes, batch_max_messages: bounds of a batch; a larger message is a batch by itself.

    Raises:
        LimitExceededError: a partition gets more batches than the broker remembers.
    """
    home = route_key(token, partitions)
    open_: dict[int, Cut] = {}
    counts: dict[int, int] = {}
    found: list[Cut] = []
    for index, message in enumerate(messages):
        key, size = message.record.key, message.size
        partition = home if key is None else route_key(key, partitions)
        last = open_.get(partition)
        if (
            last is not None
            and last.deliver_at_us == message.deliver_at_us
            and last.size + size <= batch_max_bytes
            and len(last.indexes) < batch_max_messages
        ):
            last.indexes.append(index)
            last.size += size
            continue
        counts[partition] = counts.get(partition, 0) + 1
        if counts[partition] > MOST_BATCHES:
            raise LimitExceededError(
                f"the messages make more than {MOST_BATCHES} batches of a partition, and brokers remember no more of a"
                " call that may be repeated; send fewer bytes, or fewer delivery times, in one call"
            )
        open_[partition] = Cut(partition, [index], size, message.deliver_at_us)
        found.append(open_[partition])
    return found


class OnceOutbox(Outbox):
    """An outbox that numbers its batches from 0 on, whatever the broker has stored of its producer already."""

    def put(self, records: list[Record], size: int, deliver_at_us: int) -> OutBatch:
        """Append a batch of its own."""
        batch = OutBatch(self, deliver_at_us)
        batch.items += records
        batch.plain, batch.count, batch.size = False, len(records), size
        self.queued.append(batch)
        self.budget.used += size
        return batch

    def opened(self, answer: PublishOpened) -> None:
        """Handle a new stream; the first one begins with the sequence 0."""
        super().opened(answer if self.epoch else msgspec.structs.replace(answer, next_sequence=0))

    def refused(self, base_sequence: int, error: DanubeError) -> Verdict:
        """Handle a refusal: a batch that the broker knows in another form belongs to other messages."""
        if isinstance(error, DuplicateSequenceError):
            # With at most MOST_BATCHES batches, the broker remembers all of them.
            error = RepeatedTokenError(
                "the token was used for other messages, or for these in other batches; take another"
            )
        if error.retryable or isinstance(error, SequenceGapError | ProducerFencedError):
            return super().refused(base_sequence, error)
        self.fail(error)  # no other batch may take the sequence of this one
        return Verdict.GO_ON
