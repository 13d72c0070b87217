"""What damage has taken of which topics, and how the next recovery learns of it. Pure.

A loss is told by every start until its offsets are not needed any more: topics of which messages are lost do not go on
by themselves. But its traces vanish. A damaged file of the tail is replaced by a copy; the batches on both sides of a
hole are released, and their files recycled. So the journal keeps each conclusion in one of two places:

* A damaged file of the body stays until the offsets are released that were *salvaged*, that is, identified from the
  remains of the damage.
* A DAMAGE entry in a fresh file tells the same of a file of the tail, and what was *deduced*. Damage with unidentified
  bytes may concern every topic seen before it. The next batch of the topic shows by its offset whether some are
  missing; if there is no next batch, its last messages may be missing.

A topic is doubted only once for one damage: by the recovery that finds it first. An entry that names the same range
settles it; without it, a later recovery might not see the batch that cleared the doubt. So the file with that entry
stays as long as the damaged file, see :attr:`danube.log._files.JournalFile.explains`.
"""

from __future__ import annotations

import logging
from typing import Final, TypeAlias

from danube.log._files import JournalFile
from danube.log.recovered import Corruption, Recovered, RecoveredTopic
from danube.model.ids import FIRST_OFFSET, Offset, TopicId
from danube.model.log_events import log_event

__all__ = ["Damages"]

_log = logging.getLogger("danube.journal")

_FOR_EVER: Final = Offset(2**63 - 1)
_TOPICS_PER_ENTRY: Final = 100
_TOLD: Final = (0, 0, 0)
"""In place of a range: an entry says that the last messages of the topic may be missing."""

_Place: TypeAlias = tuple[int, int, int]


class Damages:
    """The damage that one recovery meets. Topics and reports are noted in ``recovered``."""

    def __init__(self, recovered: Recovered) -> None:
        self._recovered = recovered
        self._found: list[Corruption] = []
        self._open: set[_Place] = set()
        """Damage of the tail: the entry that replaces it says what was salvaged, and settles nothing."""
        self._settled: set[_Place] = set()
        self._known: dict[TopicId, list[tuple[Offset, Offset]]] = {}
        """Lost offsets that the journal tells of, by a damaged file or by an entry."""
        self._doubts: dict[TopicId, set[_Place]] = {}
        """Topics that were doubted, and the damage because of which, since their last batch."""

    def find(self, corruption: Corruption, file: JournalFile | None = None) -> None:
        """Note damage that was found in a file.

        Args:
            corruption: the damage.
            file: where it stays: a file of the body. None: the caller writes an entry.
        """
        self._found.append(corruption)
        if corruption.end:
            self._recovered.corruptions.append(corruption)
        _log.critical("%s", corruption.error(), extra=log_event("journal.damaged"))
        place = _place(corruption)
        if file is None:
            self._open.add(place)
        if not corruption.complete:
            for topic in self._recovered.topics.values():
                self._doubt(topic, place)
        for topic_id, (low, high) in corruption.topics.items():
            topic = self._recovered.topic(topic_id, low)
            if not high:
                self._doubt(topic, place)
                continue
            self._lose(topic, low, high)
            if file is not None:
                file.count_batch(topic_id, 0, high)

    def tell(self, corruption: Corruption, file: JournalFile) -> None:
        """Note an entry about damage: its file stays until the lost offsets are not needed."""
        place = _place(corruption)
        news = any(lost not in self._known.get(topic_id, ()) for topic_id, lost in corruption.topics.items())
        if news or place not in map(_place, self._recovered.corruptions):
            self._recovered.corruptions.append(corruption)
            _log.critical("%s", corruption.error(), extra=log_event("journal.damaged"))
        if place not in self._open:
            self._settled.add(place)
        file.explains.add(corruption.file)
        for topic_id, (low, high) in corruption.topics.items():
            topic = self._recovered.topic(topic_id, low)
            if high:
                self._lose(topic, low, high)
            else:
                self._doubt(topic, _TOLD)
            file.count_batch(topic_id, 0, high or _FOR_EVER)

    def conclude(self) -> list[Corruption]:
        """Decide about the topics that are in doubt, after all batches; return the entries to write about it."""
        topics = self._recovered.topics
        for topic_id, places in self._doubts.items():
            if topic_id in topics and places <= self._settled:
                topics[topic_id].suspect = False
        rounds: list[dict[TopicId, tuple[Offset, Offset]]] = []
        for topic_id in sorted((self._doubts.keys() | self._known.keys()) & topics.keys()):
            lost = self._untold(topics[topic_id])
            rounds += [{} for _ in range(len(lost) - len(rounds))]
            for found, each in zip(rounds, lost, strict=False):
                found[topic_id] = each
        open_ones = [each for each in self._found if _place(each) not in self._settled]
        cause = next(iter([*open_ones, *self._found, *self._recovered.corruptions]), None)
        entries = [
            Corruption(cause.file, cause.start, cause.end, dict(items[at : at + _TOPICS_PER_ENTRY]), complete=True)
            for items in (list(found.items()) for found in rounds)
            for at in range(0, len(items), _TOPICS_PER_ENTRY)
            if cause is not None
        ]
        settled = {_place(each) for each in entries}
        return entries + [
            Corruption(each.file, each.start, each.end, {}, complete=True)
            for each in open_ones
            if each.end and each != each.known() and _place(each) not in settled
        ]

    def _untold(self, topic: RecoveredTopic) -> list[tuple[Offset, Offset]]:
        known = self._known.get(topic.topic_id, [])
        lost = [(low, high) for low, high in topic.damaged if not any(a <= low and high <= b for a, b in known)]
        if topic.suspect and _TOLD not in self._doubts[topic.topic_id]:
            lost.append((topic.next_offset, FIRST_OFFSET))
        return lost

    def _lose(self, topic: RecoveredTopic, low: Offset, high: Offset) -> None:
        topic.note_damage(low, high)
        self._known.setdefault(topic.topic_id, []).append((low, high))

    def _doubt(self, topic: RecoveredTopic, place: _Place) -> None:
        # A batch clears this flag, and then there was no doubt before this one.
        if not topic.suspect:
            self._doubts[topic.topic_id] = set()
        topic.suspect = True
        self._doubts.setdefault(topic.topic_id, set()).add(place)


def _place(corruption: Corruption) -> _Place:
    return corruption.file, corruption.start, corruption.end
