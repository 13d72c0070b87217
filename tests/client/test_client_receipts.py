"""Receipts of messages whose offset the broker no longer knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from danube.client._many import Segment, joined
from danube.client._outbox import UNKNOWN_OFFSET
from danube.client._receipts import OffsetRange


def test_a_range_at_an_unknown_place_is_not_joined_with_the_first_messages() -> None:
    batches: list[Any] = [SimpleNamespace(base_offset=offset) for offset in (UNKNOWN_OFFSET, 0, 1)]
    found = joined([Segment("/default/t", 0, batch, 0, 1) for batch in batches])
    assert found == [OffsetRange("/default/t", -1, 1), OffsetRange("/default/t", 0, 2)]
    assert [each.end for each in found] == [-1, 2]
