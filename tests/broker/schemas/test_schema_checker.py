"""The process that examines schemas: hostile schemas cost an error, and neither the broker nor the next schema."""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from danube.broker.schemas import child as module
from danube.broker.schemas.checker import MOST_WAITING, Checker
from danube.checker.messages import READY, Answer, frame, length_of, outcome, refusal
from danube.model.errors import CallRefusedError, DanubeError, InvalidSchemaError, SchemaTooLargeError
from danube.model.limits import MIB, Limits
from danube.schema import Examination, Level, Needed, Policy, SchemaType, Source
from danube.schema.examine import Other

GOOD = Source(SchemaType.AVRO, '"string"')
DEPTH = 100_000


def examination(source: Source, *others: Source, level: Level = Level.BACKWARD) -> Examination:
    found = tuple(Other(index, index, each) for index, each in enumerate(others, 1))
    return Examination(source, found, level, Policy.STRICT)


def schema_json(schema: Any) -> Source:
    return Source(SchemaType.JSON, schema if isinstance(schema, str) else json.dumps(schema))


def nested_descriptor(most_bytes: int) -> Source:
    """Return a descriptor with messages in messages, as many as so many bytes hold."""
    inner = b"\x0a\x01M"
    while len(inner) < most_bytes:
        inner = b"\x0a\x01M\x1a" + _varint(len(inner)) + inner
    return Source(SchemaType.PROTOBUF, base64.b64encode(b"\x22" + _varint(len(inner)) + inner).decode())


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


@asynccontextmanager
async def checking(time_s: float = 10.0, **options: Any) -> AsyncIterator[Checker]:
    """A checker in a nursery that is cancelled in the end, as the broker's is."""
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            yield Checker(nursery.start_soon, Limits(schema_checker_timeout_s=time_s), **options)
            nursery.cancel_scope.cancel()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def ended(pid: int) -> None:
    while is_alive(pid):  # noqa: ASYNC110 - of a process that is no child of this test's own making
        await trio.sleep(0.01)


HOSTILE: dict[str, Source] = {
    "a deep Avro schema": Source(SchemaType.AVRO, '{"type":"array","items":' * DEPTH + '"int"' + "}" * DEPTH),
    "a deep JSON text": schema_json("[" * DEPTH + "]" * DEPTH),
    "deep JSON Schemas": schema_json('{"not":' * DEPTH + "{}" + "}" * DEPTH),
    "a deep .proto file": Source(SchemaType.PROTOBUF, 'syntax="proto3";' + "message A{" * DEPTH + "}" * DEPTH),
    "a deep descriptor": nested_descriptor(300_000),
    "a mebibyte": Source(SchemaType.AVRO, json.dumps({"type": "enum", "name": "E", "symbols": ["s" * 2**20]})),
    "a reference to a file": schema_json({"$ref": "file:///etc/passwd"}),
    "a reference to a server": schema_json({"$ref": "http://127.0.0.1:9/schema.json"}),
    "a bad expression": schema_json({"type": "string", "pattern": "(" * 5_000}),
    "an import of a file": Source(SchemaType.PROTOBUF, 'syntax="proto3"; import "/etc/passwd"; message M {}'),
    "an import from outside": Source(
        SchemaType.PROTOBUF, 'syntax="proto3"; import "../../../etc/passwd"; message M {}'
    ),
    "a text of another type": Source(SchemaType.JSON, "\x00\x01"),
}


async def test_hostile_schemas_are_refused_and_the_next_one_is_examined() -> None:
    async with checking() as checker:
        for name, source in HOSTILE.items():
            with pytest.raises((InvalidSchemaError, SchemaTooLargeError)):
                print(name, await checker(examination(source)))  # noqa: T201 - which one was accepted
            assert (await checker(examination(GOOD))).canonical == '"string"', name


