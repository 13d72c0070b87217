"""Encodes deliveries for the wire without copying the bytes of the stored batch.

::

    +---------------------------------------------------------+------+------------+----------------------+
    | msgpack array of api.ConsumeBatch, up to its last field ... | 0xc6 | size, u32  | the producer's part  |
    +---------------------------------------------------------+------+------------+----------------------+
                                                                       big-endian   not copied
"""

from __future__ import annotations

import msgspec

from danube.dispatch import Delivery
from danube.log.cache import StoredBatch
from danube.model import api

__all__ = ["encode_delivery"]

_encode = msgspec.msgpack.Encoder().encode
_BIN_32 = b"\xc6"
_EMPTY_BIN = b"\xc4\x00"


def encode_delivery(batch: StoredBatch, delivery: Delivery, producer: str, part: bytes) -> tuple[bytes, bytes]:
    """Return the two buffers of a delivery; ``part`` is the batch's own or a slice of it."""
    head = _encode(
        api.ConsumeBatch(
            batch.base_offset,
            batch.append_time_us,
            delivery.attempt,
            [] if delivery.whole else delivery.ranges,
            producer,
            delivery.size_bytes,
            b"",
        )
    )
    # The part is the last field: its msgpack header is written by hand to avoid copying its bytes.
    assert head.endswith(_EMPTY_BIN)
    return head[:-2] + _BIN_32 + len(part).to_bytes(4, "big"), part
