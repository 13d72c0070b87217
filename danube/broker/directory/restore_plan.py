"""The plan of a restore: which topics of a bucket can be restored, and which are to be. Pure.

The shell is :mod:`danube.broker.directory.restore`: it reads the bucket and carries the plan out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from danube.broker.topic.recovered import new_cursor
from danube.cluster.gaps import GapRecord, read_gap, restored_gap, settled_ranges
from danube.dispatch import Cursor, decode_entry
from danube.history.manifest_format import Bucket
from danube.history.survey import Chain, Survey
from danube.model import Durability, Limits, history_api
from danube.model.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    TopicNotFoundError,
)
from danube.model.history_api import MOST_NAMES
from danube.model.ids import TopicId
from danube.model.names import split_partition
from danube.model.records import SubscriptionRecord, TopicRecord, decode_subscription, decode_topic

__all__ = [
    "Candidate",
    "Subscriptions",
    "candidates_of",
    "check_damage",
    "check_owner",
    "check_unchanged",
    "choose",
    "report_of",
]

Subscriptions = dict[TopicId, dict[str, tuple[SubscriptionRecord, Cursor]]]
"""Topic id, then name: record and cursor."""


class Candidate:
    """A topic that was found in the bucket.

    Args:
        name, record: its own.
        chains: what can be restored of it, or of each partition.
        subscriptions: those of it.
        clamped: subscriptions whose cursor was beyond the end.
        gaps: its declared gaps, by topic id.
    """

    def __init__(
        self,
        name: str,
        record: TopicRecord,
        chains: list[Chain],
        subscriptions: Subscriptions,
        clamped: list[str],
        gaps: dict[TopicId, list[GapRecord]],
    ) -> None:
        self.name = name
        self.record = record
        self.chains = chains
        self.subscriptions = subscriptions
        self.clamped = clamped
        self.gaps = gaps
        self.state = "restored"
        """Outcome for the report: restored, present, or given-up."""

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


def check_owner(survey: Survey, storage: str, url: str, incarnation: str, cluster: str) -> None:
    """Refuse a bucket that is empty, or that belongs to this broker already.

    Args:
        survey: of the bucket.
        storage, url: name and URL of the storage.
        incarnation: identity of this broker's metadata.
        cluster: of this broker.

    Raises:
        FailedPreconditionError: it belongs to this broker.
        NotFoundError: it has no history of the cluster.
    """
    if survey.bucket.epoch and survey.bucket.incarnation == incarnation:
        raise FailedPreconditionError(
            f"{url} belongs to this broker already: there is nothing to restore. To verify it:"
            f" danube storage check {storage}"
        )
    if not survey.bucket.epoch and not survey.objects:
        raise NotFoundError(
            f"{url} holds no history of cluster {cluster!r}; if the lost broker had"
            " another cluster name, start this one with it (--cluster)"
        )


# --- Read its contents ---


def candidates_of(
    survey: Survey, storage: str, durability: Durability, limits: Limits, new_id: Callable[[], int], now_us: int
) -> list[Candidate]:
    """Return the topics that a bucket contains, by name.

    Args:
        survey: of the bucket.
        storage: its name here.
        durability, new_id, now_us: of topics that only objects describe, for their records.
        limits: of cursors.
    """
    records = {name: decode_topic(record) for name, record in survey.bucket.topics.items()}
    known = {topic_id for record in records.values() for topic_id in record.topic_ids}
    found = {topic_id: name for topic_id, name in survey.found_names().items() if topic_id not in known}
    for name, record in _records_of_found(found, durability, new_id, now_us).items():
        records.setdefault(name, record)
    return [
        _candidate(limits, name, msgspec.structs.replace(record, storage=storage), survey)
        for name, record in sorted(records.items())
    ]


def _records_of_found(
    found: Mapping[TopicId, str], durability: Durability, new_id: Callable[[], int], now_us: int
) -> dict[str, TopicRecord]:
    """Make records for topics that only objects describe: these contain the names; the rest is as for new topics."""
    records: dict[str, TopicRecord] = {}
    partitions: dict[str, dict[int, TopicId]] = {}
    for topic_id, name in found.items():
        split = split_partition(name)
        if split is None:
            records[name] = TopicRecord(durability, 0, [topic_id], now_us)
        else:
            partitions.setdefault(split[0], {})[split[1]] = topic_id
    for name, by_index in partitions.items():
        count = max(by_index) + 1
        ids = [by_index[index] if index in by_index else TopicId(new_id()) for index in range(count)]
        records[name] = TopicRecord(durability, count, ids, now_us)
    return records


def _candidate(limits: Limits, name: str, record: TopicRecord, survey: Survey) -> Candidate:
    chains = [survey.chain(topic_id) for topic_id in record.topic_ids]
    gaps = {
        topic_id: [restored_gap(read_gap(gap, name)) for gap in survey.bucket.gaps.get(topic_id, ())]
        for topic_id in record.topic_ids
    }
    subscriptions: Subscriptions = {}
    clamped = []
    for chain in chains:
        parts = [(part.base_offset, part.end_offset) for _, part in chain.parts]
        settled = settled_ranges(gaps[chain.topic_id], parts)
        for subscription, (encoded, snapshot) in survey.bucket.subscriptions.get(chain.topic_id, {}).items():
            entry = decode_subscription(encoded)
            cursor = new_cursor(entry, limits)
            cursor.apply(decode_entry(snapshot))
            if cursor.clamp(chain.end_offset):
                clamped.append(subscription)
            for low, high in settled:
                cursor.ack(low, high, force=True)
            subscriptions.setdefault(chain.topic_id, {})[subscription] = (entry, cursor)
    return Candidate(name, record, chains, subscriptions, clamped, gaps)


# --- Select topics ---


def choose(
    candidates: Sequence[Candidate],
    request: history_api.RestoreTopics,
    url: str,
    present: Callable[[str], TopicRecord | None],
    recovers_itself: Callable[[TopicRecord], bool],
) -> list[Candidate]:
    """Return the topics to restore, and note in the other candidates why they are not restored.

    Args:
        candidates: all topics of the bucket.
        request: selects some.
        url: of the storage.
        present: returns the record of a topic that exists here.
        recovers_itself: whether a topic needs no restore, by its durability.

    Raises:
        TopicNotFoundError: the bucket does not have a topic that was asked for.
        FailedPreconditionError: others would be lost, or a topic is recovered by a start of the broker.
        AlreadyExistsError: another topic has the name.
    """
    names = {one.name for one in candidates}
    for topic in request.topics:
        if topic not in names:
            raise TopicNotFoundError(f"{url} holds nothing of topic {topic!r}; it holds {_some(sorted(names))}")
    others = [one for one in candidates if request.topics and one.name not in request.topics]
    if others and not (request.give_up_others or request.dry_run):
        raise FailedPreconditionError(
            f"{url} also holds {_some([one.name for one in others])}. The bucket becomes this broker's as a"
            " whole, and what is not restored is deleted later; give --give-up-others to accept that"
        )
    for one in others:
        one.state = "given-up"
    chosen = []
    for one in candidates:
        if one.state == "given-up":
            continue
        known = present(one.name)
        if known is not None:
            if known.topic_ids != one.record.topic_ids:
                raise AlreadyExistsError(
                    f"topic {one.name!r} exists already, and is not the one in {url}; delete it"
                    " first, or restore the others with --topic and --give-up-others"
                )
            one.state = "present"
        elif recovers_itself(one.record):
            raise FailedPreconditionError(
                f"topic {one.name!r} of {url} has durability 'remote': it is recovered by itself when a"
                " broker starts with that storage and cluster; restart this one first"
            )
        chosen.append(one)
    return chosen


def check_damage(survey: Survey, url: str, chosen: Sequence[Candidate]) -> None:
    """Raise DataLossError if data of a topic to restore is missing or damaged."""
    damaged = [
        f"{one.name}, {what}"
        for one in chosen
        for topic_id in one.record.topic_ids
        for what in survey.damage.get(topic_id, ())
    ]
    if damaged:
        raise DataLossError(
            f"{url} is damaged: {_some(damaged, 'more')}. Nothing was changed. Restore the objects from a copy,"
            " or restore only the other topics with --topic and --give-up-others"
        )


def _some(names: Sequence[str], others: str = "others") -> str:
    shown = "; ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} {others}"


def check_unchanged(before: Bucket, now: Bucket, url: str, incarnation: str) -> None:
    """Raise FailedPreconditionError if a bucket has changed: a running broker seals, merges and deletes there."""
    if now.incarnation == incarnation:
        return  # another call has claimed it for this broker in the meantime
    if (now.epoch, now.incarnation, now.created_us, now.last_keys) != (
        before.epoch,
        before.incarnation,
        before.created_us,
        before.last_keys,
    ):
        raise FailedPreconditionError(
            f"{url} has changed since it was read, so the broker of epoch {now.epoch} that it belongs to"
            " still runs. Nothing was restored: what that broker stores or deletes meanwhile would be missing here."
            " Stop it for good, and restore again"
        )


def report_of(
    survey: Survey, storage: str, url: str, cluster: str, candidates: Sequence[Candidate], *, dry_run: bool
) -> history_api.RestoreReport:
    """Return the report of a restore, or of one that was only planned."""
    needed = {
        key for one in candidates if one.state != "given-up" for chain in one.chains for key, _ in chain.parts
    } & survey.objects.keys()
    missed = [f"{url}/{key}: {reason}" for key, reason in survey.broken]
    for one in candidates:
        for chain in one.chains:
            if chain.gap is not None:
                key, part = chain.gap
                missed.append(
                    f"{url}/{key}: no manifest mentions it, and its offsets [{part.base_offset},"
                    f" {part.end_offset}) of {one.name} do not continue those that end at {chain.end_offset}"
                )
    return history_api.RestoreReport(
        storage=storage,
        url=url,
        dry_run=dry_run,
        cluster=cluster,
        epoch=survey.bucket.epoch,
        written_us=survey.bucket.created_us,
        topics=[one.row() for one in candidates],
        objects=len(needed),
        object_bytes=sum(survey.objects[key].size_bytes for key in needed),
        unused=len(survey.objects) + len(survey.broken) - len(needed),
        unused_objects=missed[:MOST_NAMES],
    )
