"""``danube_admin.BrokerAdmin`` and ``ClusterAdmin``: describe a cluster of one broker.

The only broker is the leader, the only voter, and perfectly balanced. It cannot be unloaded, since no other broker
could take its topics, and no broker can join it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danube.compat.admin_methods import BROKER_ID, methods
from danube.compat.discovery import broker_url
from danube.compat.proto import danube_admin_pb2 as pb
from danube.model.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from danube.wire import Context, Service

if TYPE_CHECKING:
    from danube.broker.faces import Served

__all__ = ["BrokerAdmin", "ClusterAdmin"]

_ALONE: Final = "this broker is the only one"


class BrokerAdmin:
    """Handlers of the service."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker

    def service(self) -> Service:
        """Return the methods, by path."""
        return methods(
            "BrokerAdmin",
            {
                "ListBrokers": self.list_brokers,
                "GetLeaderBroker": self.get_leader_broker,
                "ListNamespaces": self.list_namespaces,
                "UnloadBroker": self.unload_broker,
                "ActivateBroker": self.activate_broker,
                "GetClusterBalance": self.get_cluster_balance,
                "TriggerRebalance": self.trigger_rebalance,
            },
        )

    async def list_brokers(self, _request: pb.Empty, _context: Context) -> pb.BrokerListResponse:
        """List the one broker."""
        broker = self._broker
        one = pb.BrokerInfo(
            broker_id=str(BROKER_ID),
            broker_addr=broker_url(broker),
            broker_role="Cluster_Leader",
            admin_addr=f"http://{broker.admin_addresses[0]}",
            broker_status="draining" if broker.draining else "active",
        )
        return pb.BrokerListResponse(brokers=[one])

    async def get_leader_broker(self, _request: pb.Empty, _context: Context) -> pb.BrokerResponse:
        """Return the leader."""
        return pb.BrokerResponse(leader=str(BROKER_ID))

    async def list_namespaces(self, _request: pb.Empty, _context: Context) -> pb.NamespaceListResponse:
        """List the namespaces."""
        return pb.NamespaceListResponse(namespaces=self._broker.directory.catalogue.namespaces)

    async def unload_broker(self, request: pb.UnloadBrokerRequest, _context: Context) -> pb.UnloadBrokerResponse:
        """Refuse.

        Raises:
            InvalidArgumentError: no broker is named.
            FailedPreconditionError: there is no other broker.
        """
        _check_id(request.broker_id)
        raise FailedPreconditionError(
            f"broker {request.broker_id!r} cannot be unloaded: {_ALONE}, so its topics cannot be moved; end it with"
            " SIGTERM, which drains it"
        )

    async def activate_broker(self, request: pb.ActivateBrokerRequest, _context: Context) -> pb.ActivateBrokerResponse:
        """Succeed without effect, unless the broker is shutting down.

        Raises:
            InvalidArgumentError: no broker is named.
            NotFoundError: another broker is named.
            FailedPreconditionError: it is draining, which cannot be undone.
        """
        _check_id(request.broker_id)
        if request.broker_id != str(BROKER_ID):
            raise NotFoundError(f"broker {request.broker_id!r} does not exist: {_ALONE}, with id {BROKER_ID}")
        if self._broker.draining:
            raise FailedPreconditionError(f"broker {BROKER_ID} is draining and will end; start it again")
        return pb.ActivateBrokerResponse(success=True)

    async def get_cluster_balance(
        self, _request: pb.ClusterBalanceRequest, _context: Context
    ) -> pb.ClusterBalanceResponse:
        """Return the balance of the load, which is the number of topics and partitions."""
        count = sum(len(record.topic_ids) for _, record in self._broker.directory.catalogue.topics())
        return pb.ClusterBalanceResponse(
            mean_load=count,
            max_load=count,
            min_load=count,
            broker_count=1,
            brokers=[pb.BrokerLoadInfo(broker_id=BROKER_ID, load=count, topic_count=count)],
            assignment_strategy="Fair",
        )

    async def trigger_rebalance(self, _request: pb.RebalanceRequest, _context: Context) -> pb.RebalanceResponse:
        """Report that there is nothing to move, in the field for errors, as upstream does."""
        return pb.RebalanceResponse(success=True, error_message=f"nothing to move: {_ALONE}")


class ClusterAdmin:
    """Handlers of the service."""

    def service(self) -> Service:
        """Return the methods, by path."""
        return methods(
            "ClusterAdmin",
            {"ClusterStatus": self.cluster_status},
            f"brokers cannot form a cluster yet: {_ALONE}, and no node can be added to it, promoted or removed",
        )

    async def cluster_status(self, _request: pb.Empty, _context: Context) -> pb.ClusterStatusResponse:
        """Return the voters. There are no terms and no log entries, since there is no other voter."""
        return pb.ClusterStatusResponse(leader_id=BROKER_ID, voters=[BROKER_ID], self_node_id=BROKER_ID)


def _check_id(broker_id: str) -> None:
    if not broker_id:
        raise InvalidArgumentError("the broker_id is missing; ListBrokers returns it")
