"""Changes the levels of the process's loggers for a time."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import trio

from danube.model.limits import Limits
from danube.model.log_api import ChangeLogLevel, LevelBook, LogLevel, check_change
from danube.model.log_events import log_event

__all__ = ["LogLevels"]

_log = logging.getLogger("danube.broker")


class LogLevels:
    """The levels of the loggers of the process, and what of them was changed for a time.

    Args:
        limits: of the broker.
        broker: returns the name of the broker in its cluster; empty outside one.
    """

    def __init__(self, limits: Limits, broker: Callable[[], str]) -> None:
        self._limits = limits
        self._broker = broker
        self._book = LevelBook(limits.max_log_levels)
        self._changed = trio.Event()

    async def change(self, request: ChangeLogLevel) -> LogLevel:
        """Change the level of a logger, and of those below it that have none of their own.

        Raises:
            InvalidArgumentError, LimitExceededError: see :func:`danube.model.log_api.check_change`.
        """
        check_change(request, self._limits)
        logger, now = logging.getLogger(request.logger), trio.current_time()
        if request.level:
            former = self._book.change(request.logger, logger.level, now + request.for_s)
            logger.setLevel(request.level.upper())
            _log.warning(
                "the level of the logger %s is %s for %g s",
                request.logger,
                request.level,
                request.for_s,
                extra=log_event("log.level_changed", changed=request.logger, to=request.level),
            )
        else:
            kept = self._book.forget(request.logger)
            former = logger.level if kept is None else kept
            self._set_back(request.logger, former)
        self._changed.set()
        await trio.lowlevel.checkpoint()
        return LogLevel(
            request.logger,
            _name(logger.getEffectiveLevel()),
            _name(former or _level_above(logger)),
            request.for_s if request.level else 0.0,
            self._broker(),
        )

    async def run(self) -> None:
        """Let the former levels return when their time is over, and all of them when this is cancelled."""
        try:
            while True:
                self._changed = trio.Event()
                with trio.move_on_at(min(self._book.next_due, trio.current_time() + 1e9)):
                    await self._changed.wait()
                for logger, former in self._book.due(trio.current_time()):
                    self._set_back(logger, former)
        finally:
            for logger, former in self._book.due(math.inf):
                self._set_back(logger, former)

    def _set_back(self, logger: str, former: int) -> None:
        found = logging.getLogger(logger)
        if found.level != former:
            found.setLevel(former)
            _log.info("the level of the logger %s is %s again", logger, _name(found.getEffectiveLevel()))


def _level_above(logger: logging.Logger) -> int:
    """Return the level that a logger without one of its own has."""
    return logger.parent.getEffectiveLevel() if logger.parent is not None else logging.WARNING


def _name(level: int) -> str:
    return logging.getLevelName(level).lower()
