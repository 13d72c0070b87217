"""What a search reads: the ranges of the logs of a topic, as they are when it begins."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from danube.model.errors import FailedPreconditionError, InvalidArgumentError
from danube.model.policies import Durability
from danube.web.messages import Last, Positions
from danube.web.search.filters import parse_filter
from danube.web.search.jobs import Part
from danube.web.search.scanning import bounds_of

if TYPE_CHECKING:
    from danube.client import Client
    from danube.model.query_api import LogState

__all__ = ["plan_search"]

_LOCAL = "disk://"
"""Storages that a process on the machine of the broker reads without credentials."""


async def plan_search(client: Client, topic: str, filter_text: str, start: Positions, *, direct: bool) -> list[Part]:
    """Return what has to be read to search a topic: one part for each plain topic or partition.

    Args:
        client: of the caller, whose rights are judged.
        topic: a plain topic, a partition, or a partitioned topic.
        filter_text: the filter; its conditions on offset and time narrow what is read.
        start: where to begin.
        direct: whether sealed messages may be read from a storage on this machine.

    Raises:
        FilterError: the filter cannot be read.
        FailedPreconditionError: the topic stores nothing.
        DanubeError: the topic does not exist, or the caller may not read it.
    """
    bounds = bounds_of(parse_filter(filter_text))
    states = await client.logs.states([topic])
    parts = []
    for state in states:
        if state.durability is Durability.NONE:
            raise FailedPreconditionError(
                f"topic {topic!r} has durability 'none': it stores nothing, so nothing can be searched"
            )
        begin = await _start(client, state, start)
        if bounds.time_us > 0:
            begin = max(begin, await client.logs.offset_at(state.name, bounds.time_us))
        begin = max(begin, bounds.start, state.start_offset)
        end = min(state.end_offset, bounds.end)
        url = state.storage_url if direct and state.storage_url.startswith(_LOCAL) else ""
        parts.append(Part(state.name, state.partition, state.topic_id, min(begin, end), end, url))
    _check_positions(start, parts)
    return parts


async def _start(client: Client, state: LogState, start: Positions) -> int:
    if isinstance(start, dict):
        return start.get(state.partition, int(state.start_offset))
    if isinstance(start, Last):
        return int(state.end_offset) - start.messages
    if isinstance(start, datetime):
        return await client.logs.offset_at(state.name, start)
    if start == "latest":
        return int(state.end_offset)
    return int(state.start_offset) if isinstance(start, str) else start


def _check_positions(start: Positions, parts: list[Part]) -> None:
    if isinstance(start, dict):
        known = {part.partition for part in parts}
        for partition in start:
            if partition not in known:
                raise InvalidArgumentError(f"the position names partition {partition}, which is not searched here")
