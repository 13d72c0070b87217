"""Restores topics from a bucket after their metadata, or the whole data directory, was lost.

Everything is checked before anything is changed: the contents of the bucket (:mod:`danube.history.restore`), whether
they are complete, whether names are taken (:mod:`danube.broker.directory.restore_plan`). Then, in this order::

    assignments to this broker                      nothing has their names yet
    parts and objects -> catalogue of history       not visible yet
    policies of namespaces and broker               unless some are set here
    schemas with their numbers, then subjects       those that the registry does not have
    topic by topic: declared gaps                   new batches begin behind them
                    cursors -> journal              ignored without the next two
                    subscriptions, record           the record last; the topic is served from then on
    manifest of this directory, higher epoch           this broker owns the bucket

A restore that was interrupted at any point may be repeated: topics that exist already, under the same ids, stay as
they are. Until the last step the former owner owns the bucket, so nothing is sealed into it and nothing is deleted
from it. After the last step the former owner, if it is started again, is refused.

A restore is meant for a broker that is lost: a running broker seals and deletes in its bucket while it is checked.
Therefore the manifests are read once more just before anything is changed; if there are new ones, nothing is restored.
A short window remains until the last step. Within it no object that was checked is deleted, since deletion takes place
``segment_grace_s`` after a manifest without the object; but segments that a former owner adds in this window are known
to it alone.

A restore runs to completion even if the client that requested it disconnects.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from danube.broker.directory.restore_plan import (
    Candidate,
    candidates_of,
    check_damage,
    check_owner,
    check_unchanged,
    choose,
    report_of,
)
from danube.broker.directory.restore_schemas import check_schemas, restore_schemas
from danube.broker.topic.recovered import TopicSnapshot
from danube.cluster.records import broker_name
from danube.dispatch import encode_entry
from danube.history import Survey, enter, read_bucket, read_schemas, survey_bucket, verify_chains
from danube.history.tenure import owner_epoch
from danube.log import ProducerTable
from danube.model import history_api, validate_topic
from danube.model.errors import (
    DanubeError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotOwnerError,
)
from danube.model.ids import FIRST_OFFSET, OwnerEpoch, TopicId
from danube.model.log_events import log_event
from danube.storage import Storage, storage_place

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.schema.objects import SchemaObject

__all__ = ["restore_topics"]

_log = logging.getLogger("danube.broker")


async def restore_topics(directory: Directory, request: history_api.RestoreTopics) -> history_api.RestoreReport:
    """Restore topics from a bucket; see :class:`danube.model.history_api.RestoreTopics`.

    Raises:
        FailedPreconditionError: no storage has this URL, its history must not be taken over, the journal holds
            messages of one of the topics, which are stranded, or a broker that is away has restored it in part; or the
            number of one of the bucket's schemas means something else here.
        NotOwnerError: another broker has restored one of the topics in part.
        AlreadyExistsError: another topic of one of the names exists.
        DataLossError: requested data is damaged or missing; the message says which.
        NotFoundError: there is no history, or none of a requested topic.
        StorageError: the bucket cannot be read.
    """
    for topic in request.topics:
        validate_topic(topic)
    if request.give_up_others and not request.topics:
        raise InvalidArgumentError("give_up_others needs topics: it applies to all other topics")
    storage = _find_storage(directory, request)
    survey = await survey_bucket(storage, directory.runtime.config.cluster)
    config = directory.runtime.config
    check_owner(survey, storage.name, storage.url, directory.history.catalogue.incarnation, config.cluster)
    candidates = candidates_of(
        survey, storage.name, config.durability, config.limits, directory.runtime.new_id, directory.runtime.clock_us()
    )
    chosen = _choose(directory, storage, candidates, request)
    await verify_chains(storage, survey, [chain for one in chosen for chain in one.chains], deep=request.deep)
    check_damage(survey, storage.url, chosen)
    _check_stranded(directory, chosen)
    _check_owners(directory, chosen)
    schemas = await read_schemas(storage, config.cluster)
    await check_schemas(directory, storage, schemas)
    if not request.dry_run:

        async def carry_out() -> None:
            async with directory.restoring:
                try:
                    await _carry_out(directory, storage, survey, schemas, candidates, request)
                except (DanubeError, OSError) as error:
                    _log.error(
                        "the restore was interrupted and can be repeated: %s",
                        error,
                        extra=log_event("restore.interrupted"),
                    )
                    raise

        await directory.runtime.finish(carry_out)
    return report_of(survey, storage.name, storage.url, config.cluster, candidates, dry_run=request.dry_run)


# --- Find the bucket ---


def _find_storage(directory: Directory, request: history_api.RestoreTopics) -> Storage:
    wanted = storage_place(request.url)
    configured = directory.runtime.config.all_storages
    found = [
        storage
        for name, storage in sorted(directory.history.storages.items())
        if wanted in (storage_place(storage.url), storage_place(configured[name].url)) and request.storage in ("", name)
    ]
    if not found:
        known = ", ".join(f"{name} ({storage.url})" for name, storage in sorted(directory.history.storages.items()))
        called = f" called {request.storage!r}" if request.storage else ""
        raise FailedPreconditionError(
            f"this broker has no storage{called} at {wanted}; configured are {known}. Start it with --storage {wanted},"
            f' or add it to the configuration file: [storages.NAME] with url = "{wanted}"'
        )
    if len(found) > 1:
        raise InvalidArgumentError(
            f"several storages are at {wanted}: {', '.join(storage.name for storage in found)}; choose one (--storage)"
        )
    if not found[0].capabilities.durable:
        raise FailedPreconditionError(
            f"storage {found[0].name!r} ({found[0].url}) is not durable: topics cannot be stored in it"
        )
    return found[0]


def _check_stranded(directory: Directory, chosen: Sequence[Candidate]) -> None:
    """Refuse topics of which the journal holds messages: a restored topic would give their offsets to others."""
    stranded = directory.runtime.journal.stranded()
    for one in chosen:
        for topic_id in one.record.topic_ids:
            size, end = stranded.get(topic_id, (0, 0))
            if size:
                raise FailedPreconditionError(
                    f"topic {one.name!r} cannot be restored: the journal of this broker still holds {size} bytes of"
                    f" its messages, up to offset {end}, which the metadata do not know. Start with the metadata that"
                    " know the topic; or give these messages up with: danube topics forget-stranded"
                    f" {topic_id:016x} --accept-loss"
                )


def _check_owners(directory: Directory, chosen: Sequence[Candidate]) -> None:
    """Refuse topics that another broker has begun to restore: it has entered some of them, and goes on with them.

    A client that is told the address of that broker asks it instead.
    """
    membership = directory.membership
    addresses = dict(membership.owners.addresses())
    for one in (each for each in chosen if each.state == "restored"):
        owners = {membership.owner(topic_id) for topic_id in one.record.topic_ids} - {None, membership.me}
        for owner in sorted(each for each in owners if each is not None):
            name = broker_name(owner)
            if owner in addresses:
                raise NotOwnerError(
                    f"topic {one.name!r} has been restored in part by broker {name}: restore it there",
                    {"address": addresses[owner]},
                )
            raise FailedPreconditionError(
                f"topic {one.name!r} cannot be restored here: broker {name} was interrupted while it restored it, and"
                f" is away. Start {name}, and restore again, at any broker"
            )


# --- Apply ---


def _choose(
    directory: Directory, storage: Storage, candidates: Sequence[Candidate], request: history_api.RestoreTopics
) -> list[Candidate]:
    return choose(
        candidates,
        request,
        storage.url,
        directory.catalogue.find,
        lambda record: directory.level(record).recovers_itself,
    )


async def _carry_out(
    directory: Directory,
    storage: Storage,
    survey: Survey,
    schemas: Sequence[SchemaObject],
    candidates: Sequence[Candidate],
    request: history_api.RestoreTopics,
) -> None:
    history = directory.history
    now = await read_bucket(storage, directory.runtime.config.cluster)
    check_unchanged(survey.bucket, now, storage.url, history.catalogue.incarnation)
    # Select again: another call may have restored some topics since the bucket was read.
    new = [one for one in _choose(directory, storage, candidates, request) if one.state == "restored"]
    await history.catalogue.raise_epoch(OwnerEpoch(survey.bucket.former_epoch(history.stream) + 1))
    await history.catalogue.tenure.raise_epoch(
        max(survey.bucket.highest_epoch(), owner_epoch(history.catalogue.epoch, 0))
    )
    ids = [topic_id for one in new for topic_id in one.record.topic_ids]
    async with directory.catalogue.assigning.restoring(ids):
        for topic_id in ids:
            await history.adopt_topic(topic_id)  # an earlier attempt may have entered some of it
        chains = [chain for one in new for chain in one.chains]
        await enter(history.catalogue, storage.name, survey, chains, directory.runtime.clock_us())
        wanted = {"", *(validate_topic(one.name).namespace for one in new)}
        above = {name: record for name, record in survey.bucket.namespaces.items() if name in wanted}
        for name in await directory.catalogue.policy_changes.restore(above):
            _log.warning(
                "policies of %s are restored from %s",
                f"namespace {name!r}" if name else "the broker",
                storage.url,
                extra=log_event("restore.policies"),
            )
        await restore_schemas(directory, storage, schemas)
        for one in new:
            records = {
                topic_id: {name: entry for name, (entry, _) in found.items()}
                for topic_id, found in one.subscriptions.items()
            }
            for topic_id, gaps in one.gaps.items():
                await directory.catalogue.gaps.restore(topic_id, gaps)
            if directory.level(one.record).checkpointed:
                await directory.runtime.journal.save(_states(directory, one))
            await directory.catalogue.creations.restore(one.name, one.record, records)
            directory.level(one.record).revive(one.name, one.record, one.subscriptions)
            _log.warning(
                "topic %r is restored from %s", one.name, storage.url, extra=log_event("restore.topic", topic=one.name)
            )
    await history.take_over(storage.name, survey.bucket)


def _states(directory: Directory, one: Candidate) -> dict[TopicId, bytes]:
    """Return the snapshots of the topic, or of its partitions, that bring the cursors into the journal.

    Also without cursors: the journal may hold the tombstone of a topic that was deleted.
    """
    producers = ProducerTable(directory.runtime.limits).snapshot()
    return {
        topic_id: msgspec.msgpack.encode(
            TopicSnapshot(
                FIRST_OFFSET,
                producers,
                [
                    encode_entry(cursor.snapshot(entry.subscription_id))
                    for entry, cursor in one.subscriptions.get(topic_id, {}).values()
                ],
            )
        )
        for topic_id in one.record.topic_ids
    }
