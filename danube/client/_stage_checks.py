"""Checks of the arguments of staged publishing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from danube.client._checks import check_count, check_list
from danube.client._outbox import RECORD_OVERHEAD, record_size
from danube.model.batch import Record
from danube.model.errors import InvalidArgumentError
from danube.model.names import validate_identifier, validate_name
from danube.model.stage_api import StagedBatch

__all__ = ["check_batch", "checked_stages", "measured"]


def measured(records: Sequence[Any]) -> tuple[type, list[int], int]:
    """Return the type of the messages, the approximate size of each in bytes, and the largest payload."""
    kinds = set(map(type, records))
    if kinds == {Record}:
        strange = {type(each.key) for each in records} - {bytes, type(None)}
        if strange:
            names = ", ".join(sorted(kind.__name__ for kind in strange))
            raise InvalidArgumentError(f"the key of a Record is bytes or None, not {names}; encode it, key.encode()")
        # `pieces` adds the overhead of the record itself.
        lengths = [record_size(len(each.payload), each.key, each.attributes) - RECORD_OVERHEAD for each in records]
        return Record, lengths, max(len(each.payload) for each in records)
    if kinds != {bytes}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidArgumentError(
            f"a stage takes either bytes or Records, not {names}; encode payloads to bytes first"
        )
    lengths = list(map(len, records))
    return bytes, lengths, max(lengths)


def checked_stages(stages: Sequence[StagedBatch]) -> list[StagedBatch]:
    """Return the staged batches of a commit, checked."""
    found = check_list("stages", stages, "what Stage.finish() returns")
    for stage in found:
        if not isinstance(stage, StagedBatch):
            raise InvalidArgumentError(f"stages are what Stage.finish() returns, not {type(stage).__name__}")
    return found


def check_batch(producer: str, batch_id: int, write_id: str = "") -> None:
    """Check what identifies a batch of a job."""
    validate_name("producer", producer)
    if write_id != "":
        validate_identifier("write", write_id)
    check_count(f"producer {producer!r}: batch_id", batch_id)
