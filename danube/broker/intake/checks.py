"""Checks of incoming batches against the limits and policies of a topic, for all protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from danube.model.batch import PART_OVERHEAD, BatchFlags, BatchHeader, Codec, open_raw
from danube.model.errors import InvalidArgumentError, LimitExceededError, MessageTooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from danube.model.limits import Limits

__all__ = ["Bounded", "check_batch", "check_header", "check_messages", "has_size"]


class Bounded(Protocol):
    """The part of an intake that has the bounds of its topic."""

    max_message_bytes: int

    def said_max_message_bytes(self) -> str:
        """Return the largest size of a message as printed in error messages."""
        ...

    def check_schema(self, header: BatchHeader, /) -> None:
        """Raise SchemaMismatchError if the batch must name a schema of the topic's subject, and does not."""
        ...

    def check_delivery_time(self, deliver_at_us: int, /) -> None:
        """Raise InvalidArgumentError or LimitExceededError if messages may not be delayed until then."""
        ...


_RESERVED_FLAGS: Final = BatchFlags.COMPOSITE | BatchFlags.SLICE
_LAST_CODEC: Final = max(Codec)


def has_size(limits: Limits, header: BatchHeader, part: bytes) -> bool:
    """Whether a batch is within the limits on batches, so that it may be opened."""
    return (
        len(part) <= limits.max_batch_bytes
        and header.unpacked_size <= limits.max_batch_bytes
        and header.record_count <= limits.max_batch_records
    )


def check_batch(intake: Bounded, limits: Limits, header: BatchHeader, part: bytes) -> None:
    """Refuse a batch that violates a limit or policy of its topic, from any sender.

    Args:
        intake: of the topic.
        limits: of the broker.
        header, part: the batch; its checksum is right.

    Raises:
        DanubeError: the message states what is wrong with the batch.
    """
    check_header(intake, limits, header, len(part))
    check_messages(intake.max_message_bytes, intake.said_max_message_bytes, limits, header, part)


def check_header(intake: Bounded, limits: Limits, header: BatchHeader, size: int) -> None:
    """As :func:`check_batch`, but without its messages, which :func:`check_messages` checks.

    Args:
        intake, limits, header: as of :func:`check_batch`.
        size: of the part.
    """
    if size > limits.max_batch_bytes or header.unpacked_size > limits.max_batch_bytes:
        raise MessageTooLargeError(
            f"batch of {size} bytes ({header.unpacked_size} unpacked) is larger than"
            f" max_batch_bytes = {limits.max_batch_bytes}; send smaller batches"
        )
    if header.record_count > limits.max_batch_records:
        raise LimitExceededError(
            f"batch of {header.record_count} messages is larger than max_batch_records = {limits.max_batch_records}"
        )
    intake.check_schema(header)
    if header.deliver_at_us:
        intake.check_delivery_time(header.deliver_at_us)
    if header.flags & _RESERVED_FLAGS:
        raise InvalidArgumentError(f"batch flags {header.flags:#x} are reserved for the broker")
    if header.codec > _LAST_CODEC:
        raise InvalidArgumentError(f"batch codec {header.codec} is unknown; known are none, lz4 and zstd")


def check_messages(
    max_message_bytes: int, said_max: Callable[[], str], limits: Limits, header: BatchHeader, part: bytes
) -> None:
    """Check each message of a batch, if it is large enough to contain one beyond the limit.

    Args:
        max_message_bytes: the largest message of the topic.
        said_max: returns that as printed in error messages.
        limits: of the broker.
        header, part: the batch.

    Raises:
        MessageTooLargeError: a message is larger.
    """
    if header.unpacked_size <= max_message_bytes:
        return
    largest = header.unpacked_size
    if header.record_count > 1:
        largest = max(map(len, open_raw(part, header, limits.max_batch_bytes)))
    if largest > max_message_bytes + PART_OVERHEAD:
        raise MessageTooLargeError(
            f"message of about {largest} bytes is larger than {said_max()}; split it, or raise that"
        )
