"""All brokers end, and one goes on with its metadata, or with a backup: by the letter of what the command prints."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from cluster_processes import Cluster, Load, patient

TOPICS = [f"/default/t{number}" for number in range(6)]
PRINTED = """\
1. {directory} has the new metadata. Start the broker in it, {name}, with the options of before.
2. The other brokers, {others}, are refused as long as they have the former metadata.
   For each of them that still exists, and whose data directory is DIR: stop it, then
     rm -r DIR/metadata DIR/group-*
   and remove nothing else: the journal, 'broker' and 'storage' in it are its messages and its name.
   Then start it with --join and the address of the first one in place of --peers.
"""


async def danube(*arguments: str) -> str:
    command = [sys.executable, "-m", "danube", *arguments]
    done = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout.decode()
    return done.stdout.decode()


@pytest.mark.parametrize(
    "command",
    [pytest.param("recover", marks=pytest.mark.extended), pytest.param("restore", marks=pytest.mark.long)],
)
async def test_a_cluster_goes_on_after_the_printed_steps(tmp_path: Path, command: str) -> None:
    with Cluster(tmp_path) as cluster, trio.fail_after(90):
        await cluster.settle([])
        async with patient(cluster.url()) as client:
            load = Load(client, TOPICS, random.Random(21))
            await load.create(durability="disk")
            await cluster.settle(TOPICS)
            async with load.running():
                await trio.sleep(0.3)
            backup = tmp_path / "saved"
            await danube("cluster", "backup", str(backup), "--url", cluster.url())
            first, *others = cluster.brokers
            status = await cluster.status(first)
            names = {row.address: row.name for row in status.brokers}
            for broker in cluster.brokers:
                await trio.to_thread.run_sync(broker.kill)

            directory = str(first.data_directory)
            if command == "recover":
                said = await danube("cluster", "recover", "--data-dir", directory)
                former = re.search(r"^The former metadata are in (.*); remove that directory", said, re.MULTILINE)
                assert former is not None
                assert former[1] == f"{directory}/metadata.former"
            else:
                shutil.rmtree(first.data_directory / "metadata")
                said = await danube("cluster", "restore", str(backup), "--data-dir", directory)
            named = ", ".join(f"{names[cluster.address(broker)]} ({cluster.address(broker)})" for broker in others)
            name = names[cluster.address(first)]
            assert said.endswith(PRINTED.format(directory=directory, name=name, others=named)), said

            await trio.to_thread.run_sync(first.start)
            for broker in others:
                assert "are not those of this cluster any more" in await explained(cluster, names, broker)
            # One that was not touched is told the same steps, and serves nothing.
            late = others[0]
            late.launch()
            with trio.fail_after(30):
                while "remove the directory 'metadata' and the files 'group-*'" not in log(late):  # noqa: ASYNC110
                    await trio.sleep(0.1)
            late.kill()
            for broker in others:
                for place in (broker.data_directory / "metadata", *broker.data_directory.glob("group-*")):
                    await trio.run_process(["rm", "-r", str(place)])
                broker.options = ("--join", cluster.address(first))
                await trio.to_thread.run_sync(broker.start)
            await cluster.settle(TOPICS)
            await load.check()


async def explained(cluster: Cluster, names: dict[str, str], broker: BrokerProcess) -> str:
    said = await danube("cluster", "explain", names[cluster.address(broker)], "--url", cluster.brokers[0].url)
    return " ".join(said.split())


def log(broker: BrokerProcess) -> str:
    assert broker.stderr is not None
    return broker.stderr.read_text()
