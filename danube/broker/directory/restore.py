"""Restores topics from a bucket after their metadata, or the whole data directory, was lost.

Everything is checked before anything is changed: the contents of the bucket (:mod:`danube.history.restore`), whether
they are complete, whether names are taken. Then, in this order::

    parts and objects -> catalogue of history       not visible yet
    policies of namespaces and broker               unless some are set here
    topic by topic: cursors, subscriptions, record  the record last; the topic is served from then on
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
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from danube.broker.catalogue.catalogue import Catalogue
from danube.broker.topic.recovered import new_cursor
from danube.dispatch import Cursor, decode_entry, encode_entry
from danube.history import Chain, Survey, enter, read_bucket, survey_bucket, verify_chains
from danube.model import Limits, history_api, validate_topic
from danube.model.errors import (
    AlreadyExistsError,
    DanubeError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    TopicNotFoundError,
)
from danube.model.history_api import MOST_NAMES
from danube.model.names import split_partition
from danube.model.records import SubscriptionRecord, TopicRecord
from danube.storage import Storage, storage_place

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory

__all__ = ["restore_topics"]

_log = logging.getLogger("danube.broker")

Subscriptions = dict[int, dict[str, tuple[SubscriptionRecord, Cursor]]]


class _Candidate:
    """A topic that was found in the bucket."""

    def __init__(
        self, name: str, record: TopicRecord, chains: list[Chain], subscriptions: Subscriptions, clamped: list[str]
    ) -> None:
        self.name = name
        self.record = record
        self.chains = chains
        self.subscriptions = subscriptions
        self.clamped = clamped
        """Subscriptions whose cursor was beyond the end."""
        self.state = "restored"

    def row(self) -> history_api.RestoredTopic:
        """Return the row of the report for this topic."""
        parts = [each for chain in self.chains for each in chain.parts]
        return history_api.RestoredTopic(
            topic=self.name,
            durability=self.record.durability,
            partitions=self.record.partitions,
            start_offset=sum(chain.start_offset for chain in self.chains),
            end_offset=sum(chain.end_offset for chain in self.chains),
            parts=len(parts),
            objects=len({key for key, _ in parts}),
            size_bytes=sum(part.size_bytes for _, part in parts),
            subscriptions=sorted({name for found in self.subscriptions.values() for name in found}),
            state=self.state,
            clamped=sorted(set(self.clamped)),
            unlisted_parts=sum(chain.unlisted for chain in self.chains),
        )


async def restore_topics(directory: Directory, request: history_api.RestoreTopics) -> history_api.RestoreReport:
    """Restore topics from a bucket; see :class:`danube.model.history_api.RestoreTopics`.

    Raises:
        FailedPreconditionError: no storage has this URL, or its history must not be taken over.
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
    _check_owner(directory, storage, survey)
    candidates = _candidates(directory, storage, survey)
    chosen = _choose(directory, storage, candidates, request)
    await verify_chains(storage, survey, [chain for one in chosen for chain in one.chains], deep=request.deep)
    _check_damage(storage, survey, chosen)
    if not request.dry_run:

        async def carry_out() -> None:
            async with directory.restoring:
                try:
                    await _carry_out(directory, storage, survey, candidates, request)
                except (DanubeError, OSError) as error:
                    _log.error("the restore was interrupted and can be repeated: %s", error)
                    raise

        await directory.runtime.finish(carry_out)
    return _report(directory, storage, survey, candidates, request.dry_run)


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


def _check_owner(directory: Directory, storage: Storage, survey: Survey) -> None:
    catalogue = directory.history.catalogue
    if survey.bucket.epoch and survey.bucket.incarnation == catalogue.incarnation:
        raise FailedPreconditionError(
            f"{storage.url} belongs to this broker already: there is nothing to restore. To verify it:"
            f" danube storage check {storage.name}"
        )
    if not survey.bucket.epoch and not survey.objects:
        raise NotFoundError(
            f"{storage.url} holds no history of cluster {directory.runtime.config.cluster!r}; if the lost broker had"
            " another cluster name, start this one with it (--cluster)"
        )


