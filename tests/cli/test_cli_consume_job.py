"""Output and acknowledgements of ``consume``. The client is a stand-in; batches are real ones."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from danube.cli import _consume, _printing
from danube.cli._consume import ConsumeOptions
from danube.cli._output import Output
from danube.cli._printing import make_printer

TIME_US = 1_700_000_000_123_456


class StandInMessage(SimpleNamespace):
    def ack_nowait(self):
        self.acked.append(self.offset)


class StandInBatch(list):
    def payloads(self):
        return [message.payload for message in self]

    def ack_nowait(self):
        for message in self:
            message.ack_nowait()


def message(offset, payload, acked=None, **changes):
    return StandInMessage(
        **{
            "topic": "/d/t",
            "partition": 0,
            "offset": offset,
            "key_bytes": None,
            "payload": payload,
            "attributes": None,
            "publish_time_us": TIME_US,
            "attempt": 1,
            "producer": "till",
            "acked": [] if acked is None else acked,
            **changes,
        }
    )


class StandInClient:
    def __init__(self, *batches):
        self.acked = []
        self.batches_waiting = [
            StandInBatch(message(offset, payload, self.acked) for offset, payload in batch) for batch in batches
        ]
        self.options = {}

    @asynccontextmanager
    async def consumer(self, topic, **options):
        self.options = options
        yield self

    def batches(self, *, until_caught_up):
        self.until_caught_up = until_caught_up
        return self

    def __aiter__(self):
        return self

    async def __anext__(self):
        await trio.lowlevel.checkpoint()
        if self.batches_waiting:
            return self.batches_waiting.pop(0)
        if self.until_caught_up:
            raise StopAsyncIteration
        os.kill(os.getpid(), signal.SIGINT)
        return await trio.sleep_forever()


def consume(client, **plan):
    plan = ConsumeOptions(topic="/d/t", subscription="s", **plan)
    trio.run(_consume._Job(client, plan, make_printer(plan.format, Output.RAW)).run)


def two_batches():
    return StandInClient([(0, b"a"), (1, b"b")], [(2, b"c"), (3, b"d"), (4, b"e")])


def test_everything_is_printed_and_then_acknowledged(capfdbinary):
    client = two_batches()
    consume(client, until_caught_up=True, format="%o=%v")
    assert capfdbinary.readouterr().out == b"0=a\n1=b\n2=c\n3=d\n4=e\n"
    assert client.acked == [0, 1, 2, 3, 4]
    assert client.options["credit_messages"] is None


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_count_stops_in_the_middle_of_a_batch(count, capfdbinary):
    client = two_batches()
    consume(client, count=count)
    assert capfdbinary.readouterr().out == b"".join(b"%c\n" % letter for letter in b"abcde"[:count])
    assert client.acked == list(range(count))
    assert client.options["credit_messages"] == count


def test_no_ack_acknowledges_nothing(capfdbinary):
    client = two_batches()
    consume(client, until_caught_up=True, ack=False)
    assert capfdbinary.readouterr().out == b"a\nb\nc\nd\ne\n"
    assert client.acked == []


def test_a_signal_ends_it_cleanly(capfdbinary):
    client = two_batches()
    consume(client)
    assert client.acked == [0, 1, 2, 3, 4]


def test_messages_written_to_a_closed_pipe_are_not_acknowledged(monkeypatch):
    client = two_batches()
    written = []

    def write(data):
        if written:
            raise BrokenPipeError
        written.append(data)

    monkeypatch.setattr(_printing, "write_now", write)
    consume(client, until_caught_up=True)
    assert client.acked == [0, 1]


def test_writing_survives_short_writes():
    reader, writer = os.pipe()
    data = bytes(range(256)) * 1_000
    received = bytearray()

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, _printing.write_now, data)
            while len(received) < len(data):
                received.extend(await trio.to_thread.run_sync(os.read, reader, 65_536))

    with pytest.MonkeyPatch.context() as patch, os.fdopen(writer, "w") as stdout, os.fdopen(reader):
        patch.setattr(sys, "stdout", stdout)
        trio.run(main)
    assert received == data


_texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    payload=st.binary() | _texts.map(str.encode),
    key=st.none() | _texts.map(str.encode) | st.binary(),
    attributes=st.none() | st.dictionaries(_texts, _texts, max_size=2),
)
def test_json_carries_any_message(payload, key, attributes):
    one = message(7, payload, key_bytes=key, attributes=attributes, partition=2, attempt=3)
    line = make_printer(None, Output.JSON)([one, one])
    first, second, rest = line.split(b"\n")
    assert (first, rest) == (second, b"")
    shown = json.loads(first)
    stored = shown["payload"]
    assert (base64.b64decode(stored) if shown.get("encoding") == "base64" else stored.encode()) == payload
    stored = shown["key"]
    if shown.get("key_encoding") == "base64":
        assert base64.b64decode(stored) == key
    else:
        assert (None if stored is None else stored.encode()) == key
    assert shown["attributes"] == (attributes or {})
    assert (shown["offset"], shown["partition"], shown["attempt"]) == (7, 2, 3)
    assert shown["publish_time"] == "2023-11-14T22:13:20.123456Z"


@given(payload=st.binary(), key=st.none() | _texts.map(str.encode) | st.binary())
def test_a_table_row_stays_one_line(payload, key):
    rows = make_printer(None, Output.TABLE)([message(7, payload, key_bytes=key)])
    assert rows.count(b"\n") == 1
    assert rows.decode().isprintable() or rows.decode()[:-1].isprintable()


def test_raw_is_the_payload_and_a_newline():
    printer = make_printer(None, Output.RAW)
    batch = StandInBatch([message(0, b"\xff"), message(1, b"")])
    assert printer(batch) == b"\xff\n\n"
    assert printer(list(batch)) == b"\xff\n\n"
    assert printer([]) == b""


@pytest.mark.parametrize(("stuck_s", "grace_s", "acked"), [(0.05, 5.0, [0, 1]), (10.0, 0.5, [])])
def test_a_signal_waits_for_output_under_way_but_not_for_ever(stuck_s, grace_s, acked, monkeypatch):
    client = two_batches()

    def write(data):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(stuck_s)

    monkeypatch.setattr(_printing, "write_now", write)
    monkeypatch.setattr(_consume, "_GRACE_S", grace_s)
    began = time.monotonic()
    consume(client)
    assert client.acked == acked
    assert time.monotonic() - began < 8
