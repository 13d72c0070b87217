"""The load generator of nghttp2, written in C: repeats one recorded call over many connections, of gRPC or HTTP/1.1."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks._processes import WorkerError
from benchmarks._run import Run, Sample
from benchmarks._stats import percentile

__all__ = ["h1load", "h2load", "unavailable"]

_RATE = re.compile(r"finished in [0-9.]+\w+, ([0-9.]+) req/s")
_SUCCEEDED = re.compile(r"(\d+) succeeded, 0 failed, 0 errored, 0 timeout")
_DONE = re.compile(r"(\d+) done, .* 0 errored, 0 timeout")
_DATA = re.compile(r"\((\d+)\) data")


def unavailable() -> str | None:
    """The reason why the program cannot be used; None if it can."""
    if shutil.which("h2load") is None:
        return "h2load was not found; apt-get install nghttp2-client (as root: --install-tools)"
    return None


def h2load(
    run: Run,
    path: str,
    request: bytes,
    answer_bytes: int,
    *,
    count: int,
    connections: int,
    headers: Mapping[str, str] | None = None,
) -> Sample:
    """Make ``count`` calls, one in flight on each connection.

    Returns a sample with ``calls_per_s``, ``p50_us``, ``p99_us`` and ``broker_cpu_us`` (of CPU time for a call).

    Args:
        run: the repetition; its server is called.
        path: of the method.
        request: the message, with its gRPC prefix.
        answer_bytes: length of a successful answer with its prefix. All gRPC answers have the HTTP status 200, so
            the length shows whether the call succeeded.
        count: calls to make.
        connections: to make them over.
        headers: more headers of each call.

    Raises:
        WorkerError: a call failed.
    """
    body, log = (run.directory / f"{run.tag}-{connections}.{kind}" for kind in ("body", "log"))
    body.write_bytes(request)
    command = ["h2load", f"--requests={count}", f"--clients={connections}", "--max-concurrent-streams=1"]
    command += [f"--data={body}", f"--log-file={log}", "--header=te: trailers"]
    command += ["--header=content-type: application/grpc+proto", f"http://127.0.0.1:{run.server.port}{path}"]
    command[1:1] = [f"--header={name}: {value}" for name, value in (headers or {}).items()]
    printed, sample = run.program(command, "h2load")
    rate, succeeded, data = (pattern.search(printed) for pattern in (_RATE, _SUCCEEDED, _DATA))
    if rate is None or succeeded is None or data is None:
        raise WorkerError(f"calls of {path} failed: {_counts(printed)}")
    if int(succeeded[1]) != count or int(data[1]) != count * answer_bytes:
        raise WorkerError(f"not all of {count} calls of {path} were answered well: {_counts(printed)}")
    body.unlink()
    return _finished(sample, count, float(rate[1]), log)


def h1load(run: Run, url: str, answer_bytes: int, *, count: int, connections: int) -> Sample:
    """GET a URL ``count`` times by HTTP/1.1, one request in flight on each connection.

    Returns a sample as that of :func:`h2load`.

    Args:
        run: the repetition.
        url: of all requests.
        answer_bytes: length of a successful answer's body. The program sees no status in answers without a reason
            phrase, so the length shows whether the request succeeded.
        count: requests to make.
        connections: to make them over.

    Raises:
        WorkerError: a request failed.
    """
    log = run.directory / f"{run.tag}-{connections}.log"
    command = ["h2load", "--h1", f"--requests={count}", f"--clients={connections}", f"--log-file={log}", url]
    printed, sample = run.program(command, "h2load")
    rate, done, data = (pattern.search(printed) for pattern in (_RATE, _DONE, _DATA))
    if rate is None or done is None or data is None or (int(done[1]), int(data[1])) != (count, count * answer_bytes):
        raise WorkerError(f"requests of {url} failed: {_counts(printed)}")
    return _finished(sample, count, float(rate[1]), log)


def _finished(sample: Sample, count: int, rate: float, log: Path) -> Sample:
    """Complete a sample, and remove the log that it is made of."""
    sample.messages = count
    sample.values = {"calls_per_s": rate, "broker_cpu_us": sample.cpu_s["broker"] / count * 1e6}
    sample.values |= _latencies(log)
    log.unlink()
    return sample


def _latencies(log: Path) -> dict[str, float]:
    # Each line: when the call began, its HTTP status, and how long it took, both times in microseconds.
    times = [float(line.split()[2]) for line in log.read_text().splitlines()]
    return {"p50_us": percentile(times, 50), "p99_us": percentile(times, 99)}


def _counts(printed: str) -> str:
    wanted: Sequence[str] = ("requests:", "status codes:", "traffic:")
    return "; ".join(line for line in printed.splitlines() if line.startswith(tuple(wanted))) or printed[:200]
