"""What the process that examines schemas and payloads is asked, and answers. Pure.

Messages are frames: the length in four bytes, big-endian, and a msgpack array. The process says once that it is ready,
with an empty answer; then it answers each request.
"""

from __future__ import annotations

from typing import Final

import msgspec

from danube.model.errors import DanubeError, InvalidSchemaError, SchemaPayloadError, from_wire, to_wire
from danube.schema.examine import Examination, Finding
from danube.schema.limits import DEFAULT_LIMITS, SchemaLimits
from danube.schema.payloads import PayloadCheck

__all__ = [
    "HEAD_BYTES",
    "READY",
    "Answer",
    "Request",
    "check_answer",
    "frame",
    "length_of",
    "outcome",
    "refusal",
]

HEAD_BYTES: Final = 4
"""Of a frame before its content."""
_MOST_BYTES: Final = 256 << 20


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One examination of a schema, or one check of payloads."""

    examination: Examination | None
    limits: SchemaLimits = DEFAULT_LIMITS
    payloads: PayloadCheck | None = None


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one request: a finding, nothing if payloads fit their schemas, or an error."""

    finding: Finding | None
    status: int = 0
    code: str = ""
    message: str = ""


READY: Final = Answer(None)
"""Says that the process is ready."""


def refusal(error: BaseException, what: type[InvalidSchemaError | SchemaPayloadError] = InvalidSchemaError) -> Answer:
    """Return the answer for a request that has failed.

    Args:
        error: how.
        what: the error to report for one that is none of Danube's: of a schema, or of payloads.
    """
    if not isinstance(error, DanubeError):
        # A library has failed in a way that its callers did not expect: with another schema or payload it works.
        text = "" if isinstance(error, MemoryError | RecursionError) else f": {error}"
        it = "the schema cannot be examined" if what is InvalidSchemaError else "the payloads cannot be checked"
        error = what(f"{it}: {type(error).__name__}{text}")
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


def check_answer(answer: Answer) -> None:
    """Raise the error that the answer to a check of payloads has: DanubeError."""
    if answer.status:
        raise from_wire(answer.status, answer.code, answer.message)


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
