"""What the process that examines schemas is asked, and answers. Pure.

Messages are frames: the length in four bytes, big-endian, and a msgpack array. The process says once that it is ready,
with an empty answer; then it answers each request.
"""

from __future__ import annotations

from typing import Final

import msgspec

from danube.model.errors import DanubeError, InvalidSchemaError, from_wire, to_wire
from danube.schema.examine import Examination, Finding
from danube.schema.limits import DEFAULT_LIMITS, SchemaLimits

__all__ = [
    "HEAD_BYTES",
    "MEMORY_BYTES",
    "READY",
    "TIME_S",
    "Answer",
    "Request",
    "frame",
    "length_of",
    "outcome",
    "refusal",
]

HEAD_BYTES: Final = 4
"""Of a frame before its content."""
MEMORY_BYTES: Final = 1 << 30
"""Address space of the process (RLIMIT_AS)."""
TIME_S: Final = 10.0
"""How long one examination may take; then the process is killed."""
_MOST_BYTES: Final = 256 << 20


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One examination."""

    examination: Examination
    limits: SchemaLimits = DEFAULT_LIMITS


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one examination: a finding, or an error."""

    finding: Finding | None
    status: int = 0
    code: str = ""
    message: str = ""


READY: Final = Answer(None)
"""Says that the process is ready."""


def refusal(error: BaseException) -> Answer:
    """Return the answer for an examination that has failed."""
    if isinstance(error, MemoryError | RecursionError):
        error = InvalidSchemaError(f"the schema cannot be examined: {type(error).__name__}")
    elif not isinstance(error, DanubeError):
        # A library has failed in a way that its callers did not expect: with another schema it works.
        error = InvalidSchemaError(f"the schema cannot be examined: {type(error).__name__}: {error}")
    status, code, message, _ = to_wire(error)
    return Answer(None, status, code, message)


def outcome(answer: Answer) -> Finding:
    """Return the finding of an answer.

    Raises:
        DanubeError: the error that it has instead.
    """
    if answer.finding is None:
        raise from_wire(answer.status, answer.code, answer.message)
    return answer.finding


def frame(message: Request | Answer) -> bytes:
    """Return a message as a frame."""
    content = msgspec.msgpack.encode(message)
    return len(content).to_bytes(HEAD_BYTES, "big") + content


def length_of(head: bytes) -> int:
    """Return the length of a frame's content.

    Raises:
        ValueError: no message is so long.
    """
    length = int.from_bytes(head, "big")
    if length > _MOST_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return length