# --- Read its contents ---


def _candidates(directory: Directory, storage: Storage, survey: Survey) -> list[_Candidate]:
    records = {name: Catalogue.decode_topic(record) for name, record in survey.bucket.topics.items()}
    known = {topic_id for record in records.values() for topic_id in record.topic_ids}
    found = {topic_id: name for topic_id, name in survey.found_names().items() if topic_id not in known}
    for name, record in _records_of_found(directory, found).items():
        records.setdefault(name, record)
    return [
        _candidate(directory.runtime.limits, name, msgspec.structs.replace(record, storage=storage.name), survey)
        for name, record in sorted(records.items())
    ]


def _records_of_found(directory: Directory, found: Mapping[int, str]) -> dict[str, TopicRecord]:
    """Make records for topics that only objects describe: these contain the names; the rest is as for new topics."""
    now_us = directory.runtime.clock_us()
    records: dict[str, TopicRecord] = {}
    partitions: dict[str, dict[int, int]] = {}
    for topic_id, name in found.items():
        split = split_partition(name)
        if split is None:
            records[name] = TopicRecord(directory.runtime.config.durability, 0, [topic_id], now_us)
        else:
            partitions.setdefault(split[0], {})[split[1]] = topic_id
    for name, by_index in partitions.items():
        count = max(by_index) + 1
        ids = [by_index[index] if index in by_index else directory.runtime.new_id() for index in range(count)]
        records[name] = TopicRecord(directory.runtime.config.durability, count, ids, now_us)
    return records


def _candidate(limits: Limits, name: str, record: TopicRecord, survey: Survey) -> _Candidate:
    chains = [survey.chain(topic_id) for topic_id in record.topic_ids]
    subscriptions: Subscriptions = {}
    clamped = []
    for chain in chains:
        for subscription, (encoded, snapshot) in survey.bucket.subscriptions.get(chain.topic_id, {}).items():
            entry = Catalogue.decode_subscription(encoded)
            cursor = new_cursor(entry, limits)
            cursor.apply(decode_entry(snapshot))
            if cursor.clamp(chain.end_offset):
                clamped.append(subscription)
            subscriptions.setdefault(chain.topic_id, {})[subscription] = (entry, cursor)
    return _Candidate(name, record, chains, subscriptions, clamped)


# --- Select topics ---


def _choose(
    directory: Directory, storage: Storage, candidates: Sequence[_Candidate], request: history_api.RestoreTopics
) -> list[_Candidate]:
    """Return the topics to restore, and note in the other candidates why they are not restored."""
    names = {one.name for one in candidates}
    for topic in request.topics:
        if topic not in names:
            raise TopicNotFoundError(f"{storage.url} holds nothing of topic {topic!r}; it holds {_some(sorted(names))}")
    others = [one for one in candidates if request.topics and one.name not in request.topics]
    if others and not (request.give_up_others or request.dry_run):
        raise FailedPreconditionError(
            f"{storage.url} also holds {_some([one.name for one in others])}. The bucket becomes this broker's as a"
            " whole, and what is not restored is deleted later; give --give-up-others to accept that"
        )
    for one in others:
        one.state = "given-up"
    chosen = []
    for one in candidates:
        if one.state == "given-up":
            continue
        present = directory.catalogue.find(one.name)
        if present is not None:
            if present.topic_ids != one.record.topic_ids:
                raise AlreadyExistsError(
                    f"topic {one.name!r} exists already, and is not the one in {storage.url}; delete it"
                    " first, or restore the others with --topic and --give-up-others"
                )
            one.state = "present"
        elif directory.level(one.record).recovers_itself:
            raise FailedPreconditionError(
                f"topic {one.name!r} of {storage.url} has durability 'remote': it is recovered by itself when a"
                " broker starts with that storage and cluster; restart this one first"
            )
        chosen.append(one)
    return chosen


