"""The process of a broker: logging, signals, the ready line, the exit code.

Exit codes: 0 after a drain; 130 after Ctrl-C before the broker was ready; otherwise the exit code of the error (see
:func:`danube.model.errors.exit_code`), which is printed in one line.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import trio

from danube.broker.broker import Broker, Seams
from danube.broker.faces import FaceMaker
from danube.broker.runtime.config import BrokerConfig
from danube.broker.runtime.descriptors import fit_to_descriptors
from danube.broker.runtime.log_output import LogOutput
from danube.broker.runtime.process_memory import FreedMemory, collect_rarely, keep_large_buffers, process_usage
from danube.broker.runtime.seams import PayloadCheckCall
from danube.model.descriptors import is_out_of_descriptors, out_of_descriptors
from danube.model.errors import DanubeError, exit_code
from danube.model.limits import Limits
from danube.model.log_events import log_event
from danube.model.version import __version__

if TYPE_CHECKING:
    from danube.schema.examine import Examination, Finding

__all__ = ["run_broker"]

_log = logging.getLogger("danube")


def _wall_clock_us() -> int:
    return time.time_ns() // 1000


def run_broker(config: BrokerConfig, faces: Sequence[FaceMaker] = ()) -> int:
    """Run a broker until SIGTERM or SIGINT (drain, exit code 0) or until it fails. Blocks; main thread only.

    A signal before the broker is ready aborts the start: with exit code 130 after SIGINT, 0 after SIGTERM. A second
    signal ends the process at once. ``faces`` as in :class:`danube.broker.Broker`.
    """
    output = LogOutput(config.log_format, sys.stderr)
    with output.installed(config.log_level):
        return _run(config, faces, output)


def _run(config: BrokerConfig, faces: Sequence[FaceMaker], output: LogOutput) -> int:
    keep_large_buffers()
    config = msgspec.structs.replace(config, limits=fit_to_descriptors(config.limits, config.journal_files))
    was_ready: list[bool] = []
    try:
        return trio.run(_main, config, faces, output, was_ready)
    except BaseException as error:
        failure = _first_danube_error(error) or _shortage(error)
        if failure is None:
            raise
        if was_ready or config.log_format == "json":  # of a failed start, the line below says all to a person
            _log.error("%s", failure, extra=log_event("broker.failed"))
        print(f"error: {failure}", file=sys.stderr, flush=True)  # noqa: T201 - the final error line of a process
        return exit_code(failure)


async def _main(config: BrokerConfig, faces: Sequence[FaceMaker], output: LogOutput, was_ready: list[bool]) -> int:
    seams = Seams(
        wall_clock_us=_wall_clock_us,
        random=random.Random(os.urandom(16)),
        process_usage=process_usage,
        checker=_checker,
        payload_checker=_payload_checker,
    )
    reloading = [signal.SIGHUP] if config.tls is not None else []  # without TLS it ends the process, as always
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, *reloading) as signals:
        async with trio.open_nursery() as nursery:
            broker = Broker(config, seams, faces)
            life = _Life(broker, nursery.cancel_scope)
            nursery.start_soon(life.heed, signals)
            nursery.start_soon(output.run)
            addresses = await nursery.start(life.run)
            note = "" if config.tls is None else " (TLS and plain text)" if config.tls.plaintext else " (TLS)"
            admin = f" admin on {', '.join(broker.admin_addresses)}{note};" if broker.admin_addresses else ""
            scheme = "http" if config.tls is None or config.tls.plaintext else "https"
            http = "".join(f"; schema registry {scheme}://{address}/" for address in broker.registry_addresses)
            http += "".join(f"; console {scheme}://{address}/" for address in broker.http_addresses)
            collect_rarely()  # what is loaded so far lives as long as the process
            nursery.start_soon(FreedMemory().run)  # release the memory used by the start at once
            life.ready = True
            was_ready.append(True)
            print(  # noqa: T201 - the one line on standard output that scripts wait for
                f"danube {__version__} ready: listening on {', '.join(addresses)}{note};{admin}"
                f" data in {config.data_directory}; durability {config.durability}; pid {os.getpid()}{http}",
                flush=True,
            )
    return life.exit_code


class _Life:
    """One run of a broker, and its reaction to signals."""

    def __init__(self, broker: Broker, everything: trio.CancelScope) -> None:
        self._broker = broker
        self._everything = everything
        self._leaving = False
        self.ready = False
        self.exit_code = 0

    async def run(self, *, task_status: trio.TaskStatus[list[str]]) -> None:
        """Run the broker; after its drain, cancel the other tasks (the signal receiver would wait forever)."""
        await self._broker.run(task_status=task_status)
        self._everything.cancel()

    async def heed(self, signals: AsyncIterator[int]) -> None:
        """First signal: drain, or abort a start that is under way, as a crash would. Second: exit at once.

        SIGHUP (with TLS only) reads the certificates again.
        """
        async for number in signals:
            name = signal.Signals(number).name
            if number == signal.SIGHUP:
                if self.ready:
                    await self._broker.reload_certificates()
                continue
            if self._leaving:
                _log.warning("second signal %s: leaving at once", name, extra=log_event("broker.killed"))
                os._exit(128 + number)
            self._leaving = True
            if self.ready:
                _log.info("%s: draining", name)
                self._broker.drain()
            else:
                _log.info("%s: giving up the start", name)
                if number == signal.SIGINT:
                    self.exit_code = 128 + number
                self._everything.cancel()


def _checker(start: Callable[..., object], limits: Limits) -> Callable[[Examination], Awaitable[Finding]]:
    from danube.broker.schemas.checker import Checker  # most brokers have no schemas

    return Checker(start, limits)


def _payload_checker(start: Callable[..., object], limits: Limits) -> PayloadCheckCall:
    from danube.broker.schemas.payloads import PayloadChecker  # most brokers do not check payloads

    return PayloadChecker(start, limits)


def _shortage(error: BaseException) -> DanubeError | None:
    """Return the error to report if the process ends because no file descriptor was left for its event loop."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_shortage, error.exceptions)), None)
    if isinstance(error, OSError) and is_out_of_descriptors(error):
        return out_of_descriptors("the broker cannot run", error)
    return None


def _first_danube_error(error: BaseException) -> DanubeError | None:
    if isinstance(error, DanubeError):
        return error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            found = _first_danube_error(inner)
            if found is not None:
                return found
    return None