async def test_hostile_pairs_end_with_an_answer_in_time() -> None:
    bomb = schema_json({"type": "string", "pattern": "^(a+)+$"})
    wide = schema_json({"anyOf": [{"properties": {f"p{j}": {"enum": [i, j]} for j in range(40)}} for i in range(40)]})
    loop = schema_json({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})
    async with checking(time_s=0.5) as checker:
        for one in (bomb, wide, loop):
            for other in (bomb, wide, loop):
                with suppress(InvalidSchemaError, SchemaTooLargeError):
                    assert (await checker(examination(one, other, level=Level.FULL))).basis[0] is Level.FULL
        checker._helper.time_s = 60.0
        assert (await checker(examination(GOOD))).name == ""


async def test_findings_and_errors_are_those_of_the_same_process() -> None:
    async with checking() as checker:
        old, new = schema_json({"type": "object"}), schema_json({"type": "array"})
        finding = await checker(examination(new, old))
        assert [str(each) for each in finding.objections]
        with pytest.raises(InvalidSchemaError, match="not JSON"):
            await checker(examination(schema_json("{")))


async def test_a_proto_file_is_compiled_with_its_imports_and_its_errors_are_told() -> None:
    text = 'syntax="proto3"; package shop; import "a/b.proto"; message Order { shop.User user = 1; }'
    user = 'syntax="proto3"; package shop; message User { string name = 1; }'
    async with checking() as checker:
        finding = await checker(examination(Source(SchemaType.PROTOBUF, text, (Needed("a/b.proto", user),))))
        assert finding.name == "shop.Order"
        file = FileDescriptorProto(name="b", package="shop", syntax="proto3")
        field = file.message_type.add(name="User").field.add(name="name", number=1)
        field.type, field.label = field.TYPE_STRING, field.LABEL_OPTIONAL
        serialized = base64.b64encode(file.SerializeToString()).decode()
        same = await checker(examination(Source(SchemaType.PROTOBUF, text, (Needed("a/b.proto", serialized),))))
        assert same.canonical == finding.canonical
        with pytest.raises(InvalidSchemaError, match=r'schema.proto:1:\d+: .*"Nothing" is not defined'):
            await checker(examination(Source(SchemaType.PROTOBUF, 'syntax="proto3"; message M { Nothing n = 1; }')))
        with pytest.raises(InvalidSchemaError, match=r"does not compile: schema.proto:1:9: Expected message name.$"):
            await checker(examination(Source(SchemaType.PROTOBUF, "message {")))
        for name in ("/etc/x", "../x", "schema.proto", "a/../../x"):
            with pytest.raises(InvalidSchemaError, match="has the path of its import"):
                await checker(examination(Source(SchemaType.PROTOBUF, text, (Needed(name, user),))))


async def test_a_child_that_was_killed_is_replaced_without_an_error() -> None:
    async with checking() as checker:
        await checker(examination(GOOD))
        first = checker.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert (await checker(examination(GOOD))).canonical == '"string"'
        assert checker.pid not in (None, first)
        await ended(first)


async def test_a_cancelled_examination_takes_its_child_along() -> None:
    async with checking() as checker:
        await checker(examination(GOOD))
        first = checker.pid
        assert first is not None
        with trio.CancelScope() as scope:
            scope.cancel()
            await checker(examination(GOOD))
        assert (await checker(examination(GOOD))).canonical == '"string"'


async def test_an_idle_child_ends_and_so_does_one_whose_broker_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.2)
    async with checking() as checker:
        await checker(examination(GOOD))
        first = checker.pid
        assert first is not None
        await ended(first)
        monkeypatch.setattr(module, "IDLE_S", 60.0)
        await checker(examination(GOOD))
        second = checker.pid
        assert second not in (None, first)
    assert not is_alive(second)


def scripted(tmp_path: Path, body: str) -> Callable[[], Any]:
    """Open a child that runs a script instead of the checker, after it has said that it is ready."""
    script = tmp_path / "child.py"
    ready = f"import sys, time\nsys.stdout.buffer.write({frame(READY)!r}); sys.stdout.flush()\n"
    script.write_text(body.replace("READY", ready))

    async def opened(*_: object) -> Any:
        process = await trio.lowlevel.open_process([sys.executable, str(script)], stdin=-1, stdout=-1)
        return module.Child(process)

    return opened


