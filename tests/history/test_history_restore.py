"""Which parts of a bucket belong together, when some of its objects are in no manifest."""

from __future__ import annotations

from danube.history.manifest_format import Bucket, Manifest, ManifestKind
from danube.history.segment import SegmentFooter, SegmentPart
from danube.history.survey import FoundObject, Survey

TOPIC = 7


def part(base: int, end: int, epoch: int = 1, topic_id: int = TOPIC) -> SegmentPart:
    return SegmentPart(topic_id, base, end, 1, 2, 1, 32, 132, 0, 132, 1, 0, epoch)


def survey(
    listed: dict[str, SegmentPart], unlisted: dict[str, SegmentPart], *, start: int = 0, created_us: int = 50
) -> Survey:
    """A bucket with one part in each object; a manifest from time 100 names the first ones, if there are any."""
    bucket = Bucket()
    if listed:
        added = {key: [one] for key, one in listed.items()}
        starts = {TOPIC: start} if start else {}
        bucket.apply(Manifest(ManifestKind.SNAPSHOT, "i", 1, 0, 100, [], added, starts, {}, {}))
    found = Survey(bucket)
    for key, one in (listed | unlisted).items():
        footer = SegmentFooter(one.epoch, created_us, [one], {one.topic_id: f"/default/{one.topic_id}"}, {})
        found.objects[key] = FoundObject(key, 1000, footer)
    found.note_unlisted()
    return found


def keys(found: Survey) -> list[str]:
    return [key for key, _ in found.chain(TOPIC).parts]


def test_a_part_that_continues_without_a_gap_is_taken() -> None:
    found = survey({"a": part(0, 10)}, {"c": part(20, 30), "b": part(10, 20)})
    assert keys(found) == ["a", "b", "c"]
    chain = found.chain(TOPIC)
    assert (chain.start_offset, chain.end_offset, chain.unlisted, chain.gap) == (0, 30, 2, None)


def test_a_gap_ends_it_and_is_named() -> None:
    found = survey({"a": part(0, 10)}, {"d": part(40, 50), "c": part(30, 40), "b": part(10, 20)})
    chain = found.chain(TOPIC)
    assert (chain.end_offset, chain.unlisted) == (20, 1)
    assert chain.gap is not None
    assert chain.gap[0] == "c"


def test_overlapping_unlisted_parts_were_merged_or_rolled_back() -> None:
    found = survey({"a": part(0, 10), "b": part(10, 20)}, {"old": part(0, 20), "stale": part(15, 30)})
    chain = found.chain(TOPIC)
    assert (keys(found), chain.end_offset, chain.gap) == (["a", "b"], 20, None)


def test_the_later_owner_counts_and_an_earlier_one_does_not_continue_it() -> None:
    first, second = part(10, 20, 1), part(10, 15, 2)
    found = survey({"a": part(0, 10)}, {"first": first, "second": second, "more": part(15, 18, 1)})
    assert keys(found) == ["a", "second"]
    found = survey({"a": part(0, 10, 2)}, {"stale": part(10, 20, 1)})
    assert keys(found) == ["a"]


def test_parts_removed_by_retention_are_not_restored() -> None:
    found = survey({"c": part(20, 30)}, {"a": part(0, 10), "b": part(10, 20)}, start=20)
    chain = found.chain(TOPIC)
    assert (chain.start_offset, keys(found), chain.unlisted) == (20, ["c"], 0)
    # Everything has expired: the topic goes on counting where it was.
    empty = survey({"other": part(0, 1, topic_id=8)}, {"a": part(0, 10)}, start=20).chain(TOPIC)
    assert (empty.start_offset, empty.end_offset, empty.parts) == (20, 20, [])


def test_without_a_manifest_a_chain_begins_with_the_first_part_and_prefers_merged_parts() -> None:
    found = survey({}, {"b": part(10, 20), "c": part(20, 30), "merged": part(10, 30), "d": part(30, 40)})
    assert keys(found) == ["merged", "d"]
    assert found.chain(TOPIC).start_offset == 10
    assert found.found_names() == {TOPIC: "/default/7"}


def test_a_topic_that_newer_manifests_do_not_know_was_deleted() -> None:
    unlisted = {"x": part(0, 10, topic_id=9)}
    assert survey({"a": part(0, 10)}, unlisted, created_us=50).found_names() == {}
    assert survey({"a": part(0, 10)}, unlisted, created_us=150).found_names() == {9: "/default/9"}
