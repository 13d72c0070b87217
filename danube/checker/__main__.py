"""The process: answers one request after the other until its input ends. See :mod:`danube.checker`."""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import IO

import msgspec

from danube.checker.compiling import compile_proto
from danube.checker.messages import (
    HEAD_BYTES,
    READY,
    Answer,
    Request,
    frame,
    length_of,
    refusal,
)
from danube.model.errors import InvalidSchemaError, SchemaPayloadError
from danube.schema.examine import examine
from danube.schema.payloads import PayloadChecks

_NICE = 5
"""The broker comes first."""


def _answered(data: bytes, checks: PayloadChecks) -> tuple[Answer, bool]:
    """Return the answer to a request, and whether this process can go on."""
    what: type[InvalidSchemaError | SchemaPayloadError] = InvalidSchemaError
    try:
        request = msgspec.msgpack.decode(data, type=Request)
        if request.examination is not None:
            return Answer(examine(request.examination, request.limits, compile_proto)), True
        what = SchemaPayloadError
        if request.payloads is not None:
            checks.check(request.payloads)
        return Answer(None), True
    except MemoryError as error:
        return refusal(error, what), False  # what is allocated may never be freed
    except Exception as error:  # noqa: BLE001 - whatever a library raises for hostile input is the input's fault
        return refusal(error, what), True


def serve(requests: IO[bytes], answers: IO[bytes], time_s: float) -> None:
    """Answer requests until there are no more, or their sender is gone."""
    answers.write(frame(READY))
    answers.flush()
    checks = PayloadChecks(compile_proto)
    can_go_on = True
    while can_go_on and len(head := requests.read(HEAD_BYTES)) == HEAD_BYTES:
        data = requests.read(length_of(head))
        # If the broker dies meanwhile, there is no one else to end a request that takes too long.
        signal.setitimer(signal.ITIMER_REAL, 2 * time_s)
        answer, can_go_on = _answered(data, checks)
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            answers.write(frame(answer))
            answers.flush()
        except BrokenPipeError:
            return


def main() -> None:
    """Limit this process, and serve.

    Its arguments are the limit on its address space in bytes, and how long one request may take, in seconds.
    """
    memory_bytes, time_s = int(sys.argv[1]), float(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which closes the input
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    with os.fdopen(0, "rb") as requests, answers:
        serve(requests, answers, time_s)


if __name__ == "__main__":
    main()
