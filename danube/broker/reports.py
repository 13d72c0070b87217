"""What a broker tells about itself: its status, what may need attention, its connections and its metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from danube.broker.operations.info import broker_info, facts_of

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.metrics.collecting import Metrics
    from danube.broker.moving import MoveFigures
    from danube.broker.operations.wellness import BrokerFacts
    from danube.broker.runtime.ports import Ports
    from danube.broker.runtime.publish_figures import Latencies
    from danube.broker.runtime.pulse import Pulse
    from danube.metadata import ObservedStore
    from danube.model import api
    from danube.model.connection_api import ConnectionInfo
    from danube.storage import Storage

__all__ = ["Reports"]


class Reports:
    """What one broker tells about itself.

    Args:
        directory: its topics.
        ports: which serve.
        pulse: of its loop.
        latencies: of publishing and of syncs.
        started_at: the time of its start, by the clock of the loop.
    """

    def __init__(
        self, directory: Directory, ports: Ports, pulse: Pulse, latencies: Latencies, started_at: float
    ) -> None:
        self._latencies = latencies
        self._directory = directory
        self._ports = ports
        self._pulse = pulse
        self._started_at = started_at

    def info(self) -> api.BrokerInfo:
        """Return its status."""
        return broker_info(
            self._directory,
            connections=self._ports.client.connections,
            uptime_s=trio.current_time() - self._started_at,
            admin_addresses=self._ports.admin_addresses,
            traffic=self._ports.traffic(),
            loop_lag_s=self._pulse.lag_s(),
            publishes=self._latencies.publishes(),
            syncs=self._latencies.syncs(),
        )

    def facts(self) -> BrokerFacts:
        """Return the figures that may need attention."""
        expires_at_s = self._certificate_expires_s()
        return facts_of(
            self._directory,
            connections=self._ports.client.connections,
            loop_lag_s=self._pulse.lag_s(),
            certificate_ends_s=None
            if expires_at_s is None
            else expires_at_s - self._directory.runtime.clock_us() / 1e6,
        )

    def _certificate_expires_s(self) -> float | None:
        return None if self._ports.tls is None else self._ports.tls.expires_at_s

    def connections(self) -> list[ConnectionInfo]:
        """Return the open connections of all ports."""
        return self._ports.connections(self._directory.broker, self._directory.runtime.clock_us())

    def end_connection(self, connection_id: str, reason: str) -> bool:
        """End a connection by its id; return False if it does not exist."""
        return self._ports.end_connection(self._directory.broker, connection_id, reason)

    def metrics(
        self,
        store: ObservedStore,
        lanes: dict[str, Storage],
        *,
        moves: MoveFigures,
        staged_bytes: Callable[[], int],
        draining: Callable[[], bool],
        denials: Callable[[], tuple[int, int] | None],
    ) -> Metrics:
        """Return what collects its metrics.

        Args:
            store: its metadata.
            lanes: to its storages.
            moves: counts how moves of its topics end.
            staged_bytes: returns what staged writes take on its disk.
            draining: returns whether it shuts down.
            denials: returns how many calls were denied, and how many credentials refused; None: all calls are allowed.
        """
        from danube.broker.metrics.collecting import Metrics, Sources  # not every broker is asked

        ports = self._ports
        return Metrics(
            self._directory,
            Sources(
                store=store,
                servers=lambda: [server for server in (ports.client, ports.admin) if server is not None],
                pulse=self._pulse,
                lanes=lanes,
                moves=moves,
                staged_bytes=staged_bytes,
                draining=draining,
                read_process=self._directory.runtime.seams.read_process,
                denials=denials,
                certificate_expires_s=self._certificate_expires_s,
            ),
        )
