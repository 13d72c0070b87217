"""Freed memory is returned to the kernel when the process is idle, and cycles are collected rarely, but in time."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

from broker.broker_harness import running_broker

import danube

SCRIPT = """
from danube.broker.runtime.process_memory import FreedMemory, keep_large_buffers

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 // 2**20

keep_large_buffers()
memory = FreedMemory()
pieces = []
for number in range(160):
    pieces += [bytearray(b"x" * 2**20), bytearray(b"y" * 1000)]  # the small ones stay, and pin the heap
full = resident()
small = pieces[1::2]
assert not memory.look(quiet=True, now=0.0), "all of it is in use"
del pieces
kept = resident()
assert kept > full - 40, (full, kept)
assert not memory.look(quiet=False, now=0.0), "too little to disturb a busy process"
assert memory.look(quiet=True, now=0.0)
assert resident() < full - 120, (full, resident())
assert not memory.look(quiet=True, now=10.0), "nothing is left to give"
print("ok")
"""


def test_freed_memory_is_given_back() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.stdout, ended.stderr) == ("ok\n", "")


SERVING = """
import gc, os, signal, sys
from danube.broker import BrokerConfig, run_broker
from danube.broker.runtime.process_memory import YOUNG_OBJECTS

tune = gc.set_threshold
def tune_and_end(*thresholds):
    tune(*thresholds)
    os.kill(os.getpid(), signal.SIGTERM)
gc.set_threshold = tune_and_end

default = gc.get_threshold()
config = BrokerConfig(
    data_directory=sys.argv[1],
    listen=["127.0.0.1:0"],
    admin_listen=[],
    journal_file_size="16MiB",
    log_level="error",
)
assert run_broker(config) == 0
assert gc.get_threshold() == (YOUNG_OBJECTS, *default[1:])
assert gc.get_freeze_count() > 10_000, "what was loaded is not collected"

class Cycle:
    alive = most = 0
    def __init__(self):
        self.me = self
        Cycle.alive += 1
        Cycle.most = max(Cycle.most, Cycle.alive)
    def __del__(self):
        Cycle.alive -= 1
for _ in range(10 * YOUNG_OBJECTS):
    Cycle()
assert YOUNG_OBJECTS / 2 < Cycle.most < 1.1 * YOUNG_OBJECTS, Cycle.most
"""


def test_the_process_of_a_broker_collects_cycles_rarely_and_in_time(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SERVING, str(tmp_path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("danube ")


async def test_a_broker_and_a_client_in_a_process_of_others_leave_its_collector_alone(tmp_path: Path) -> None:
    gc.unfreeze()  # tests of mutants and worlds freeze this process; what is frozen may die meanwhile, and count less
    before = gc.get_threshold(), gc.get_freeze_count(), gc.isenabled()
    async with running_broker(tmp_path) as broker, danube.connect(broker.url) as client:
        async with client.producer("/default/t") as producer:
            await producer.send(b"x")
        assert (gc.get_threshold(), gc.get_freeze_count(), gc.isenabled()) == before
