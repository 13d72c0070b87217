"""The topics of the cluster as faces look them up: directory, catalogue, policies. Interfaces only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from danube.broker.faces.topics import ServedTopic
    from danube.model import Durability, TopicPolicies, policy_api
    from danube.model.records import TopicRecord

__all__ = ["ServedCatalogue", "ServedDirectory", "ServedPolicies"]


class ServedDirectory(Protocol):
    """The topics of the broker."""

    @property
    def catalogue(self) -> ServedCatalogue:
        """The records of namespaces and topics."""
        ...

    @property
    def policies(self) -> ServedPolicies:
        """The policies of topics."""
        ...

    @property
    def broker(self) -> str:
        """The name of the broker in its cluster, such as ``b1``."""
        ...

    def find(self, name: str) -> ServedTopic:
        """Return a plain topic or a partition.

        Raises:
            TopicNotFoundError: it does not exist.
            InvalidArgumentError: it is the base name of a partitioned topic.
            NotOwnerError: another broker owns it; the error may have its address.
            OwnerAwayError: it waits for its owner.
            StorageUnavailableError: its storage is unavailable.
        """
        ...

    async def search(self, name: str) -> ServedTopic:
        """As :meth:`find`, but in a cluster read the metadata before saying that it does not exist; raises as that."""
        ...

    async def refresh(self, name: str) -> None:
        """Read the record of a topic again, if other brokers may have changed it.

        Raises:
            DanubeError: the metadata cannot answer.
        """
        ...

    def resolve(self, name: str) -> Sequence[ServedTopic]:
        """Return the topic, or all partitions of a partitioned base name; raises as :meth:`find`."""
        ...

    def kept_topics(self) -> Sequence[ServedTopic]:
        """Return the topics and partitions that have a log."""
        ...

    async def ensure(self, name: str, durability: Durability) -> ServedTopic:
        """Return a topic or a partition; create or enlarge its topic on demand, for clients that never create topics.

        Args:
            name: of a plain topic or of a partition.
            durability: of a topic that is created.

        Raises:
            AlreadyExistsError: a partition of a plain topic, or the base name of a partitioned one.
            TopicNotFoundError: it does not exist, and may not be created.
            UnavailableError: it is being created or deleted; try again.
            InvalidArgumentError, LimitExceededError: there would be too many partitions or topics.
        """
        ...


class ServedCatalogue(Protocol):
    """The records of namespaces and topics."""

    @property
    def namespaces(self) -> list[str]:
        """Names of all namespaces, sorted."""
        ...

    def topics(self, namespace: str = "") -> Iterator[tuple[str, TopicRecord]]:
        """Yield ``(name, record)`` of all topics, sorted; partitioned ones once, under their base name."""
        ...

    def find(self, topic: str) -> TopicRecord | None:
        """Return the record of a plain or base topic, or None."""
        ...

    def locate(self, topic: str) -> tuple[TopicRecord, int]:
        """Return the record of a plain topic or of one partition, and that topic's id.

        Raises:
            TopicNotFoundError: it does not exist.
            InvalidArgumentError: it is the base name of a partitioned topic.
        """
        ...

    def namespace_policies(self, name: str) -> TopicPolicies:
        """Return the policies of a namespace; raise NamespaceNotFoundError if it does not exist."""
        ...


class ServedPolicies(Protocol):
    """The policies of topics."""

    def report(self, target: str) -> policy_api.PolicyReport:
        """Return the policies of the broker, a namespace or a topic: its own, and the effective ones."""
        ...
