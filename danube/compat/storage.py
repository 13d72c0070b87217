"""``danube.StorageService``: locations of a topic's segments, for direct readers; refused by this broker.

Its only caller upstream fetches the objects itself and reads them as frames of the upstream broker. Our format differs,
and such a reader would take our segments for damaged or, worse, for messages. So it gets an error message and no
address.
"""

from __future__ import annotations

from typing import Final

from danube.compat.errors import not_here
from danube.compat.proto import danube_api_pb2 as pb
from danube.wire import Service

__all__ = ["storage_service"]

_WHY: Final = (
    "segments of this broker have a format of their own, which readers of upstream segments cannot read; consume the"
    " topic instead, from 'earliest' if need be"
)


def storage_service() -> Service:
    """Return the methods, by path."""
    return dict([not_here("/danube.StorageService/ListSegmentDescriptors", pb.ListSegmentDescriptorsRequest, _WHY)])
