"""A broker whose data directory is lost joins as a new one; what the old one had waits for it by name."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest
import trio
from cluster_processes import Cluster, Load, patient, report

import danube

TOPICS = [f"/default/t{number}" for number in range(6)]


@pytest.mark.extended
async def test_a_wiped_broker_joins_as_a_new_one_and_the_old_one_is_waited_for(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster, trio.fail_after(240):
        await cluster.settle([])
        async with patient(cluster.url()) as client:
            load = Load(client, TOPICS, random.Random(16))
            await load.create(durability="disk")
            await cluster.settle(TOPICS)
            async with load.running():
                await trio.sleep(0.5)
            owners = await cluster.owners(client, TOPICS)
            victim = cluster.others(await cluster.leader())[0]
            others = cluster.others(victim)
            mine = sorted(topic for topic, owner in owners.items() if owner == cluster.address(victim))
            assert mine
            status = await cluster.status(others[0])
            (former,) = [row.name for row in status.brokers if row.address == cluster.address(victim)]
            await trio.to_thread.run_sync(victim.kill)
            kept = victim.data_directory.with_name("kept")
            shutil.move(victim.data_directory, kept)
            began = time.monotonic()
            victim.options = ("--join", cluster.address(others[0]))
            await trio.to_thread.run_sync(victim.start)
            ready = time.monotonic() - began
            served = [topic for topic in TOPICS if topic not in mine]
            whole = await cluster.settle(served)
            report(f"wiped and joined: ready after {ready:.2f} s, three voters and the rest served {whole:.2f} s later")
            for broker in cluster.brokers:
                async with danube.connect(broker.url) as near:
                    for topic in mine:
                        explained = await near.admin.cluster_explain(topic)
                        assert explained.state == "waiting", explained
                        assert f"waits for broker {former}, whose disk" in explained.sentence, explained
                        # What the answering broker knows of it depends on whether it saw the former session.
                        if broker is not victim:
                            assert f"the directory of {former} was replaced" in explained.sentence, explained
                            assert f"If the data directory of {former} still exists" in explained.remedy, explained
                        assert "remove the directory 'metadata' and the files 'group-*'" in explained.remedy, explained
            status = await cluster.status(victim)
            assert [row.name for row in status.brokers if row.address == cluster.address(victim)][-1] != former
            assert sum(waiting.count for waiting in status.waiting) == len(mine)
            seen = await cluster.status(others[0])
            (row,) = [row for row in seen.brokers if row.name == former]
            assert row.successor, row
            assert any("from another data directory" in warning for warning in seen.warnings), seen.warnings
            await cluster.metadata_write("with-the-new-one", [victim])

            # The old disk is found again: it comes back as a fourth broker beside the new one, as the remedy says.
            shutil.rmtree(kept / "metadata")
            for place in kept.glob("group-*"):
                place.unlink()
            found = type(victim)(kept, *("--join", cluster.address(others[0])), stderr=tmp_path / "kept.log")
            cluster.brokers.append(found)
            with found:
                back = await cluster.settle(TOPICS, active=4, voters=3)
                report(f"the old disk is back: all served after {back:.2f} s")
                await load.check()
            cluster.brokers.remove(found)
