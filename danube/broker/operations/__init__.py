"""Operations: the use cases of a broker, shared by all protocols; take plain values and return API structs.

This package does not know the wire. A protocol converts its requests to these calls, and their results and errors to
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from danube.broker.operations.backups import BackupOperations
from danube.broker.operations.cluster import ClusterOperations
from danube.broker.operations.everywhere import Everywhere
from danube.broker.operations.logs import LogOperations
from danube.broker.operations.policies import PolicyOperations
from danube.broker.operations.storages import StorageOperations
from danube.broker.operations.subscriptions import SubscriptionOperations
from danube.broker.operations.topics import TopicOperations
from danube.model.history_api import HistoryMethod
from danube.model.policy_api import PolicyMethod

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.metrics.collecting import Metrics
    from danube.broker.operations.connections import ConnectionOperations, OpenConnections
    from danube.broker.operations.filling import FillOperations
    from danube.broker.operations.forgetting import ForgetOperations
    from danube.broker.operations.inspecting import InspectOperations
    from danube.broker.operations.jobs import JobOperations
    from danube.broker.operations.moving import MoveOperations
    from danube.broker.operations.overviews import OverviewOperations
    from danube.broker.operations.schemas import SchemaOperations
    from danube.broker.operations.security import SecurityOperations
    from danube.broker.operations.wellness import BrokerFacts
    from danube.broker.runtime.log_levels import LogLevels
    from danube.broker.schemas.service import SchemaService
    from danube.model import Limits, api

__all__ = ["Operations"]


class Operations:
    """All operations of a broker.

    Args:
        directory: of the topics.
        info: returns the status of the broker.
        cluster: operations on the cluster.
        backups: of the metadata.
        security: makes the operations on access control, when they are first used.
        log_levels: of the process.
        limits: of the broker.
        connections: the open connections of the broker.
        facts: returns the figures of the broker that may need attention.
        metrics: makes the metrics, when they are first used.
        schemas: makes the schema registry, when it is first used.
    """

    def __init__(
        self,
        directory: Directory,
        info: Callable[[], api.BrokerInfo],
        cluster: ClusterOperations,
        backups: BackupOperations,
        security: Callable[[], SecurityOperations],
        log_levels: LogLevels,
        limits: Limits,
        connections: OpenConnections,
        facts: Callable[[], BrokerFacts],
        metrics: Callable[[], Metrics],
        schemas: Callable[[], SchemaService],
    ) -> None:
        self.info = info
        self.cluster = cluster
        self.backups = backups
        self.log_levels = log_levels
        self._limits = limits
        self._make_security = security
        self._directory = directory
        self._connections = connections
        self._facts = facts
        self.everywhere = Everywhere(directory, lambda: (self.connections, self.overviews))
        self._make_metrics = metrics
        self._make_schemas = schemas
        self.topics = TopicOperations(directory)
        self.policies = PolicyOperations(directory)
        self.subscriptions = SubscriptionOperations(directory, self.policies)
        self.storages = StorageOperations(directory)
        self.topics.across.first[HistoryMethod.CHANGE_RETENTION] = self.storages.set_retention
        self.topics.across.first[PolicyMethod.CHANGE_SUBSCRIPTION] = self.policies.judge_subscription
        self.logs = LogOperations(directory)

    @cached_property
    def moves(self) -> MoveOperations:
        """Operations that move topics between brokers; loaded when they are first used."""
        from danube.broker.operations.moving import MoveOperations

        return MoveOperations(self._directory, self.cluster)

    @cached_property
    def forgetting(self) -> ForgetOperations:
        """Operations on brokers that will not return; loaded when they are first used."""
        from danube.broker.operations.forgetting import ForgetOperations

        return ForgetOperations(self._directory, self.cluster.remove_member)

    @cached_property
    def filling(self) -> FillOperations:
        """Operations that fill declared gaps; loaded when they are first used."""
        from danube.broker.operations.filling import FillOperations

        return FillOperations(self._directory)

    @cached_property
    def connections(self) -> ConnectionOperations:
        """Operations on connections; most brokers are never asked."""
        from danube.broker.operations.connections import ConnectionOperations

        return ConnectionOperations(self._connections, self.everywhere)

    @cached_property
    def overviews(self) -> OverviewOperations:
        """Operations on everything at once; loaded like :attr:`connections`."""
        from danube.broker.operations.overviews import OverviewOperations

        return OverviewOperations(self._directory, self.everywhere, self._facts)

    @cached_property
    def inspecting(self) -> InspectOperations:
        """Operations that inspect the broker from within; loaded like :attr:`connections`."""
        from danube.broker.operations.inspecting import InspectOperations

        return InspectOperations(self._directory, self.storages)

    @cached_property
    def jobs(self) -> JobOperations:
        """Operations on jobs that report to this broker; most brokers have none."""
        from danube.broker.operations.jobs import JobOperations

        return JobOperations(self._limits)

    @cached_property
    def security(self) -> SecurityOperations:
        """Operations on access control."""
        return self._make_security()

    @cached_property
    def registry(self) -> SchemaService:
        """The schema registry; loaded like :attr:`connections`."""
        return self._make_schemas()

    @cached_property
    def schemas(self) -> SchemaOperations:
        """Operations on schemas and subjects."""
        from danube.broker.operations.schemas import SchemaOperations

        return SchemaOperations(self.registry, self.topics)

    @cached_property
    def metrics(self) -> Metrics:
        """The metrics of the broker."""
        return self._make_metrics()
