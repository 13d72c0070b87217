"""Changes of policies: stores them, then applies them to every served topic below their target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import trio

from danube.model.errors import FailedPreconditionError
from danube.model.names import validate_topic

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.model.records import TopicRecord

__all__ = ["bind_subject", "change_policies", "change_quota", "put_into_effect"]

_TOPICS_PER_TURN: Final = 500
"""A change lets other tasks run after this many topics."""


async def change_policies(directory: Directory, target: str, changes: Mapping[str, Any]) -> None:
    """Change policies of a target (see :meth:`PolicyBook.report`) and put them into effect.

    Args:
        directory: of the topics.
        target: a partition is refused: policies belong to the topic as a whole.
        changes: names and plain values; None removes the target's own value.

    Raises:
        InvalidArgumentError: an unknown name, or an invalid value.
        NamespaceNotFoundError, TopicNotFoundError: the target does not exist.
        NotOwnerError, OwnerAwayError: the topic has durability ``remote``, and another broker owns it.
        FailedPreconditionError: a partition, or history policies of a topic that stores no messages.
        StorageUnavailableError: the topic has durability ``remote`` and its storage does not answer: the change may
            still take effect, unless its topics are not served yet.
    """
    catalogue = directory.catalogue
    if not target.startswith("/"):
        if target:
            await catalogue.policy_changes.of_namespace(target, changes)
        else:
            await catalogue.policy_changes.of_broker(changes)
        topics = list(catalogue.topics(target))
        await put_into_effect(directory, topics)
        _tell_manifests_above(directory, topics)
        return
    validate_topic(target)
    known = catalogue.find(target)
    if known is None:
        await directory.refresh(target)
        known = catalogue.find(target)
    if known is not None:
        _check_history(directory, target, known, changes)
        directory.check_bucket(target, known)
        await directory.level(known).prepare_change(known)
    record = await catalogue.policy_changes.of_topic(target, changes)
    await put_into_effect(directory, [(target, record)])
    # A bucket that holds parts of a topic also has a copy of its record.
    directory.history.note_records(record.storage, {target: catalogue.encode(record)})
    await directory.level(record).changed(target, record)


async def bind_subject(directory: Directory, topic: str, subject: str, *, unless_other: bool = False) -> None:
    """Give a plain or partitioned topic a subject of the schema registry, and put it into effect.

    Args:
        directory: of the topics.
        topic: its name.
        subject: empty: it has none any more.
        unless_other: refuse if it has another one.

    Raises:
        TopicNotFoundError: it does not exist.
        FailedPreconditionError: it is a partition, or has another subject.
        NotOwnerError, OwnerAwayError, StorageUnavailableError: as :func:`change_policies`.
    """
    catalogue = directory.catalogue
    validate_topic(topic)
    known = catalogue.find(topic)
    if known is None:
        await directory.refresh(topic)
        known = catalogue.find(topic)
    if known is not None:
        if known.schema_subject == subject:
            return
        directory.check_bucket(topic, known)
        await directory.level(known).prepare_change(known)
    record = await catalogue.policy_changes.bind(topic, subject, unless_other=unless_other)
    await put_into_effect(directory, [(topic, record)])
    directory.history.note_records(record.storage, {topic: catalogue.encode(record)})
    await directory.level(record).changed(topic, record)


async def change_quota(directory: Directory, namespace: str, changes: Mapping[str, Any]) -> None:
    """Change the quota of a namespace and put it into effect.

    Args:
        directory: of the topics.
        namespace: its name.
        changes: names and plain values; None removes a quota.

    Raises:
        InvalidArgumentError: an unknown name, or an invalid value.
        NamespaceNotFoundError: it does not exist.
    """
    catalogue = directory.catalogue
    await catalogue.policy_changes.quota(namespace, changes)
    topics = list(catalogue.topics(namespace))
    await put_into_effect(directory, topics)
    _tell_manifests_above(directory, topics)


def _check_history(directory: Directory, name: str, record: TopicRecord, changes: Mapping[str, Any]) -> None:
    if not directory.level(record).keeps:
        for policy in ("retention", "message_ttl_s"):
            if changes.get(policy):
                raise FailedPreconditionError(
                    f"topic {name!r} has durability 'none': it stores nothing, so {policy} has no effect"
                )


async def put_into_effect(directory: Directory, topics: Sequence[tuple[str, TopicRecord]]) -> None:
    """Apply the current policies to served topics and their partitions."""
    for count, (name, _) in enumerate(topics, 1):
        record = directory.catalogue.find(name)  # another change may have happened while this one let others run
        if record is not None:
            policies = directory.policies.of_topic(name, record)
            for topic in directory.living(name, record):
                topic.apply(policies, record)
        if not count % _TOPICS_PER_TURN:
            await trio.lowlevel.checkpoint()
    directory.expiry.look_again()
    directory.history.keep_now()


def _tell_manifests_above(directory: Directory, topics: Sequence[tuple[str, TopicRecord]]) -> None:
    """Write the policies of the namespace or broker to the buckets of its topics: a restore needs them."""
    storages: dict[str, dict[str, bytes]] = {}
    always: set[str] = set()
    for name, record in topics:
        storages.setdefault(record.storage, {}).update(directory.catalogue.records_above(name))
        if directory.level(record).needs_manifests:
            always.add(record.storage)
    for storage, records in storages.items():
        directory.history.note_records(storage, records, always=storage in always)
