"""Policies of topics: which level says what, and how a change takes effect.

Four places speak about a topic, the nearest first::

    topic        TopicRecord.policies          /topics/{namespace}/{topic}
    namespace    NamespaceRecord.policies      /namespaces/{namespace}
    broker       set by command                /policies
    broker       the configuration             [policies]

Each says something about some policies and nothing about the others; a policy is what the nearest one says. A change
is stored and then put into effect on every living topic below its target. A partitioned topic has one record, and so
do its partitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from danube.model import Durability, TopicPolicies
from danube.model.errors import FailedPreconditionError, LimitExceededError
from danube.model.names import validate_namespace, validate_topic
from danube.model.policy_api import PolicyReport

if TYPE_CHECKING:
    from danube.broker.broker import Broker
    from danube.broker.directory.catalogue import Catalogue
    from danube.broker.directory.records import TopicRecord

__all__ = ["EffectivePolicies", "PolicyBook", "change_policies", "stack"]

_TOPICS_PER_TURN: Final = 500
"""After so many topics a change lets other tasks run."""


class EffectivePolicies(NamedTuple):
    """What counts, and whoever says it."""

    values: TopicPolicies
    sources: Mapping[str, str]
    """``topic``, ``namespace`` or ``broker`` for each policy that is set."""

    def said(self, policy: str) -> str:
        """Return a policy as error messages print it: name, value and level."""
        return f"policy {policy} = {getattr(self.values, policy)} (set for the {self.sources[policy]})"

    def check_room(self, where: str, policy: str, taken: int, limit_name: str = "", limit: float = math.inf) -> None:
        """Refuse one more of something.

        Args:
            where: of which topic or subscription, for the message.
            policy: its name.
            taken: how many there are.
            limit_name, limit: the broker's own bound, which a policy cannot lift.

        Raises:
            LimitExceededError: there are as many as may be.
        """
        allowed = getattr(self.values, policy)
        if allowed is not None and taken >= allowed:
            raise LimitExceededError(
                f"{where}: {self.said(policy)} is reached; wait until one is gone, or change the policy"
            )
        if taken >= limit:
            raise LimitExceededError(f"{where}: limit {limit_name} = {limit} is reached")


def stack(levels: Sequence[tuple[str, TopicPolicies]]) -> EffectivePolicies:
    """Lay levels (name and policies) on top of each other, the nearest first."""
    values = TopicPolicies()
    sources: dict[str, str] = {}
    for level, policies in reversed(levels):
        values = policies.over(values)
        for name in policies.__struct_fields__:
            if getattr(policies, name) is not None:
                sources[name] = level
    return EffectivePolicies(values, sources)


class PolicyBook:
    """The policies of all levels.

    Args:
        catalogue: which has the stored ones.
        configured: those of the configuration.
    """

    def __init__(self, catalogue: Catalogue, configured: TopicPolicies) -> None:
        self._catalogue = catalogue
        self._configured = configured

    def of_topic(self, name: str, record: TopicRecord) -> EffectivePolicies:
        """Return what counts for a topic (or a partition of it) with this record."""
        return stack([("topic", record.policies), *self._above(name)])

    def _above(self, name: str) -> list[tuple[str, TopicPolicies]]:
        return [("namespace", self._catalogue.namespace_policies(validate_topic(name).namespace)), *self._broker()]

    def _broker(self) -> list[tuple[str, TopicPolicies]]:
        return [("broker", self._catalogue.broker_policies), ("broker", self._configured)]

    def report(self, target: str) -> PolicyReport:
        """Return the policies of the broker (``""``), a namespace or a topic; of a partition, those of its topic.

        Raises:
            NamespaceNotFoundError, TopicNotFoundError: there is no such target.
        """
        if target.startswith("/"):
            own, levels = self._topic_levels(target)
        elif target:
            own = self._catalogue.namespace_policies(validate_namespace(target))
            levels = [("namespace", own), *self._broker()]
        else:
            own, levels = self._catalogue.broker_policies, self._broker()
        values, sources = stack(levels)
        return PolicyReport(target, own, values, dict(sources))

    def _topic_levels(self, name: str) -> tuple[TopicPolicies, list[tuple[str, TopicPolicies]]]:
        validate_topic(name)
        record = self._catalogue.find(name) or self._catalogue.locate(name)[0]
        return record.policies, [("topic", record.policies), *self._above(name)]


async def change_policies(broker: Broker, target: str, changes: Mapping[str, Any]) -> None:
    """Change policies of a target (see :meth:`PolicyBook.report`) and put them into effect.

    Args:
        broker: whose policies they are.
        target: a partition is refused: policies belong to the topic as a whole.
        changes: names and plain values; None takes away what the target says.

    Raises:
        InvalidArgumentError: an unknown name, or a value that cannot be.
        NamespaceNotFoundError, TopicNotFoundError: there is no such target.
        FailedPreconditionError: a partition, or history of a topic that keeps none.
        StorageUnavailableError: a topic of durability ``remote``, and its storage does not answer: it may still happen,
            unless its topics are not served yet.
    """
    catalogue = broker.catalogue
    if not target.startswith("/"):
        if target:
            await catalogue.change_namespace_policies(target, changes)
        else:
            await catalogue.change_broker_policies(changes)
        topics = list(catalogue.topics(target))
        await _put_into_effect(broker, topics)
        _tell_manifests_above(broker, topics)
        return
    validate_topic(target)
    known = catalogue.find(target)
    if known is not None:
        _check_history(target, known, changes)
        if known.durability is Durability.REMOTE:
            # While records are read from the bucket, they replace what is changed here.
            await broker.remote.open(known.storage)
    record = await catalogue.change_topic_policies(target, changes)
    await _put_into_effect(broker, [(target, record)])
    # A bucket that holds parts of a topic has a copy of its record, too.
    broker.history.tell(record.storage, {target: catalogue.encode(record)})
    if record.durability is Durability.REMOTE:
        await broker.remote.changed(target, record)


def _check_history(name: str, record: TopicRecord, changes: Mapping[str, Any]) -> None:
    if record.durability is Durability.NONE:
        for policy in ("retention", "message_ttl_s"):
            if changes.get(policy):
                raise FailedPreconditionError(
                    f"topic {name!r} has durability 'none': it keeps nothing, so {policy} means nothing"
                )


async def _put_into_effect(broker: Broker, topics: Sequence[tuple[str, TopicRecord]]) -> None:
    """Let living topics and their partitions know."""
    for count, (name, _) in enumerate(topics, 1):
        record = broker.catalogue.find(name)  # another change may have come while this one let others run
        if record is not None:
            policies = broker.policies.of_topic(name, record)
            for topic in broker.living(name, record):
                topic.apply_policies(policies)
        if not count % _TOPICS_PER_TURN:
            await trio.lowlevel.checkpoint()
    broker.expiry.look_again()
    broker.history.keep_now()


def _tell_manifests_above(broker: Broker, topics: Sequence[tuple[str, TopicRecord]]) -> None:
    """What a namespace or the broker says is in the buckets of its topics: a restore has to know it."""
    storages: dict[str, dict[str, bytes]] = {}
    remote: set[str] = set()
    for name, record in topics:
        storages.setdefault(record.storage, {}).update(broker.catalogue.records_above(name))
        if record.durability is Durability.REMOTE:
            remote.add(record.storage)
    for storage, records in storages.items():
        broker.history.tell(storage, records, always=storage in remote)
