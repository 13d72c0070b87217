"""The use cases that all protocols share, as faces call them. Interfaces only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from danube.model import api, cluster_api, policy_api, security_api
    from danube.model.ids import BrokerId, TopicId
    from danube.security.roles import Principal

__all__ = [
    "ServedClusterOperations",
    "ServedMoveOperations",
    "ServedOperations",
    "ServedPolicyOperations",
    "ServedSecurityOperations",
    "ServedSubscriptionOperations",
    "ServedTopicOperations",
]


class ServedTopicOperations(Protocol):
    """Use cases of namespaces and topics."""

    async def create_namespace(self, request: api.CreateNamespace) -> object:
        """Create a namespace."""
        ...

    async def delete_namespace(self, request: api.DeleteNamespace) -> object:
        """Delete an empty namespace."""
        ...

    async def create_topic(self, request: api.CreateTopic) -> object:
        """Create a topic."""
        ...

    async def bind_subject(self, topic: str, subject: str, *, unless_other: bool = ...) -> None:
        """Give a topic a subject of the schema registry, whose existence is not checked; empty: it has none any more.

        Raises:
            TopicNotFoundError: it does not exist.
            FailedPreconditionError: it is a partition, or has another subject, and ``unless_other`` is set.
        """
        ...

    async def delete_topic(self, request: api.DeleteTopic) -> object:
        """Delete a topic with all its messages and subscriptions."""
        ...


class ServedSubscriptionOperations(Protocol):
    """Use cases of subscriptions."""

    async def unsubscribe(self, topic: str, subscription: str) -> None:
        """Delete a subscription of a topic, or of all partitions, and its planned policies where it does not exist.

        Raises:
            TopicNotFoundError, SubscriptionNotFoundError: the topic or the subscription does not exist.
        """
        ...


class ServedPolicyOperations(Protocol):
    """Use cases of policies."""

    async def change(self, request: policy_api.ChangePolicies) -> policy_api.PolicyReport:
        """Change policies of the broker, a namespace or a topic.

        Raises:
            TopicNotFoundError, NamespaceNotFoundError: the target does not exist.
            InvalidArgumentError: an unknown name, or an invalid value.
        """
        ...

    async def plan_subscription(self, request: policy_api.ChangeSubscriptionPolicy) -> None:
        """Change the policy of a subscription; where it does not exist yet, the change applies once it is created.

        Raises:
            InvalidArgumentError: a name, or the policy, is invalid.
            TopicNotFoundError: the topic does not exist.
            LimitExceededError: policies are planned for too many subscriptions that do not exist.
            StorageUnavailableError: the storage of the topic does not answer: the change may still take effect.
        """
        ...


class ServedClusterOperations(Protocol):
    """Use cases of the cluster."""

    @property
    def me(self) -> BrokerId:
        """The number of this broker."""
        ...

    def owner(self, topic_id: TopicId) -> BrokerId | None:
        """Return the broker to which a topic or partition is assigned, whether it runs or not; None: to none."""
        ...

    async def status(self, request: cluster_api.GetClusterStatus) -> cluster_api.ClusterStatus:
        """Return the status of the cluster."""
        ...


class ServedMoveOperations(Protocol):
    """Use cases that move topics between brokers."""

    async def drain(self, request: cluster_api.DrainBroker) -> cluster_api.BrokerDrain:
        """Have a broker give all its topics away, or say how far it is.

        Raises:
            InvalidArgumentError, NotFoundError: there is no such broker.
            FailedPreconditionError: it was declared gone, or no other broker is active.
        """
        ...

    async def activate(self, request: cluster_api.ActivateBroker) -> cluster_api.BrokerDrain:
        """Have a broker get topics again; raises as :meth:`drain`."""
        ...

    async def balance(self, request: cluster_api.BalanceCluster) -> cluster_api.BalancePlan:
        """Order topics to move until the load is even.

        Raises:
            FailedPreconditionError: there is no other broker.
        """
        ...


class ServedSecurityOperations(Protocol):
    """Use cases of access control; the first argument of each is the principal that asks."""

    async def list_roles(self, by: Principal, /) -> security_api.RoleList:
        """Return all roles."""
        ...

    async def put_role(self, by: Principal, request: security_api.PutRole, /) -> object:
        """Add or replace a role.

        Raises:
            FailedPreconditionError: the role is built in.
        """
        ...

    async def drop_role(self, by: Principal, request: security_api.DropRole, /) -> object:
        """Remove a role.

        Raises:
            NotFoundError: there is no such role.
            FailedPreconditionError: it is built in, or in use.
        """
        ...

    async def list_bindings(self, by: Principal, request: security_api.ListBindings, /) -> security_api.BindingList:
        """Return a page of bindings."""
        ...

    async def show_binding(self, by: Principal, binding_id: str, /) -> security_api.BindingRow:
        """Return a binding; raise NotFoundError if there is none that the caller may see."""
        ...

    async def put_binding(self, by: Principal, request: security_api.PutBinding, /) -> object:
        """Add or replace a binding.

        Raises:
            FailedPreconditionError: it would replace the last administrator.
        """
        ...

    async def drop_binding(self, by: Principal, request: security_api.DropBinding, /) -> object:
        """Remove a binding.

        Raises:
            NotFoundError: there is no such binding.
            FailedPreconditionError: it is that of the last administrator.
        """
        ...


class ServedOperations(Protocol):
    """The use cases of the broker, as far as faces offer them."""

    @property
    def cluster(self) -> ServedClusterOperations:
        """Of the cluster."""
        ...

    @property
    def moves(self) -> ServedMoveOperations:
        """Of moves between brokers."""
        ...

    @property
    def topics(self) -> ServedTopicOperations:
        """Of namespaces and topics."""
        ...

    @property
    def subscriptions(self) -> ServedSubscriptionOperations:
        """Of subscriptions."""
        ...

    @property
    def policies(self) -> ServedPolicyOperations:
        """Of policies."""
        ...

    @property
    def security(self) -> ServedSecurityOperations:
        """Of access control."""
        ...
