"""``danube.StorageService``: refuses to give direct readers the locations of a topic's segments.

Upstream's only caller fetches the objects and decodes them in the upstream broker's format. Ours differs, so such a
reader would report damage or, worse, return invalid messages. It gets an error instead of an address.
"""

from __future__ import annotations

from typing import Final

from danube.compat.methods import not_here
from danube.compat.proto import danube_api_pb2 as pb
from danube.wire import Service

__all__ = ["storage_service"]

_WHY: Final = (
    "segments of this broker have another format than upstream's, which direct readers cannot decode; consume the"
    " topic instead, from 'earliest' if need be"
)


def storage_service() -> Service:
    """Return the methods, by path."""
    return dict([not_here("/danube.StorageService/ListSegmentDescriptors", pb.ListSegmentDescriptorsRequest, _WHY)])
