"""The progress of a range of a log, without a broker: what is requested, what is refused, where it ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from danube.client import _log_range
from danube.client._log_range import LogRange
from danube.model import api
from danube.model.batch import encode_part
from danube.model.errors import DanubeError, DataLossError, FailedPreconditionError
from danube.model.policies import Durability

_REQUEST = msgspec.msgpack.Decoder(api.ConsumeRequest)


class Stream:
    over = False

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send_nowait(self, data: bytes) -> bool:
        self.sent.append(_REQUEST.decode(data))
        return True

    def said(self) -> list[Any]:
        sent, self.sent = self.sent, []
        return sent


def opened(**fields: Any) -> api.ConsumeOpened:
    given: dict[str, Any] = {
        "topic_id": 7,
        "consumer_id": 1,
        "durability": Durability.DISK,
        "active": True,
        "floor": 0,
        "end_offset": 100,
        "ack_timeout_s": 0.0,
        "subscription_id": 0,
        "generation": 0,
        "start_offset": 0,
    }
    return api.ConsumeOpened(**(given | fields))


def delivery(base: int, count: int, charged: int = 10) -> api.ConsumeBatch:
    part = encode_part([b"x"] * count, producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=1)
    return api.ConsumeBatch(base, 1, 1, [], "p", charged, part)


def begun(start: int, end: int, credit_bytes: int = 1000, **fields: Any) -> tuple[LogRange, Stream]:
    found, stream = LogRange("/default/t", 7, start, end, credit_bytes), Stream()
    answer = opened(**fields)
    found.check(answer)
    found.begin(stream, answer)
    return found, stream


def test_credit_covers_the_range_and_returns_with_a_quarter_of_the_bytes() -> None:
    found, stream = begun(10, 50, 100)
    assert stream.said() == [api.Credit(40, 100)]
    found.take(delivery(10, 4, 24))
    assert stream.said() == []
    found.take(delivery(14, 10, 1))
    assert stream.said() == [api.Credit(0, 25)]
    assert [batch.base_offset for batch in found.arrived] == [10, 14]
    assert (found.next_offset, found.is_exhausted) == (24, False)


def test_a_range_ends_with_its_last_batch_or_where_the_rest_was_removed() -> None:
    found, _ = begun(0, 20)
    found.take(delivery(0, 20))
    assert found.is_exhausted
    found, _ = begun(0, 20)
    found.take(delivery(30, 5))
    assert found.is_exhausted
    assert not found.arrived, "that batch is behind the range"
    found, _ = begun(0, 20)
    found.take(api.CaughtUp(25))
    assert found.is_exhausted
    found, _ = begun(0, 20, start_offset=20)
    assert found.is_exhausted


def test_more_messages_are_requested_before_their_credit_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_log_range, "_MOST_MESSAGES", 20)
    found, stream = begun(0, 100)
    assert stream.said() == [api.Credit(20, 1000)]
    found.take(delivery(0, 10))
    assert stream.said() == []
    found.take(delivery(10, 1))
    assert stream.said() == [api.Credit(11, 20)]


@pytest.mark.parametrize(
    ("fields", "error", "what"),
    [
        ({"durability": Durability.NONE}, FailedPreconditionError, "stores nothing"),
        ({"topic_id": 8}, FailedPreconditionError, "deleted and created again"),
        ({"end_offset": 15}, DataLossError, r"offsets \[15, 20\) are not there: its log ends at 15"),
    ],
)
def test_a_broker_without_the_range_is_refused(fields: dict[str, Any], error: type[DanubeError], what: str) -> None:
    with pytest.raises(error, match=what):
        LogRange("/default/t", 7, 0, 20, 100).check(opened(**fields))


def test_a_damaged_batch_is_reported_with_its_offset() -> None:
    found, _ = begun(0, 20)
    damaged = delivery(5, 1)
    damaged.part = damaged.part[:-1] + bytes([damaged.part[-1] ^ 1])
    with pytest.raises(DataLossError, match="the batch at offset 5 arrived damaged"):
        found.take(damaged)
