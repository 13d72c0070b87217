"""``danube_schema.SchemaRegistry``: not implemented yet; every method returns UNIMPLEMENTED.

Producers that name a schema subject are refused (see :mod:`danube.compat.producers`), because no subject exists.
"""

from __future__ import annotations

from typing import Final

from danube.compat.methods import not_here
from danube.compat.proto import danube_schema_pb2 as pb
from danube.wire import Service

__all__ = ["schema_service"]

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["SchemaRegistry"]


def schema_service() -> Service:
    """Return the methods, by path."""
    why = "this broker has no schema registry yet; send and consume messages without a schema"
    return dict(
        not_here(f"/{_SERVICE.full_name}/{method.name}", getattr(pb, method.input_type.name), why)
        for method in _SERVICE.methods
    )
