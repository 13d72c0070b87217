"""``danube_admin.BrokerAdmin`` and ``ClusterAdmin``: the brokers of the cluster, for upstream's tools.

Brokers have the ids 1, 2 and so on. The leader among them is the one that coordinates. ``ClusterStatus`` is about the
group that keeps the metadata; its members are shown by the ids of their brokers, as far as these answer. To unload a
broker is to drain it; to rebalance is to move topics until the load is even.
"""

from __future__ import annotations

from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Final

from danube.compat.admin_methods import methods
from danube.compat.discovery import broker_url, serves_tls, url_of
from danube.compat.proto import danube_admin_pb2 as pb
from danube.model.cluster_api import (
    MOST_PLANNED,
    ActivateBroker,
    BalanceCluster,
    BrokerRow,
    ClusterStatus,
    DrainBroker,
    GetClusterStatus,
    MetadataMember,
)
from danube.model.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnimplementedError
from danube.wire import Context, Service

if TYPE_CHECKING:
    from danube.broker.faces import Served

__all__ = ["BrokerAdmin", "ClusterAdmin"]

_ALONE: Final = "this broker is the only one"
_STATES: Final = {"active": "active", "draining": "draining", "stopping": "draining"}
"""What upstream's tools call the states of a broker."""
_UNEVEN: Final = 0.25
"""A broker that is by more than this share above or below the mean load counts as overloaded or underloaded."""


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

    async def _status(self) -> ClusterStatus:
        return await self._broker.operations.cluster.status(GetClusterStatus(gather=False))

    async def list_brokers(self, _request: pb.Empty, _context: Context) -> pb.BrokerListResponse:
        """List the brokers that run."""
        status = await self._status()
        return pb.BrokerListResponse(brokers=[self._shown(status, row) for row in status.brokers if row.session])

    def _shown(self, status: ClusterStatus, row: BrokerRow) -> pb.BrokerInfo:
        own, secure = row.broker == status.broker, serves_tls(self._broker)
        admin = self._broker.admin_addresses[0] if own and self._broker.admin_addresses else row.admin_address
        role = "Cluster_Leader" if row.coordinator else "Cluster_Follower"
        return pb.BrokerInfo(
            broker_id=str(row.broker),
            broker_addr=broker_url(self._broker) if own else url_of(row.address, secure),
            broker_role=role if status.coordinator else "None",
            admin_addr=url_of(admin, secure) if admin else "",
            broker_status=_STATES.get(row.state, row.state),
        )

    async def get_leader_broker(self, _request: pb.Empty, _context: Context) -> pb.BrokerResponse:
        """Return the broker that coordinates, or ``not_found``."""
        coordinator = (await self._status()).coordinator
        return pb.BrokerResponse(leader=str(coordinator) if coordinator else "not_found")

    async def list_namespaces(self, _request: pb.Empty, _context: Context) -> pb.NamespaceListResponse:
        """List the namespaces."""
        return pb.NamespaceListResponse(namespaces=self._broker.directory.catalogue.namespaces)

    async def _find(self, broker_id: str) -> tuple[ClusterStatus, BrokerRow]:
        """Return a broker by its id.

        Raises:
            InvalidArgumentError: no broker is named.
            NotFoundError: it does not exist.
        """
        if not broker_id:
            raise InvalidArgumentError("the broker_id is missing; ListBrokers returns it")
        status = await self._status()
        row = next((each for each in status.brokers if str(each.broker) == broker_id), None)
        if row is None:
            known = ", ".join(str(each.broker) for each in status.brokers)
            raise NotFoundError(f"broker {broker_id!r} does not exist; the brokers of this cluster are {known}")
        return status, row

    async def unload_broker(self, request: pb.UnloadBrokerRequest, _context: Context) -> pb.UnloadBrokerResponse:
        """Drain a broker, and say how far it is; its topics move afterwards. The same call says it again.

        Raises:
            InvalidArgumentError: no broker is named.
            NotFoundError: it does not exist.
            FailedPreconditionError: there is no other active broker.
            UnimplementedError: only some namespaces are named.
        """
        status, row = await self._find(request.broker_id)
        if request.namespaces_include or request.namespaces_exclude:
            raise UnimplementedError(
                "a broker is unloaded as a whole, without namespaces_include and namespaces_exclude; single topics are"
                " moved by danube topics move"
            )
        if _is_alone(status):
            raise FailedPreconditionError(
                f"broker {request.broker_id!r} cannot be unloaded: {_ALONE}, so its topics cannot be moved; end it with"
                " SIGTERM, which drains it"
            )
        found = await self._broker.operations.moves.drain(DrainBroker(row.name, request.dry_run))
        return pb.UnloadBrokerResponse(
            started=found.state == "draining",
            total=found.topics,
            failed=found.staying,
            pending=found.topics - found.staying,
            failed_topics=[each.topic for each in found.named],
        )

    async def activate_broker(self, request: pb.ActivateBrokerRequest, _context: Context) -> pb.ActivateBrokerResponse:
        """Have a broker get topics again.

        Raises:
            InvalidArgumentError: no broker is named.
            NotFoundError: it does not exist.
            FailedPreconditionError: it is shutting down, or is away.
        """
        _, row = await self._find(request.broker_id)
        if row.state == "stopping":
            raise FailedPreconditionError(f"broker {row.name} is draining and will end; start it again")
        if row.state not in ("active", "draining"):
            raise FailedPreconditionError(f"broker {row.name} is {row.state}; start it")
        found = await self._broker.operations.moves.activate(ActivateBroker(row.name))
        return pb.ActivateBrokerResponse(success=found.state == "active")

    async def get_cluster_balance(
        self, _request: pb.ClusterBalanceRequest, _context: Context
    ) -> pb.ClusterBalanceResponse:
        """Return the balance of the load of the brokers that run: the number of their topics and partitions."""
        rows = [row for row in (await self._status()).brokers if row.session]
        loads = [float(row.topics) for row in rows]
        mean = fmean(loads) if loads else 0.0
        deviation = pstdev(loads) if loads else 0.0
        return pb.ClusterBalanceResponse(
            coefficient_of_variation=deviation / mean if mean else 0.0,
            mean_load=mean,
            max_load=max(loads, default=0.0),
            min_load=min(loads, default=0.0),
            std_deviation=deviation,
            broker_count=len(rows),
            brokers=[
                pb.BrokerLoadInfo(
                    broker_id=row.broker,
                    load=row.topics,
                    topic_count=row.topics,
                    is_overloaded=row.topics > mean * (1 + _UNEVEN),
                    is_underloaded=row.topics < mean * (1 - _UNEVEN),
                )
                for row in rows
            ],
            assignment_strategy="Fair",
        )

    async def trigger_rebalance(self, request: pb.RebalanceRequest, _context: Context) -> pb.RebalanceResponse:
        """Order topics to move until the load is even; say which, and how many were ordered.

        That there is nothing to move is said in the field for errors, as upstream does.
        """
        if _is_alone(await self._status()):
            return pb.RebalanceResponse(success=True, error_message=f"nothing to move: {_ALONE}")
        most = request.max_moves or MOST_PLANNED
        plan = await self._broker.operations.moves.balance(
            BalanceCluster(request.dry_run, max(1, min(MOST_PLANNED, most)))
        )
        problems = [row.problem for row in plan.moves if row.problem] + plan.silent
        return pb.RebalanceResponse(
            success=not problems,
            moves_executed=plan.ordered,
            proposed_moves=[
                pb.ProposedMove(
                    topic_name=row.topic,
                    from_broker=row.source,
                    to_broker=row.target,
                    reason=row.why,
                )
                for row in plan.moves
            ],
            error_message="; ".join(problems[:5]) if plan.moves or problems else "nothing to move: the load is even",
        )