def _check_damage(storage: Storage, survey: Survey, chosen: Sequence[_Candidate]) -> None:
    damaged = [
        f"{one.name}, {what}"
        for one in chosen
        for topic_id in one.record.topic_ids
        for what in survey.damage.get(topic_id, ())
    ]
    if damaged:
        raise DataLossError(
            f"{storage.url} is damaged: {_some(damaged, 'more')}. Nothing was changed. Restore the objects from a copy,"
            " or restore only the other topics with --topic and --give-up-others"
        )


def _some(names: Sequence[str], others: str = "others") -> str:
    shown = "; ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} {others}"


# --- Apply ---


async def _check_unchanged(directory: Directory, storage: Storage, survey: Survey) -> None:
    """Check that the bucket has not changed since it was read: a running broker seals, merges and deletes there."""
    before, now = survey.bucket, await read_bucket(storage, directory.runtime.config.cluster)
    if now.incarnation == directory.history.catalogue.incarnation:
        return  # another call has claimed it for this broker in the meantime
    if (now.epoch, now.incarnation, now.created_us, now.snapshot_key) != (
        before.epoch,
        before.incarnation,
        before.created_us,
        before.snapshot_key,
    ):
        raise FailedPreconditionError(
            f"{storage.url} has changed since it was read, so the broker of epoch {now.epoch} that it belongs to"
            " still runs. Nothing was restored: what that broker stores or deletes meanwhile would be missing here."
            " Stop it for good, and restore again"
        )


async def _carry_out(
    directory: Directory,
    storage: Storage,
    survey: Survey,
    candidates: Sequence[_Candidate],
    request: history_api.RestoreTopics,
) -> None:
    history = directory.history
    await _check_unchanged(directory, storage, survey)
    # Select again: another call may have restored some topics since the bucket was read.
    new = [one for one in _choose(directory, storage, candidates, request) if one.state == "restored"]
    await history.catalogue.raise_epoch(survey.bucket.epoch + 1)
    chains = [chain for one in new for chain in one.chains]
    await enter(history.catalogue, storage.name, survey, chains, directory.runtime.clock_us())
    wanted = {"", *(validate_topic(one.name).namespace for one in new)}
    above = {name: record for name, record in survey.bucket.namespaces.items() if name in wanted}
    for name in await directory.catalogue.restore_policies(above):
        _log.warning(
            "policies of %s are restored from %s", f"namespace {name!r}" if name else "the broker", storage.url
        )
    for one in new:
        snapshots = {
            topic_id: {
                name: (entry, encode_entry(cursor.snapshot(entry.subscription_id)))
                for name, (entry, cursor) in found.items()
            }
            for topic_id, found in one.subscriptions.items()
        }
        await directory.catalogue.restore_topic(one.name, one.record, snapshots)
        directory.level(one.record).revive(one.name, one.record, one.subscriptions)
        _log.warning("topic %r is restored from %s", one.name, storage.url)
    await history.take_over(storage.name, survey.bucket)


def _report(
    directory: Directory, storage: Storage, survey: Survey, candidates: Sequence[_Candidate], dry_run: bool
) -> history_api.RestoreReport:
    needed = {
        key for one in candidates if one.state != "given-up" for chain in one.chains for key, _ in chain.parts
    } & survey.objects.keys()
    missed = [f"{storage.url}/{key}: {reason}" for key, reason in survey.broken]
    for one in candidates:
        for chain in one.chains:
            if chain.gap is not None:
                key, part = chain.gap
                missed.append(
                    f"{storage.url}/{key}: no manifest mentions it, and its offsets [{part.base_offset},"
                    f" {part.end_offset}) of {one.name} do not continue those that end at {chain.end_offset}"
                )
    return history_api.RestoreReport(
        storage=storage.name,
        url=storage.url,
        dry_run=dry_run,
        cluster=directory.runtime.config.cluster,
        epoch=survey.bucket.epoch,
        written_us=survey.bucket.created_us,
        topics=[one.row() for one in candidates],
        objects=len(needed),
        object_bytes=sum(survey.objects[key].size_bytes for key in needed),
        unused=len(survey.objects) + len(survey.broken) - len(needed),
        unused_objects=missed[:MOST_NAMES],
    )
