"""Where the lines of a broker's log go, and in which format."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, TextIO

import trio

from danube.model.log_events import event_of, fields_of, repeat_key

if TYPE_CHECKING:
    from danube.model.log_repeats import Due, Repeats

__all__ = ["LogOutput"]

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_REPEATS: Final = "danube_repeats"
_LOOK_S: Final = 10.0
"""How often a process without new lines looks for repeats that it has to report."""


class LogOutput(logging.StreamHandler[TextIO]):
    """Writes lines as text or JSON; repeats of a repeating event are counted, and reported once a minute.

    Safe to use from all threads.

    Args:
        format: ``text`` or ``json``.
        stream: where the lines go.
        clock_s: never goes back.
    """

    def __init__(
        self,
        format: Literal["text", "json"],  # noqa: A002 - the word of the setting
        stream: TextIO,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream)
        self._clock_s = clock_s
        self._repeats: Repeats[logging.LogRecord] | None = None
        """Made with the first repeating event; most brokers have none."""
        self.setFormatter(logging.Formatter(_TEXT) if format == "text" else _JsonFormatter())

    @contextmanager
    def installed(self, level: str) -> Iterator[None]:
        """Be the only output of the process within the context, and report the last repeats at its end.

        Args:
            level: below which lines are left out, ``info`` for instance.
        """
        root = logging.getLogger()
        former, former_level = root.handlers[:], root.level
        root.handlers[:] = [self]
        root.setLevel(level.upper())
        try:
            yield
        finally:
            self.flush_repeats()
            root.handlers[:] = former
            root.setLevel(former_level)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, unless it repeats one of the last minute."""
        key = repeat_key(record.__dict__)
        if self._repeats is not None:
            self._report(self._repeats.due(self._clock_s()))
        elif key is not None:
            from danube.model.log_repeats import Repeats

            self._repeats = Repeats()
        if key is None or self._repeats is None or self._repeats.note(key, record, self._clock_s()):
            super().emit(record)

    def flush_repeats(self) -> None:
        """Report all repeats that are not reported yet; called at the end of the process."""
        if self._repeats is not None:
            self._report_locked(self._repeats.rest)

    async def run(self) -> None:
        """Report repeats after which no other line comes; runs until cancelled."""
        while True:
            await trio.sleep(_LOOK_S)
            if (repeats := self._repeats) is not None:
                self._report_locked(lambda: repeats.due(self._clock_s()))

    def _report_locked(self, take: Callable[[], list[Due[logging.LogRecord]]]) -> None:
        self.acquire()
        try:
            self._report(take())
        finally:
            self.release()

    def _report(self, due: list[Due[logging.LogRecord]]) -> None:
        for record, number in due:
            again = logging.makeLogRecord(record.__dict__)
            again.msg = f"{record.getMessage()} (repeated: {number} lines in the last minute were left out)"
            again.args = ()
            again.exc_info = again.exc_text = None  # the first line had it
            again.__dict__[_REPEATS] = number
            super().emit(again)


class _JsonFormatter(logging.Formatter):
    """Makes JSON of records."""

    def __init__(self) -> None:
        super().__init__()
        from danube.model.log_lines import json_line  # not needed for text

        self._json_line = json_line

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        attributes = record.__dict__
        return self._json_line(
            time_s=record.created,
            level=record.levelname,
            logger=record.name,
            message=record.getMessage(),
            event=event_of(attributes),
            fields=fields_of(attributes),
            repeats=attributes.get(_REPEATS, 0),
            exception=self.formatException(record.exc_info) if record.exc_info else "",
        )