class ClusterAdmin:
    """Handlers of the service."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker

    def service(self) -> Service:
        """Return the methods, by path."""
        return methods(
            "ClusterAdmin",
            {"ClusterStatus": self.cluster_status},
            "the members that keep the metadata cannot be changed by this call: brokers join with danube serve --join",
        )

    async def cluster_status(self, _request: pb.Empty, _context: Context) -> pb.ClusterStatusResponse:
        """Return the members that keep the metadata, by the ids of their brokers.

        Metadata that are not kept by the brokers have one voter: this broker, which leads.
        """
        status = await self._broker.operations.cluster.status(GetClusterStatus())
        metadata, me = status.metadata, status.broker
        address = self._broker.runtime.addresses[0]
        if not metadata.members:
            return pb.ClusterStatusResponse(leader_id=me, voters=[me], self_node_id=me, raft_addr=address)
        own = next((each.applied for each in metadata.members if each.broker == me), metadata.committed)
        leader = next((_node_id(each) for each in metadata.members if each.role == "leader"), 0)
        return pb.ClusterStatusResponse(
            leader_id=leader,
            current_term=metadata.term,
            last_applied=max(0, own),
            voters=[_node_id(each) for each in metadata.members if each.role != "learner"],
            learners=[_node_id(each) for each in metadata.members if each.role == "learner"],
            self_node_id=me,
            raft_addr=address,
        )


def _node_id(member: MetadataMember) -> int:
    """Return the id of a member's broker, or the member's own while that broker does not answer."""
    return member.broker or member.member


def _is_alone(status: ClusterStatus) -> bool:
    return sum(row.session > 0 for row in status.brokers) < 2
