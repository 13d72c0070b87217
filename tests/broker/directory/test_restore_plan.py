"""The plan of a restore, without a bucket: topics found, topics chosen, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from danube.broker.directory.restore_plan import (
    Candidate,
    candidates_of,
    check_damage,
    check_owner,
    check_unchanged,
    choose,
    report_of,
)
from danube.dispatch import Cursor, encode_entry
from danube.history.manifest_format import Bucket, Manifest, ManifestKind
from danube.history.segment import SegmentFooter, SegmentPart
from danube.history.survey import FoundObject, Survey
from danube.model import Durability, Limits, SubscriptionType
from danube.model.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    TopicNotFoundError,
)
from danube.model.history_api import RestoreTopics
from danube.model.records import SubscriptionRecord, TopicRecord

URL = "memory://bucket"
_encode = msgspec.msgpack.encode


def part(topic_id: int, base: int, end: int) -> SegmentPart:
    return SegmentPart(topic_id, base, end, 1, 2, 1, 32, 132, 0, 132, 1, 0, 1)


def survey_of(
    topics: dict[str, TopicRecord],
    parts: dict[str, SegmentPart],
    *,
    floors: dict[tuple[int, str], int] | None = None,
    unlisted: dict[str, tuple[str, SegmentPart]] | None = None,
    epoch: int = 3,
) -> Survey:
    bucket = Bucket()
    subscriptions: dict[int, dict[str, tuple[bytes, bytes]]] = {}
    for (topic_id, name), floor in (floors or {}).items():
        record = SubscriptionRecord(99, SubscriptionType.SHARED, 0, 1)
        cursor = Cursor(floor)
        subscriptions.setdefault(topic_id, {})[name] = (_encode(record), encode_entry(cursor.snapshot(99)))
    if epoch:
        records: dict[str, bytes | None] = {name: _encode(record) for name, record in topics.items()}
        added = {key: [each] for key, each in parts.items()}
        bucket.apply(Manifest(ManifestKind.SNAPSHOT, "theirs", epoch, 0, 100, [], added, {}, records, subscriptions))
    found = Survey(bucket)
    for key, each in parts.items():
        found.objects[key] = FoundObject(key, 1000, SegmentFooter(1, 50, [each], {each.topic_id: "?"}, {}))
    for key, (name, each) in (unlisted or {}).items():
        found.objects[key] = FoundObject(key, 1000, SegmentFooter(1, 150, [each], {each.topic_id: name}, {}))
    found.note_unlisted()
    return found


def record(*ids: int, durability: Durability = Durability.DISK) -> TopicRecord:
    return TopicRecord(durability, len(ids) if len(ids) > 1 else 0, list(ids), 5)


def candidates(found: Survey) -> list[Candidate]:
    return candidates_of(found, "cold", Durability.OS, Limits(), count(1_000).__next__, 77)


def chosen(
    found: list[Candidate], present: dict[str, TopicRecord] | None = None, **request: Any
) -> list[tuple[str, str]]:
    known = present or {}
    remote: Callable[[TopicRecord], bool] = lambda one: one.durability is Durability.REMOTE  # noqa: E731
    picked = choose(found, RestoreTopics(URL, **request), URL, known.get, remote)
    return [(one.name, one.state) for one in picked]


def two() -> Survey:
    return survey_of({"/d/a": record(1), "/d/b": record(2, 3)}, {"x": part(1, 0, 10), "y": part(3, 0, 5)})


def test_topics_of_the_manifests_are_found_in_the_storage_as_it_is_called_here() -> None:
    found = candidates(two())
    assert [(one.name, one.record.topic_ids, one.record.storage) for one in found] == [
        ("/d/a", [1], "cold"),
        ("/d/b", [2, 3], "cold"),
    ]
    assert [chain.end_offset for one in found for chain in one.chains] == [10, 0, 5]


def test_topics_that_only_objects_know_get_records_like_new_ones() -> None:
    names = {"p": ("/d/plain", part(7, 0, 4)), "q": ("/d/parts-part-2", part(8, 0, 6))}
    found = {one.name: one.record for one in candidates(survey_of({}, {}, unlisted=names))}
    assert found["/d/plain"] == TopicRecord(Durability.OS, 0, [7], 77, "cold")
    assert found["/d/parts"] == TopicRecord(Durability.OS, 3, [1_000, 1_001, 8], 77, "cold"), "missing ones get ids"


def test_a_cursor_behind_the_end_is_moved_to_it_and_said() -> None:
    found = survey_of({"/d/a": record(1)}, {"x": part(1, 0, 10)}, floors={(1, "ahead"): 12, (1, "behind"): 4})
    (one,) = candidates(found)
    assert {name: cursor.floor for name, (_, cursor) in one.subscriptions[1].items()} == {"ahead": 10, "behind": 4}
    assert one.row().clamped == ["ahead"]


def test_all_topics_are_chosen_unless_some_are_named() -> None:
    assert chosen(candidates(two())) == [("/d/a", "restored"), ("/d/b", "restored")]
    found = candidates(two())
    assert chosen(found, topics=["/d/b"], give_up_others=True) == [("/d/b", "restored")]
    assert found[0].state == "given-up"


def test_topics_that_would_be_lost_have_to_be_given_up_explicitly() -> None:
    with pytest.raises(FailedPreconditionError, match="--give-up-others"):
        chosen(candidates(two()), topics=["/d/b"])
    assert chosen(candidates(two()), topics=["/d/b"], dry_run=True) == [("/d/b", "restored")]
    with pytest.raises(TopicNotFoundError, match="it holds /d/a; /d/b"):
        chosen(candidates(two()), topics=["/d/c"])


def test_topics_that_are_here_already_stay_and_others_of_their_names_are_refused() -> None:
    assert chosen(candidates(two()), {"/d/a": record(1)}) == [("/d/a", "present"), ("/d/b", "restored")]
    with pytest.raises(AlreadyExistsError, match="'/d/a' exists already"):
        chosen(candidates(two()), {"/d/a": record(55)})


def test_topics_that_recover_themselves_are_not_restored() -> None:
    found = candidates(survey_of({"/d/a": record(1, durability=Durability.REMOTE)}, {"x": part(1, 0, 10)}))
    with pytest.raises(FailedPreconditionError, match="recovered by itself"):
        chosen(found)


def test_a_bucket_of_this_broker_or_without_history_is_refused() -> None:
    check_owner(two(), "cold", URL, "ours", "danube")
    with pytest.raises(FailedPreconditionError, match="belongs to this broker already"):
        check_owner(two(), "cold", URL, "theirs", "danube")
    with pytest.raises(NotFoundError, match="no history of cluster 'danube'"):
        check_owner(survey_of({}, {}, epoch=0), "cold", URL, "ours", "danube")


def test_damage_counts_in_the_chosen_topics_only() -> None:
    survey = two()
    survey.note_damage([part(3, 0, 5)], "object y is missing")
    first, second = candidates(survey)
    check_damage(survey, URL, [first])
    with pytest.raises(DataLossError, match=r"/d/b, offsets \[0, 5\): object y is missing"):
        check_damage(survey, URL, [first, second])


def test_a_bucket_that_has_changed_is_not_restored() -> None:
    before, now = two().bucket, two().bucket
    check_unchanged(before, now, URL, "ours")
    now.created_us += 1
    with pytest.raises(FailedPreconditionError, match="has changed since it was read"):
        check_unchanged(before, now, URL, "ours")
    check_unchanged(before, now, URL, "theirs")  # this broker has claimed it meanwhile


def test_the_report_counts_needed_objects_and_names_parts_behind_a_gap() -> None:
    survey = survey_of(
        {"/d/a": record(1)},
        {"x": part(1, 0, 10)},
        unlisted={"gap": ("/d/a", part(1, 20, 30)), "n": ("/d/a", part(1, 10, 12))},
    )
    found = candidates(survey)
    report = report_of(survey, "cold", URL, "danube", found, dry_run=True)
    assert (report.objects, report.object_bytes, report.unused) == (2, 2000, 1)
    assert [(row.topic, row.end_offset, row.parts, row.unlisted_parts) for row in report.topics] == [("/d/a", 12, 2, 1)]
    assert report.unused_objects == [
        f"{URL}/gap: no manifest mentions it, and its offsets [20, 30) of /d/a do not continue those that end at 12"
    ]
