"""Operations on logs for query engines: states (also as a long poll), sealed parts, offsets by time.

A long poll is idle until something changes: it waits for an event, set by the topics that it watches and by the
directory; at the end of the commit that set the event it evaluates the states again.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from danube.history import PartRecord, to_log_part
from danube.model import query_api, validate_topic
from danube.model.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    LimitExceededError,
    TopicNotFoundError,
)
from danube.model.ids import FIRST_OFFSET, Offset
from danube.model.names import split_partition
from danube.model.ranges import RangeSet
from danube.model.records import members
from danube.storage import reachable_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danube.broker.directory.directory import Directory
    from danube.broker.topic.topic import Topic

__all__ = ["LogOperations"]


class LogOperations:
    """Operations on logs; see the module.

    Args:
        directory: of the topics.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._urls: dict[str, str] = {}

    async def names(self, _request: query_api.GetTopicNames) -> query_api.TopicNames:
        """Return the names of all topics."""
        directory = self._directory
        return query_api.TopicNames(directory.version, [name for name, _ in directory.catalogue.topics()])

    # --- States ---

    async def states(self, request: query_api.GetLogStates) -> query_api.LogStates:
        """Return the states of logs, at once or when they have changed."""
        answer = self._states(request)
        if request.wait_ms <= 0 or self._has_news(request, answer):
            return answer
        directory = self._directory
        with trio.move_on_after(min(request.wait_ms / 1000, directory.runtime.limits.max_log_wait_s)):
            while True:
                # Registered before the states are read, so that no change is missed.
                wake = trio.Event()
                watched = [directory.watchers, *(topic.watchers for topic in self._topics(request.topics))]
                for watchers in watched:
                    watchers.add(wake)
                try:
                    answer = self._states(request)
                    if self._has_news(request, answer):
                        return answer
                    await wake.wait()
                finally:
                    for watchers in watched:
                        watchers.discard(wake)
        return self._states(request)

    @staticmethod
    def _has_news(request: query_api.GetLogStates, answer: query_api.LogStates) -> bool:
        known = request.beyond or {}
        return (request.version not in (0, answer.version)) or any(
            state.name not in known or state.end_offset > known[state.name] for state in answer.states
        )

    def _topics(self, names: Sequence[str]) -> list[Topic]:
        """Return the topics and partitions of the given names.

        Raises:
            TopicNotFoundError: a topic does not exist.
            LimitExceededError: they are too many for one reply.
        """
        directory = self._directory
        most = directory.runtime.limits.max_log_states
        found: list[Topic] = []
        for name in names:
            validate_topic(name)
            record = directory.catalogue.find(name)
            if record is None or not record.partitions:
                found.append(directory.find(name))
            else:
                for each, _ in members(name, record):
                    with suppress(TopicNotFoundError):  # a partition that is being created is reported by the next call
                        found.append(directory.find(each))
            if len(found) > most:
                raise LimitExceededError(
                    f"the states of more than max_log_states = {most} topics and partitions are requested at a time;"
                    " request fewer topics, or use a narrower pattern"
                )
        return found

    def _states(self, request: query_api.GetLogStates) -> query_api.LogStates:
        return query_api.LogStates(
            [self._state(topic) for topic in self._topics(request.topics)], self._directory.version
        )

    def _state(self, topic: Topic) -> query_api.LogState:
        # A plain topic cannot have the name of a partition.
        base, partition = split_partition(topic.name) or (topic.name, 0)
        return query_api.LogState(
            topic=base,
            partition=partition,
            name=topic.name,
            topic_id=topic.topic_id,
            durability=topic.durability,
            start_offset=topic.start_offset,
            sealed_offset=self._sealed_offset(topic),
            end_offset=topic.end_offset,
            storage=topic.storage,
            storage_url=self._url(topic.storage),
            is_framed=topic.intake.is_framed,
            gaps=self._empty(topic),
        )

    def _empty(self, topic: Topic) -> list[tuple[Offset, Offset]]:
        """Return the declared gaps without what they were filled with."""
        if not topic.gaps:
            return []
        declared = RangeSet((gap.start, gap.end) for gap in topic.gaps)
        history = self._directory.history.catalogue.find(topic.topic_id)
        found: list[tuple[Offset, Offset]] = []
        for start, end in declared:
            parts = history.between(Offset(start), Offset(end), sys.maxsize)[0] if history is not None else []
            sealed = RangeSet((record.part.base_offset, record.part.end_offset) for record in parts)
            found += [(Offset(low), Offset(high)) for low, high in sealed.gaps(start, end)]
        return found

    def _sealed_offset(self, topic: Topic) -> Offset:
        """Return the end of the parts in the catalogue."""
        history = self._directory.history.catalogue.find(topic.topic_id)
        sealed = history.end_offset if history is not None else FIRST_OFFSET
        return min(max(topic.start_offset, sealed), topic.end_offset)

    def _url(self, storage: str) -> str:
        """Return the URL of a storage for other processes; empty if it is not configured any more."""
        if storage not in self._urls:
            config = self._directory.runtime.config
            found = config.all_storages.get(storage)
            self._urls[storage] = reachable_url(found.url, found.options, config.data_directory) if found else ""
        return self._urls[storage]

    # --- Parts ---

    def _kept(self, name: str) -> Topic:
        validate_topic(name)
        topic = self._directory.find(name)
        if topic.lossy:
            raise FailedPreconditionError(
                f"topic {name!r} has durability 'none': it stores nothing, so nothing can be read"
            )
        return topic

    async def parts(self, request: query_api.GetLogParts) -> query_api.LogPartsPage:
        """Return the places of the sealed batches of a range, or of the first part of it."""
        topic = self._kept(request.topic)
        if not 0 <= request.start <= request.end:
            raise InvalidArgumentError(f"offsets [{request.start}, {request.end}) are not a range")
        sealed = self._sealed_offset(topic)
        offset, end = max(request.start, topic.start_offset), min(request.end, sealed)
        history = self._directory.history.catalogue.find(topic.topic_id)
        found: list[PartRecord] = []
        more = False
        if history is not None and offset < end:
            found, more = history.between(offset, end, self._directory.runtime.limits.max_log_parts)
        return query_api.LogPartsPage(
            topic.topic_id,
            topic.start_offset,
            sealed,
            topic.end_offset,
            [self._part(record) for record in found],
            more,
            {name: self._url(name) for name in sorted({record.storage for record in found})},
            [(gap.start, gap.end) for gap in topic.gaps],
        )

    def _part(self, record: PartRecord) -> query_api.LogPart:
        catalogue, part = self._directory.history.catalogue, record.part
        known = catalogue.objects.get(record.ref) or catalogue.commits.get(record.ref)
        return to_log_part(record.storage, record.object, known.size_bytes if known is not None else 0, part)

    async def offset_at(self, request: query_api.FindOffset) -> query_api.FoundOffset:
        """Return the first offset that was appended at or after a time."""
        topic = self._kept(request.topic)
        if request.time_us < 0:
            raise InvalidArgumentError(f"time_us = {request.time_us} is negative: microseconds since 1970")
        return query_api.FoundOffset(await topic.kept.offset_at(request.time_us))
