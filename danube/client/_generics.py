"""Type variables of producers, consumers, messages and batches, for type checkers.

Their defaults stand for clients without ``schema=``: ``Producer`` means a producer of bytes, ``Message`` a message of
bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["P", "SchemaOf", "V"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from danube.client._payloads import BytesLike
    from danube.schema.typed import Avro, Json, Protobuf, Subject

    P = TypeVar("P", default=BytesLike)
    """What a producer takes."""
    V = TypeVar("V", default=bytes)
    """The values of messages."""
    SchemaOf = type[V] | Avro[V] | Json[V] | Protobuf[V] | Subject[V]
    """What ``schema=`` takes."""
else:
    from typing import TypeVar

    P = TypeVar("P")
    V = TypeVar("V")
    SchemaOf = Any