async def test_a_child_that_hangs_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with checking(time_s=0.2, open_child=scripted(tmp_path, "READY\ntime.sleep(1000)")) as checker:
        with pytest.raises(InvalidSchemaError, match="takes longer than"):
            await checker(examination(GOOD))
        assert checker.pid is None
    assert "was examined for 0.2 s" in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        "READY\nimport os; sys.stdin.buffer.read(4); os.abort()",
        "READY\nsys.stdin.buffer.read(4); sys.stdout.buffer.write(bytes([0, 0, 0, 1, 193])); sys.stdout.flush()",
        "READY\nsys.stdin.buffer.read(4); sys.stdout.buffer.write(bytes([255] * 4)); sys.stdout.flush()",
    ],
    ids=["crash", "nonsense", "endless"],
)
async def test_a_child_that_crashes_or_speaks_nonsense_costs_an_error(tmp_path: Path, body: str) -> None:
    async with checking(open_child=scripted(tmp_path, body)) as checker:
        with pytest.raises(InvalidSchemaError, match="crashes the parser"):
            await checker(examination(GOOD))


@pytest.mark.parametrize("body", ["", "import time; print('hello', flush=True); time.sleep(99)"])
async def test_a_child_that_does_not_start_is_retried_by_the_caller(tmp_path: Path, body: str) -> None:
    async with checking(open_child=scripted(tmp_path, body)) as checker:
        with pytest.raises(CallRefusedError, match="does not start"):
            await checker(examination(GOOD))


async def test_no_process_and_too_many_examinations(tmp_path: Path) -> None:
    async def fails(*_: object) -> Any:
        raise OSError(12, "Cannot allocate memory")

    async with checking(open_child=fails) as checker:
        with pytest.raises(CallRefusedError, match="Cannot allocate memory"):
            await checker(examination(GOOD))
    hangs = scripted(tmp_path, "READY\ntime.sleep(1000)")
    async with checking(open_child=hangs) as checker, trio.open_nursery() as nursery:
        for _ in range(MOST_WAITING):
            nursery.start_soon(checker, examination(GOOD))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(CallRefusedError, match="which is the most"):
            await checker(examination(GOOD))
        nursery.cancel_scope.cancel()


async def test_memory_is_limited() -> None:
    limits = Limits(schema_checker_memory_bytes=700 * MIB)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            checker = Checker(nursery.start_soon, limits)
            await checker(examination(GOOD))
            assert checker.pid is not None
            assert resource.prlimit(checker.pid, resource.RLIMIT_AS) == (700 * MIB, 700 * MIB)
            assert resource.getrlimit(resource.RLIMIT_AS) != (700 * MIB, 700 * MIB), "of the child only"
            nursery.cancel_scope.cancel()


async def test_lower_limits_are_those_of_new_schemas() -> None:
    limits = Limits(max_schema_bytes=100, max_schema_depth=3)
    large = schema_json({"type": "object", "description": "x" * 100})
    async with trio.open_nursery() as nursery:
        checker = Checker(nursery.start_soon, limits)
        with pytest.raises(SchemaTooLargeError, match="max_schema_bytes is 100"):
            await checker(examination(large))
        with pytest.raises(SchemaTooLargeError, match="max_schema_depth is 3"):
            await checker(examination(schema_json([[[[]]]])))
        found = await checker(examination(schema_json({"type": "object"}), large))
        assert not found.objections, "what was accepted before is compared with"
        nursery.cancel_scope.cancel()


def test_messages() -> None:
    for error in (MemoryError(), RecursionError(), KeyError("x"), SchemaTooLargeError("too large")):
        with pytest.raises(DanubeError) as found:
            outcome(refusal(error))
        assert isinstance(found.value, InvalidSchemaError | SchemaTooLargeError)
    assert frame(READY)[:4] == len(frame(READY)[4:]).to_bytes(4, "big")
    with pytest.raises(ValueError, match="a message of"):
        length_of(b"\xff" * 4)
    assert isinstance(READY, Answer)
