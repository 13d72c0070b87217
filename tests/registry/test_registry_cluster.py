"""Confluent's interface at two brokers of a cluster: what one has answered, the other one knows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import trio
from broker.directory.cluster_harness import Machine, cluster
from registry_harness import Rest, avro

from danube.registry.face import RegistryFace

if TYPE_CHECKING:
    from danube.broker.faces import Served

pytestmark = pytest.mark.virtual

SUBJECT = "%2Fdefault%2Forders-value"


class At(Rest):
    """The interface of one broker."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.face = RegistryFace(cast("Served", machine.broker))


@asynccontextmanager
async def two(tmp_path: Path) -> AsyncIterator[tuple[At, At]]:
    async with cluster(tmp_path, 2) as world:
        a, b = map(At, world.machines)
        yield a, b


async def test_what_one_broker_registers_the_other_one_reads_at_once(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        for version in range(1, 9):
            to, of = (a, b) if version % 2 else (b, a)
            text = avro("Order", ("id", "long"), *((f"f{each}", ["null", "int"]) for each in range(version)))
            made = (await to.send("POST", f"/subjects/{SUBJECT}/versions", {"schema": text})).value
            assert made["version"] == version
            assert (await of.send("GET", f"/schemas/ids/{made['id']}")).value["schema"] == text
            latest = (await of.send("GET", f"/subjects/{SUBJECT}/versions/latest")).value
            assert (latest["version"], latest["id"], latest["schema"]) == (version, made["id"], text)
            assert (await of.send("POST", f"/subjects/{SUBJECT}", {"schema": text})).value["version"] == version
            again = await of.send("POST", f"/subjects/{SUBJECT}/versions", {"schema": text})
            assert (again.status, again.value["id"], again.value["version"]) == (200, made["id"], version)


async def test_registrations_at_both_brokers_at_once_agree(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        texts = [avro(f"R{number}") for number in range(6)]
        answers: list[tuple[str, int, int]] = []

        async def register(at: At, text: str) -> None:
            answer = await at.send("POST", f"/subjects/{SUBJECT}/versions", {"schema": text})
            assert answer.status == 200, answer
            answers.append((text, answer.value["id"], answer.value["version"]))

        assert (await a.send("PUT", "/config", {"compatibility": "NONE"})).status == 200
        assert (await b.send("GET", "/config")).value == {"compatibilityLevel": "NONE"}
        async with trio.open_nursery() as nursery:
            for text in texts:
                for at in (a, b):
                    nursery.start_soon(register, at, text)
        assert len(answers) == 12
        assert len(set(answers)) == 6, "the same content has one id and one version, whichever broker was asked"
        assert {version for _, _, version in answers} == set(range(1, 7))
        lists = [(await at.send("GET", f"/subjects/{SUBJECT}/versions")).value for at in (a, b)]
        assert lists == [[1, 2, 3, 4, 5, 6]] * 2
        for text, number, version in set(answers):
            for at in (a, b):
                found = (await at.send("GET", f"/subjects/{SUBJECT}/versions/{version}")).value
                assert (found["id"], found["schema"]) == (number, text)


async def test_deletions_and_refusals_agree(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await a.send("POST", f"/subjects/{SUBJECT}/versions", {"schema": avro()})
        bad = {"schema": avro("Order", ("id", "string"))}
        assert (await b.send("POST", f"/subjects/{SUBJECT}/versions", bad)).status == 409
        checked = await a.send("POST", f"/compatibility/subjects/{SUBJECT}/versions/latest", bad)
        assert checked.value["is_compatible"] is False
        assert (await b.send("DELETE", f"/subjects/{SUBJECT}")).value == [1]
        assert (await a.send("GET", f"/subjects/{SUBJECT}/versions")).value["error_code"] == 40401
        assert (await a.send("GET", "/subjects?deleted=true")).value == ["/default/orders-value"]


async def test_what_is_missing_while_the_metadata_are_away_may_be_asked_for_again(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        made = (await a.send("POST", f"/subjects/{SUBJECT}/versions", {"schema": avro()})).value
        assert (await b.send("GET", f"/schemas/ids/{made['id']}")).status == 200
        b.machine.cut_off()
        assert (await b.send("GET", f"/subjects/{SUBJECT}/versions/1")).status == 200
        for path in ("/subjects/other/versions", f"/subjects/{SUBJECT}/versions/2", "/schemas/ids/99"):
            missing = await b.send("GET", path)
            assert (missing.status, missing.value["error_code"]) == (500, 50001), path
        b.machine.heal()
        assert (await b.send("GET", "/subjects/other/versions")).value["error_code"] == 40401
