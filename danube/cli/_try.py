"""Runs several brokers on this machine as one cluster, for ``danube cluster try``.

The brokers are processes of their own, in process groups of their own: Ctrl-C reaches this process only, which then
ends them one after the other in the usual way. Their lines appear with the name of their broker in front. None is
restarted, so that one can be killed and watched.
"""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import trio

from danube.model.errors import ConfigurationError

__all__ = ["Trial", "run_trial"]

_HOST: Final = "127.0.0.1"
_END_S: Final = 15.0
"""How long a broker may take to drain before it is killed."""
_REAP_S: Final = 5.0
"""How long the end of a killed process is waited for."""
_LINE_BYTES: Final = 64 * 1024


class _Child:
    """One broker."""

    def __init__(self, name: str, port: int, directory: Path, command: list[str]) -> None:
        self.name = name
        self.address = f"{_HOST}:{port}"
        self.directory = directory
        self.command = command
        self.process: trio.Process | None = None
        self.ready = False

    @property
    def runs(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.returncode is None


class Trial:
    """A cluster of processes.

    Args:
        brokers: how many.
        directory: in which each broker gets a directory.
        base_port: of the first one.
    """

    def __init__(self, brokers: int, directory: Path, base_port: int) -> None:
        last = base_port + brokers - 1
        if last > 65_535:
            raise ConfigurationError(f"ports {base_port} to {last}: the highest port is 65535; use a lower --base-port")
        peers = f"{_HOST}:{base_port}-{last}" if brokers > 1 else ""
        self._children = []
        for number in range(brokers):
            name, port = f"b{number + 1}", base_port + number
            command = ["serve", "--data-dir", str(directory / name), "--listen", f"{_HOST}:{port}"]
            command += [
                "--admin-listen",
                "none",
                "--http-listen",
                "none",
                "--log-level",
                "warning",
                *(["--peers", peers] if peers else []),
            ]
            self._children.append(_Child(name, port, directory / name, command))
        self._exit_code = 0
        self._ending = trio.Event()
        self._started = False

    async def run(self) -> int:
        """Start all brokers, show their lines, and end them on a signal; return the exit code.

        It is 0 after a signal; otherwise that of the broker that ended the trial: the first one that did not become
        ready, or the last one that ran.

        Raises:
            ConfigurationError: a port is in use.
        """
        for child in self._children:
            _check_port(child.address)
        count = len(self._children)
        place = self._children[0].directory.parent
        self._say(f"starting {count} {'broker' if count == 1 else 'brokers'} in {place}; that takes some seconds")
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._heed, signals, nursery.cancel_scope)
                nursery.start_soon(self._lose_patience)
                try:
                    async with trio.open_nursery() as lives:
                        for child in self._children:
                            await lives.start(self._live, child)
                finally:
                    self._kill_all()
                nursery.cancel_scope.cancel()
        return self._exit_code

    async def _heed(self, signals: AsyncIterator[int], everything: trio.CancelScope) -> None:
        """First signal: end all brokers in the usual way. Second: kill them."""
        async for number in signals:
            if self._ending.is_set():
                self._say("second signal: the brokers are killed")
                self._exit_code = 128 + number
                everything.cancel()
                return
            self._say("ending all brokers")
            self._end_all()

    async def _lose_patience(self) -> None:
        """Kill the brokers that have not ended in time."""
        await self._ending.wait()
        await trio.sleep(_END_S)
        late = [child.name for child in self._children if child.runs]
        if late:
            self._say(f"killing {', '.join(late)}: no end within {_END_S:g} s")
            self._kill_all()

    def _end_all(self) -> None:
        self._ending.set()
        for child in self._children:
            if child.process is not None and child.runs:
                child.process.terminate()

    def _kill_all(self) -> None:
        for child in self._children:
            if child.process is not None and child.runs:
                child.process.kill()

    async def _live(self, child: _Child, *, task_status: trio.TaskStatus[None]) -> None:
        """Run one broker until it ends."""
        child.process = process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "danube", *child.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                for stream in (process.stdout, process.stderr):
                    assert stream is not None
                    nursery.start_soon(self._show, child, stream)
                await process.wait()
        except BaseException:
            process.kill()
            with trio.move_on_after(_REAP_S, shield=True):
                await process.wait()
            raise
        self._ended(child)

    async def _show(self, child: _Child, stream: trio.abc.ReceiveStream) -> None:
        """Print what a broker prints, line by line."""
        rest = b""
        async for piece in stream:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._line(child, line.decode(errors="replace"))
            if len(rest) > _LINE_BYTES:
                self._line(child, rest.decode(errors="replace"))
                rest = b""
        if rest:
            self._line(child, rest.decode(errors="replace"))

    def _line(self, child: _Child, line: str) -> None:
        print(f"{child.name} | {line}", flush=True)
        if not child.ready and line.startswith("danube ") and " ready: " in line:
            child.ready = True
            if not self._started and all(each.ready for each in self._children):
                self._started = True
                self._tell_started()

    def _ended(self, child: _Child) -> None:
        process = child.process
        assert process is not None
        code = process.returncode or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._say(f"{child.name} {how}")
        if self._ending.is_set():
            return
        if not self._started:
            self._exit_code = 128 - code if code < 0 else code or 1
            self._say("the cluster did not start; ending all brokers")
            self._end_all()
        elif not any(each.runs for each in self._children):
            self._exit_code = 128 - code if code < 0 else code
            self._say("no broker is left")
        else:
            self._say(f"to start it again:  danube {shlex.join(child.command)}")

    def _tell_started(self) -> None:
        last = self._children[-1]
        assert last.process is not None
        lines = ["the cluster runs:"]
        for child in self._children:
            assert child.process is not None
            lines.append(f"  {child.name}  danube://{child.address}  pid {child.process.pid}  {child.directory}")
        lines += [
            "in another terminal:",
            f"  export DANUBE_URL=danube://{','.join(child.address for child in self._children)}",
            "  danube cluster status",
            f"  danube topics create /default/first --partitions {2 * len(self._children)}",
            "  danube produce /default/first -m hello -n 1000",
            "  danube cluster explain /default/first",
            f"  kill -9 {last.process.pid}   # {last.name}: look at the status again, and start it again as shown here",
            "Ctrl-C ends them all.",
        ]
        for line in lines:
            self._say(line)

    @staticmethod
    def _say(line: str) -> None:
        print(f"-- | {line}", flush=True)


def _check_port(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            raise ConfigurationError(
                f"port {port} of {host} cannot be used ({error.strerror}); choose others with --base-port"
            ) from error


def run_trial(brokers: int, directory: str | None, base_port: int) -> int:
    """Run a trial until a signal; return the exit code. Blocks; main thread only.

    Raises:
        ConfigurationError: a port is in use.
        OSError: the directory cannot be used.
    """
    with ExitStack() as stack:
        if directory is None:
            path = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="danube-try-", ignore_cleanup_errors=True))
            )
        else:
            path = Path(directory).absolute()
            path.mkdir(parents=True, exist_ok=True)
        return trio.run(Trial(brokers, path, base_port).run)
