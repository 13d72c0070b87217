"""Those who watch a broker during a benchmark: ``python -m benchmarks.watchers HOST:PORT CONSOLES``.

A Prometheus scrapes once a second, and each console fetches what the page of a real one fetches every three seconds.
Prints ``watching`` when each has had its first answers; an answer other than 200 ends it with an error.
"""

from __future__ import annotations

import http.client
import os
import sys
import threading
import time
from typing import Final

__all__ = ["READY", "main"]

READY: Final = "watching"
_SCRAPE_S: Final = 1.0
_CONSOLE_S: Final = 3.0
_METRICS: Final = ("/metrics",)
_PAGES: Final = (
    "/api/v1/broker",
    "/api/v1/findings",
    "/api/v1/topics?limit=1000",
    "/api/v1/subscriptions?limit=1000",
)
"""As ``danube/web/static/js/store.js`` has them."""


def _watch(address: str, paths: tuple[str, ...], period_s: float, offset_s: float, first: threading.Barrier) -> None:
    connection = http.client.HTTPConnection(address, timeout=60)
    due = time.monotonic() + offset_s
    began = False
    while True:
        for path in paths:
            connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                print(f"GET {path}: {answer.status} {answer.reason}", file=sys.stderr, flush=True)
                os._exit(1)  # a thread cannot end its process in another way
        if not began:
            first.wait()
            began = True
        due += period_s
        time.sleep(max(0.0, due - time.monotonic()))


def main() -> None:
    """Watch until the process is ended."""
    address, consoles = sys.argv[1], int(sys.argv[2])
    first = threading.Barrier(consoles + 2)
    plan: list[tuple[tuple[str, ...], float, float]] = [(_METRICS, _SCRAPE_S, 0.0)]
    plan += [(_PAGES, _CONSOLE_S, number * _CONSOLE_S / consoles) for number in range(consoles)]
    for paths, period_s, offset_s in plan:
        threading.Thread(target=_watch, args=(address, paths, period_s, offset_s, first), daemon=True).start()
    first.wait()
    print(READY, flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
