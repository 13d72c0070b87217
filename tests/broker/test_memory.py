"""Freed memory goes back to the kernel when the process is quiet, and not while it needs it."""

from __future__ import annotations

import subprocess
import sys

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
