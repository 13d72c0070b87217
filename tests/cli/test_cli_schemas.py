"""``danube schemas`` against a real broker, whose schemas are examined in a process of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from brokers import BrokerProcess
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from typer.testing import CliRunner

import danube
from danube.cli.app import app
from danube.schema.typed import Subject

SUBJECT = "/default/orders-value"
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
NOTED = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string"}]}
DEFAULTED = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": ""}]}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        yield running
        assert running.terminate() == 0


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, schema in (("order", ORDER), ("noted", NOTED), ("defaulted", DEFAULTED)):
        (tmp_path / f"{name}.avsc").write_text(json.dumps(schema))
    (tmp_path / "shop.proto").write_text('syntax = "proto3"; package shop; message Order { int32 id = 1; }')
    return tmp_path


def run(broker: BrokerProcess, *arguments: Any, code: int = 0) -> str:
    env = {"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent"}
    done = CliRunner().invoke(app, ["schemas", *map(str, arguments)], env=env)
    assert done.exit_code == code, done.output
    return done.output


def test_a_subject_from_its_first_version_to_its_end(broker: BrokerProcess, files: Path) -> None:
    registered = run(broker, "register", SUBJECT, files / "order.avsc", "--description", "first", "--tag", "a")
    number = int(registered.split("id ")[1].split()[0])
    assert registered == f"{SUBJECT}  version 1  id {number}  avro\n"
    again = run(broker, "register", SUBJECT, files / "order.avsc")
    assert again == f"{SUBJECT}  version 1  id {number}  avro  (registered before)\n"

    refused = run(broker, "check", SUBJECT, files / "noted.avsc", code=78)
    assert refused == (
        "incompatible (BACKWARD with version 1): field 'note' has no default, and the writer has no such field\n"
    )
    assert "field 'note' has no default" in run(broker, "register", SUBJECT, files / "noted.avsc", code=78)
    assert run(broker, "check", SUBJECT, files / "defaulted.avsc") == "compatible (BACKWARD, with version 1)\n"
    assert run(broker, "check", "new", files / "noted.avsc").startswith("compatible (BACKWARD, there is no version")
    assert not json.loads(run(broker, "check", f"{SUBJECT}@1", files / "noted.avsc", "-o", "json", code=78))[
        "is_compatible"
    ]
    run(broker, "register", SUBJECT, files / "defaulted.avsc")

    assert run(broker, "list", "-o", "raw").splitlines() == [f"{SUBJECT}\tavro\t2\t2\tbackward\treadwrite"]
    shown = run(broker, "show", f"{SUBJECT}@1")
    assert [line.split(maxsplit=1) for line in shown.splitlines()[:3]] == [
        ["subject", SUBJECT], ["version", "1"], ["id", str(number)],
    ]  # fmt: skip
    assert shown.rstrip().endswith(json.dumps(ORDER))
    assert json.loads(run(broker, "show", number, "--id", "-o", "json"))["carriers"] == [[SUBJECT, 1]]
    assert json.loads(run(broker, "show", SUBJECT, "--text")) == DEFAULTED
    changed = [line for line in run(broker, "diff", SUBJECT, 1, 2).splitlines() if line.startswith("+ ")]
    assert any('"note"' in line for line in changed)

    assert run(broker, "compatibility", SUBJECT, "full-transitive").split()[:2] == ["level", "full_transitive"]
    run(broker, "mode", SUBJECT, "read-only")
    assert "READONLY" in run(broker, "delete", SUBJECT, code=78)
    assert run(broker, "mode", SUBJECT, "read-write").split() == ["mode", "readwrite"]
    run(broker, "mode", SUBJECT, "--unset")
    run(broker, "compatibility", SUBJECT, "--unset")
    assert "deleted already" not in run(broker, "delete", f"{SUBJECT}@1")
    assert "1" in run(broker, "show", SUBJECT, "--versions")
    assert run(broker, "delete", SUBJECT) == f"deleted {SUBJECT}: version 2\n"
    assert SUBJECT not in run(broker, "list")
    assert run(broker, "delete", SUBJECT, "--permanent") == f"deleted {SUBJECT}: version 1, 2\n"
    assert run(broker, "purge", number) == f"removed schema {number}\n"
    run(broker, "show", number, "--id", code=66)


def test_proto_files_descriptors_references_and_types_without_text(broker: BrokerProcess, files: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc")
    run(broker, "register", "shop", files / "shop.proto")
    code = protoc.main(["protoc", f"-I{files}", f"-o{files / 'shop.desc'}", str(files / "shop.proto")])
    assert code == 0
    assert FileDescriptorSet.FromString((files / "shop.desc").read_bytes()).file
    assert "registered before" in run(broker, "register", "shop", files / "shop.desc"), "text and descriptor are equal"
    (files / "cart.proto").write_text(
        'syntax = "proto3"; package shop; import "shop.proto"; message Cart { repeated Order orders = 1; }'
    )
    run(broker, "register", "cart", files / "cart.proto", "--reference", "shop.proto=shop@1")
    assert "shop.proto=shop@1" in run(broker, "show", "cart")
    assert "message Cart" in run(broker, "show", "cart", "--text")
    assert "referenced" in run(broker, "delete", "shop", code=78)
    assert "number" in run(broker, "register", "count", "--type", "number")
    assert "does not compile" in run(broker, "register", "broken", files / "order.avsc", "--type", "protobuf", code=65)


def test_a_topic_is_bound_and_unbound(broker: BrokerProcess, files: Path) -> None:
    topic = "/default/bound"
    run(broker, "register", "bound-value", files / "order.avsc")
    env = {"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent"}
    assert CliRunner().invoke(app, ["topics", "create", topic], env=env).exit_code == 0
    assert run(broker, "bind", topic, "bound-value") == f"{topic} has subject bound-value\n"
    described = CliRunner().invoke(app, ["topics", "describe", topic], env=env).output
    assert "schema_subject  bound-value" in described
    settings = ["policies", "set", topic, "schema_validation=enforce"]
    assert CliRunner().invoke(app, settings, env=env).exit_code == 0
    refused = CliRunner().invoke(app, ["produce", topic, "-m", "x"], env=env)
    assert (refused.exit_code, "the batch names no schema" in refused.output) == (78, True), refused.output
    assert topic in run(broker, "show", "bound-value", "--versions")
    assert run(broker, "bind", topic, "--unset") == f"{topic} has no subject\n"
    assert CliRunner().invoke(app, ["produce", topic, "-m", "x"], env=env).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("register", "s"), "give a FILE"),
        (("register", "s", "order.txt"), "give --type"),
        (("register", "s", "--type", "xml"), "give a FILE"),
        (("register", "s", "bad.desc"), "no FileDescriptorSet"),
        (("register", "s", "bad.avsc"), "not UTF-8"),
        (("register", "s", "order.avsc", "--reference", "x"), "NAME=SUBJECT"),
        (("show", "s", "--id"), "is not the id"),
        (("bind", "/default/t"), "--unset"),
        (("compatibility", "s", "sideways"), "sideways"),
    ],
)
def test_mistakes(
    broker: BrokerProcess, files: Path, arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    (files / "order.txt").write_text("x")
    (files / "bad.desc").write_bytes(b"\xff\xff")
    (files / "bad.avsc").write_bytes(b"\xff\xfe")
    assert words in run(broker, *arguments, code=65)


def test_consuming_decodes_by_the_schemas_of_the_messages(broker: BrokerProcess, files: Path) -> None:
    topic = "/default/decoded"

    async def fill() -> None:
        async with danube.connect(broker.url) as client:
            await client.schemas.register("decoded-value", "avro", json.dumps(ORDER))
            written = Subject("decoded-value", version="latest")
            async with client.producer(topic, schema=written) as producer:
                await producer.send({"id": 7})
            async with client.producer(topic) as plain:
                await plain.send(b"plain")

    trio.run(fill)
    env = {"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent"}
    for command in (["read", topic], ["consume", topic, "-s", "s", "--start", "earliest", "-e"]):
        done = CliRunner().invoke(app, [*command, "--decode"], env=env)
        assert done.exit_code == 0, done.output
        assert done.stdout.splitlines() == ['{"id":7}', "plain"]
    counted = CliRunner().invoke(app, ["read", topic, "--decode", "-n", "1", "-o", "json"], env=env)
    assert json.loads(counted.stdout)["payload"] == '{"id":7}'
