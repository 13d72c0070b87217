"""The process that checks payloads: hostile ones cost an error, and neither the broker nor the next batch."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from danube.broker.schemas import child as child_module
from danube.broker.schemas import payloads as module
from danube.broker.schemas.payloads import PayloadChecker
from danube.checker.messages import READY, frame
from danube.model.batch import encode_part
from danube.model.errors import CallRefusedError, InvalidSchemaError, SchemaPayloadError
from danube.model.limits import Limits
from danube.schema import SchemaType, Source
from danube.schema.frames import encode_frame

IDS: Any = {"producer_id": 1, "producer_epoch": 1, "base_sequence": 0, "publish_time_us": 1}
NODE = {"$ref": "#/$defs/n"}
BRANCH = {"type": "object", "properties": {"x": NODE}}
BRANCHING = {"$defs": {"n": {"anyOf": [BRANCH, BRANCH]}}, **NODE}
"""Takes time exponential in the depth of a document that does not fit."""
SCHEMAS = {
    1: Source(SchemaType.STRING, ""),
    2: Source(SchemaType.AVRO, '{"type": "array", "items": "null"}'),
    3: Source(SchemaType.JSON, json.dumps(BRANCHING)),
    4: Source(SchemaType.JSON, json.dumps({"type": "string", "pattern": "^(a+)+$"})),
    5: Source(SchemaType.JSON, "{}"),
    6: Source(SchemaType.AVRO, '{"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}'),
}
BILLION = b"\x80\xa8\xd6\xb9\x07"
"""A billion, as a number of Avro."""


class Asking:
    """A checker, and which schemas it asked for."""

    def __init__(self, checker: PayloadChecker) -> None:
        self.checker = checker
        self.read: list[int] = []

    async def __call__(self, number: int, *payloads: bytes, numbers: tuple[int, ...] = ()) -> None:
        part = encode_part(list(payloads), schema_id=0 if numbers else number, **IDS)
        await self.checker(part, 1 << 22, numbers or (number,), bool(numbers), self._source)

    def _source(self, number: int) -> Source:
        self.read.append(number)
        return SCHEMAS[number]


@asynccontextmanager
async def checking(time_s: float = 5.0, **options: Any) -> AsyncIterator[Asking]:
    limits = Limits(payload_check_timeout_s=time_s)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            yield Asking(PayloadChecker(nursery.start_soon, limits, **options))
            nursery.cancel_scope.cancel()


async def test_schemas_are_sent_once_to_each_child(monkeypatch: pytest.MonkeyPatch) -> None:
    async with checking() as check:
        for _ in range(3):
            await check(1, b"x", b"y")
        with pytest.raises(SchemaPayloadError, match="message 1 of the batch does not fit schema 1"):
            await check(1, b"x", b"\xff")
        await check(1, b"x")
        assert check.read == [1]
        await check(0, encode_frame(1, b"x"), encode_frame(5, b"[]"), numbers=(1, 5))
        assert check.read == [1, 5]
        first = check.checker.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await check(1, b"x")
        assert check.checker.pid != first
        assert check.read == [1, 5, 1]
        monkeypatch.setattr(module, "_MOST_KNOWN", 1)
        await check(5, b"{}")
        await check(1, b"x")
        assert check.read == [1, 5, 1, 5, 1]


async def test_hostile_payloads_cost_an_error() -> None:
    deep = b'{"x":' * 28 + b"1" + b"}" * 28
    async with checking(time_s=1.0) as check:
        for number, payload in (
            (2, BILLION + b"\x00"),
            (3, deep),
            (5, b"[" * 1_000_000 + b"]" * 1_000_000),
            (6, b"\x02" * 1_000_000 + b"\x00"),
            (6, b"\x02" * 100_000),
        ):
            with pytest.raises(SchemaPayloadError):
                await check(number, payload)
            await check(1, b"and the next one is fine")
        with pytest.raises(SchemaPayloadError):
            await check(4, b'"' + b"a" * 60 + b'!"')


def scripted(tmp_path: Path, body: str) -> Callable[[], Any]:
    """Open a child that runs a script instead of the checker, after it has said that it is ready."""
    script = tmp_path / "child.py"
    script.write_text(f"import sys, time\nsys.stdout.buffer.write({frame(READY)!r}); sys.stdout.flush()\n{body}")

    async def opened(*_: object) -> Any:
        process = await trio.lowlevel.open_process([sys.executable, str(script)], stdin=-1, stdout=-1)
        return child_module.Child(process)

    return opened


async def test_a_child_that_hangs_or_crashes_costs_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with checking(time_s=0.2, open_child=scripted(tmp_path, "time.sleep(1000)")) as check:
        with pytest.raises(SchemaPayloadError, match=r"takes longer than payload_check_timeout_s = 0\.2 s"):
            await check(1, b"x")
        assert check.checker.pid is None
    async with checking(open_child=scripted(tmp_path, "sys.stdin.buffer.read(4); import os; os.abort()")) as check:
        with pytest.raises(SchemaPayloadError, match="crashes the parser"):
            await check(1, b"x")
    assert "payloads of schemas [1] were checked for 0.2 s" in caplog.text
    assert "have crashed the process that checks payloads" in caplog.text


async def test_no_process_and_an_unusable_schema() -> None:
    async def fails(*_: object) -> Any:
        raise OSError(12, "Cannot allocate memory")

    async with checking(open_child=fails) as check:
        with pytest.raises(CallRefusedError, match="checks payloads does not start: Cannot allocate memory"):
            await check(1, b"x")
    SCHEMAS[7] = Source(SchemaType.AVRO, "no schema")
    async with checking() as check:
        for _ in range(2):
            with pytest.raises(InvalidSchemaError):
                await check(7, b"x")
        assert check.read == [7, 7], "it is not taken for known"
