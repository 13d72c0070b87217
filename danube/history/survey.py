"""What a survey of a bucket has found (:mod:`danube.history.restore`), and what can be restored from that. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from danube.history.manifest_format import Bucket
from danube.history.segment import SegmentFooter, SegmentPart
from danube.model.ids import FIRST_OFFSET, NO_OWNER_EPOCH, Offset, TopicId

__all__ = ["Chain", "FoundObject", "Survey", "promised_parts"]


class FoundObject(NamedTuple):
    """An object in the bucket."""

    key: str
    size_bytes: int
    footer: SegmentFooter


class Chain(NamedTuple):
    """The restorable parts of one topic or partition."""

    topic_id: TopicId
    start_offset: Offset
    end_offset: Offset
    parts: list[tuple[str, SegmentPart]]
    """Keys and parts, in the order of their offsets."""
    unlisted: int
    """Number of them that no manifest mentions."""
    gap: tuple[str, SegmentPart] | None
    """The first part behind a gap; None if there is none."""


class Survey:
    """Result of surveying a bucket. Made by :func:`danube.history.restore.survey_bucket`.

    Attributes:
        bucket: contents of the manifests.
        objects: by key; those found intact, as far as they were checked.
        damage: by topic id: data listed in the manifests and missing in the bucket.
        broken: objects that no manifest mentions and that are not valid segments: key and reason.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.objects: dict[str, FoundObject] = {}
        self.damage: dict[TopicId, list[str]] = {}
        self.broken: list[tuple[str, str]] = []
        self._unlisted: dict[TopicId, list[tuple[str, SegmentPart]]] = {}

    def note_unlisted(self) -> None:
        """Add the parts of objects that no manifest mentions."""
        needed = self.bucket.objects()
        for key, found in self.objects.items():
            if key not in needed:
                for part in found.footer.parts:
                    self._unlisted.setdefault(part.topic_id, []).append((key, part))

    def found_names(self) -> dict[TopicId, str]:
        """Return ids and names of topics that appear only in footers.

        A topic that is missing in the manifests, although they are newer than its objects, was deleted; it is not
        included.
        """
        return {
            topic_id: self.objects[key].footer.names[topic_id]
            for topic_id, parts in self._unlisted.items()
            for key, _ in parts
            if self.objects[key].footer.created_us > self.bucket.created_us
        }

    def chain(self, topic_id: TopicId) -> Chain:
        """Return the restorable parts of a topic."""
        listed = [part for _, part in sorted(self.bucket.parts.get(topic_id, {}).items())]
        parts = list(listed)
        start = self.bucket.starts.get(topic_id, FIRST_OFFSET)
        spare = [(key, part) for key, part in self._unlisted.get(topic_id, ()) if part.end_offset > start]
        if not parts and not start:
            start = min((part.base_offset for _, part in spare), default=FIRST_OFFSET)
        end = max([start, *(part.end_offset for _, part in parts)])
        epoch = max((part.epoch for _, part in parts), default=NO_OWNER_EPOCH)
        while True:
            # Of two parts that begin here, prefer the later owner's; of one owner's parts, the merged one.
            fitting = [(key, part) for key, part in spare if part.base_offset == end and part.epoch >= epoch]
            if not fitting:
                break
            taken = max(fitting, key=lambda one: (one[1].epoch, one[1].end_offset))
            parts.append(taken)
            end, epoch = taken[1].end_offset, taken[1].epoch
        gap = min(
            ((key, part) for key, part in spare if part.base_offset > end),
            key=lambda one: one[1].base_offset,
            default=None,
        )
        return Chain(topic_id, start, end, parts, len(parts) - len(listed), gap)

    def note_damage(self, parts: Iterable[SegmentPart], what: str) -> None:
        """Record that parts are damaged."""
        for part in parts:
            self.damage.setdefault(part.topic_id, []).append(f"offsets [{part.base_offset}, {part.end_offset}): {what}")


def promised_parts(bucket: Bucket, topic_ids: Iterable[TopicId]) -> dict[str, list[SegmentPart]]:
    """Return the listed parts of topics by object."""
    promised: dict[str, list[SegmentPart]] = {}
    for topic_id in topic_ids:
        for key, part in bucket.parts.get(topic_id, {}).values():
            promised.setdefault(key, []).append(part)
    return promised
