"""Opens batches for the policies ``schema_payloads`` and ``schema_framing``; payloads are checked in a child process.

Frames are numbers at fixed places. Payloads are hostile input of libraries, so they go to a process of their own
(:mod:`danube.checker`), not the one that examines schemas: a payload that takes long delays batches, no registration.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from itertools import islice
from typing import Final

import trio

from danube.broker.runtime.subjects import Frames
from danube.broker.schemas.child import Child, CrashedError, Helper, OpenChild, SlowError, Start, open_child
from danube.broker.schemas.replica import Replica
from danube.checker.messages import Request, check_answer
from danube.model.batch import BatchHeader, Record, open_records
from danube.model.errors import DanubeError, SchemaPayloadError
from danube.model.limits import Limits
from danube.model.log_events import log_event
from danube.schema.frames import framed_numbers
from danube.schema.kinds import Source
from danube.schema.payloads import PayloadCheck

__all__ = ["Check", "PayloadChecker", "Payloads"]

_log = logging.getLogger("danube.broker")

_SLICE: Final = 2_000
"""Payloads whose frames are looked at before other tasks run."""
_MOST_KNOWN: Final = 200
"""Most schemas that a child keeps."""

SourceOf = Callable[[int], Source]
Check = Callable[[bytes, int, Collection[int], bool, SourceOf], Awaitable[None]]
"""Checks a batch: part, maximum unpacked size, numbers of its schemas, whether it is framed, and the schema of a
number. Raises SchemaPayloadError for one that does not fit."""


class Payloads:
    """Looks into the batches of a broker.

    Args:
        replica: of the registry, with the schemas.
        check: checks payloads.
        max_unpacked_bytes: of a batch.
    """

    def __init__(self, replica: Replica, check: Check, max_unpacked_bytes: int) -> None:
        self._replica = replica
        self._check = check
        self._max_unpacked_bytes = max_unpacked_bytes

    async def frames(self, part: bytes, header: BatchHeader) -> Frames:
        """Return what the frames of a batch's payloads name.

        Raises:
            CorruptBatchError, MessageTooLargeError: it cannot be opened.
        """
        records = open_records(part, header, self._max_unpacked_bytes)
        payloads = iter([each.payload if isinstance(each, Record) else each for each in records])
        numbers: set[int] = set()
        framed = 0
        while True:
            some = framed_numbers(islice(payloads, _SLICE), numbers)
            framed += some
            if some < _SLICE:
                return Frames(frozenset(numbers), framed)
            await trio.lowlevel.checkpoint()

    async def misfit(self, part: bytes, numbers: Collection[int], *, is_framed: bool) -> str:
        """Return why a batch has a payload that does not fit its schema, one of these numbers; empty: all fit.

        Raises:
            InvalidSchemaError: a schema cannot be used, because a library is missing.
            CallRefusedError: there is no process for it now.
            CorruptBatchError, MessageTooLargeError: the batch cannot be opened.
        """
        try:
            await self._check(part, self._max_unpacked_bytes, numbers, is_framed, self._replica.book.decodable)
        except SchemaPayloadError as error:
            return error.message
        return ""


class PayloadChecker:
    """Checks payloads in a child process, one batch at a time; call it.

    Args:
        start: starts the task that owns the child.
        limits: of the broker.
        open_child: starts a child.
    """

    def __init__(self, start: Start, limits: Limits, open_child: OpenChild = open_child) -> None:
        self._helper = Helper(start, limits, limits.payload_check_timeout_s, open_child, "checks payloads")

    @property
    def pid(self) -> int | None:
        """Of the child; None: there is none now."""
        return self._helper.pid

    async def __call__(
        self, part: bytes, max_unpacked_bytes: int, numbers: Collection[int], is_framed: bool, source_of: SourceOf
    ) -> None:
        """Have the payloads of a batch checked. If this is cancelled, the child is replaced.

        Raises:
            SchemaPayloadError: one does not fit, takes too long, or crashes the child.
            InvalidSchemaError: a schema cannot be used, because a library is missing.
            CallRefusedError: no child can be started.
        """
        asked: Child | None = None
        added: set[int] = set()

        def request_for(child: Child) -> Request:
            nonlocal asked, added
            forgets = len(child.known) + len(numbers) > _MOST_KNOWN
            if forgets:
                child.known.clear()
            asked, added = child, set(numbers) - child.known
            new = tuple((number, source_of(number)) for number in sorted(added))
            child.known |= added
            return Request(None, payloads=PayloadCheck(part, max_unpacked_bytes, is_framed, new, forgets))

        try:
            check_answer(await self._helper.ask(request_for))
        except DanubeError:
            if asked is not None:
                asked.known -= added  # perhaps it has not kept them; it does no harm to send them again
            raise
        except CrashedError as error:
            _log.warning(
                "payloads of schemas %s have crashed the process that checks payloads: %s",
                sorted(numbers),
                error,
                extra=log_event("schemas.payloads_crashed", repeating=True),
            )
            raise SchemaPayloadError("a payload crashes the parser of its type") from error
        except SlowError as error:
            time_s = self._helper.time_s
            _log.warning(
                "payloads of schemas %s were checked for %g s, and do not count as fitting",
                sorted(numbers),
                time_s,
                extra=log_event("schemas.payloads_slow", repeating=True),
            )
            raise SchemaPayloadError(
                f"checking the payloads of the batch takes longer than payload_check_timeout_s = {time_s:g} s; send"
                " smaller batches or payloads"
            ) from error
