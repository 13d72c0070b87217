"""A voter whose disk is full, and brokers whose clocks are an hour apart: the cluster goes on."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from cluster_processes import SERVED_WITHIN_S, Cluster, Load, patient, report

pytestmark = pytest.mark.extended

TOPICS = [f"/default/t{number}" for number in range(6)]
DISK_MIB = 160
WRITABLE_WITHIN_S = 5.0
HOUR_S = 3600
SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long offset(void) { const char *text = getenv("CLOCK_OFFSET_S"); return text ? atol(text) : 0; }

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
"""


@contextmanager
def small_disk(mount_point: Path) -> Iterator[Path]:
    """A file system in memory with little room."""
    if os.geteuid() != 0:
        pytest.skip("mounting file systems needs root")
    mount_point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(mount_point)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs here: {done.stderr.strip()}")
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", "--lazy", str(mount_point)], check=True)


def fill(place: Path) -> Path:
    """Leave no room on a file system."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


async def test_a_voter_with_a_full_disk_stops_no_other_broker_and_loses_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as disk, trio.fail_after(200):
        places = [disk / "b0", tmp_path / "b1", tmp_path / "b2"]
        brokers = [BrokerProcess(place, stderr=tmp_path / f"{place.name}.log") for place in places]
        listed = ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)
        for broker in brokers:
            broker.options = ("--peers", listed, "--journal-file-size", "16MiB")
        with Cluster(tmp_path, brokers) as cluster:
            await cluster.settle([])
            async with patient(cluster.url()) as client:
                load = Load(client, TOPICS, random.Random(18))
                await load.create(durability="disk")
                await cluster.settle(TOPICS)
                victim, others = brokers[0], brokers[1:]
                owners = await cluster.owners(client, TOPICS)
                mine = {topic for topic, owner in owners.items() if owner == cluster.address(victim)}
                assert mine
                async with load.running():
                    await trio.sleep(0.3)
                    ballast = await trio.to_thread.run_sync(fill, disk)
                    since = time.monotonic()
                    writes: list[float] = []
                    while time.monotonic() < since + 8:
                        writes.append(await cluster.metadata_write(f"full{len(writes)}", others))
                        asked = time.monotonic()
                        for topic in sorted(owners.keys() - mine):
                            assert await load.gap(asked, topic.__eq__) < 5
                    code = victim.poll()
                    ballast.unlink()
                    freed = time.monotonic()
                    if code is not None:
                        victim.wait()
                        await trio.to_thread.run_sync(victim.start)
                    back = await load.gap(freed, mine.__contains__)
                    served = await cluster.settle(TOPICS)
                messages = await load.check()
    report(
        f"full disk: broker {'goes on' if code is None else f'ended with {code}'}; metadata writes elsewhere at most"
        f" {max(writes):.2f} s; its topics {back:.2f} s after there was room, settled in {served:.2f} s,"
        f" {messages} messages"
    )
    assert max(writes) < WRITABLE_WITHIN_S
    assert served < SERVED_WITHIN_S


async def test_clocks_that_are_an_hour_wrong_stop_nothing(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler is missing: install gcc")
    source, shim = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(SHIM)
    await trio.run_process([compiler, "-shared", "-fPIC", "-O1", "-o", str(shim), str(source), "-ldl"])
    brokers = [
        BrokerProcess(
            tmp_path / f"b{number}",
            prefix=("env", f"LD_PRELOAD={shim}", f"CLOCK_OFFSET_S={offset}"),
            stderr=tmp_path / f"b{number}.log",
        )
        for number, offset in enumerate((0, HOUR_S, -HOUR_S))
    ]
    listed = ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)
    for broker in brokers:
        broker.options = ("--peers", listed)
    with Cluster(tmp_path, brokers) as cluster, trio.fail_after(200):
        await cluster.settle([])
        status = await cluster.status(brokers[0])
        offsets = sorted(round(row.clock_offset_s / HOUR_S) for row in status.brokers)
        assert offsets == [-1, 0, 1]
        assert any("clock" in warning for warning in status.warnings), status.warnings
        async with patient(cluster.url()) as client:
            load = Load(client, TOPICS, random.Random(19))
            await load.create(durability="disk")
            await cluster.settle(TOPICS)
            async with load.running():
                leading = await cluster.leader()
                await trio.to_thread.run_sync(leading.kill)
                writable = await cluster.metadata_write("without-leader", cluster.others(leading))
                # Its clock jumps between two of its lives.
                offset = {0: HOUR_S, HOUR_S: -HOUR_S, -HOUR_S: HOUR_S}[(0, HOUR_S, -HOUR_S)[brokers.index(leading)]]
                leading.prefix = ("env", f"LD_PRELOAD={shim}", f"CLOCK_OFFSET_S={offset}")
                await trio.to_thread.run_sync(leading.start)
                served = await cluster.settle(TOPICS)
            messages = await load.check()
    report(f"clocks wrong: metadata write {writable:.2f} s, settled in {served:.2f} s, {messages} messages")
    assert served < SERVED_WITHIN_S
