"""Two thousand half-open TLS handshakes, with server, flood and client in processes of their own.

What the flood takes from others is the time that the server's only thread spends on it. That is measured in CPU time,
so that the figure is the same on a busy machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import half_open
import pytest
import trio
from certificates import make_files
from half_open import Number

from danube.wire import connect_channel
from danube.wire.tls import client_context

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads CPU time and memory from /proc"),
]

CONNECTIONS = 2_000
GONE_S = 15.0
MIB = 1024 * 1024


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, half_open.__file__, *arguments], stdout=subprocess.PIPE, text=True
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def line_of(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


async def test_others_keep_nine_tenths_of_the_server(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    config = files.server()
    with trio.fail_after(120), process("serve", config.cert, config.key) as server:
        port = int(await trio.to_thread.run_sync(line_of, server))

        async def add_one() -> int:
            context = client_context(files.ca)
            async with connect_channel("127.0.0.1", port, tls=context, connect_timeout_s=30.0) as channel:
                return (await channel.unary("/t/add", Number(1), Number, timeout_s=10.0)).value

        assert await add_one() == 2
        before = resident_bytes(server.pid)
        with process("drip", str(port), str(CONNECTIONS), "60") as flood:
            opening, began = cpu_s(server.pid), trio.current_time()
            assert await trio.to_thread.run_sync(line_of, flood) == "open"
            opening, grown = cpu_s(server.pid) - opening, resident_bytes(server.pid) - before
            share, since = cpu_s(server.pid), trio.current_time()
            await trio.sleep(8.0)
            share = (cpu_s(server.pid) - share) / (trio.current_time() - since)
            grown = max(grown, resident_bytes(server.pid) - before)
            assert await add_one() == 2  # a new connection gets through
            gone_s = float(await trio.to_thread.run_sync(line_of, flood))
            took_s = trio.current_time() - began
    told = f"{share:.1%} of the time, {opening:.2f} s for the opening, {grown / MIB:.0f} MiB, gone after {gone_s:.1f} s"
    assert share <= 0.10, told
    assert opening / CONNECTIONS <= 0.001, told  # another 15 s later the next ones can come: 7 % in the mean at most
    assert grown <= 64 * MIB, told
    assert gone_s <= GONE_S + 3.0, told
    assert took_s < 60, told
