"""Starts each system, and states the meaning of its acknowledgements."""

from __future__ import annotations

from benchmarks.systems._base import Server, System
from benchmarks.systems.cluster import Cluster
from benchmarks.systems.danube import Danube
from benchmarks.systems.grpc_aio import GrpcAio
from benchmarks.systems.jetstream import JetStream
from benchmarks.systems.metadata import Etcd, Members
from benchmarks.systems.redis import Redis

__all__ = ["ALL_SYSTEMS", "Server", "System"]

ALL_SYSTEMS: dict[str, System] = {
    system.name: system for system in (Danube(), JetStream(), Redis(), GrpcAio(), Members(), Etcd(), Cluster())
}
"""By name; the first is the one that the others are compared with."""
