"""The native call that changes the level of a broker's log, and its rules.

Messages are msgpack arrays; new fields are added at the end and have a default.
"""

from __future__ import annotations

import math
import re
from typing import Final

import msgspec

from danube.model.errors import InvalidArgumentError, LimitExceededError
from danube.model.limits import Limits

__all__ = ["LEVELS", "ChangeLogLevel", "LevelBook", "LogLevel", "LogMethod", "check_change"]

LEVELS: Final = ("debug", "info", "warning", "error")
"""Levels of a log, from all lines to few."""

_LOGGER: Final = re.compile(r"danube(\.[a-z0-9_]{1,64}){0,8}", re.ASCII)


class LogMethod:
    """Path of the native call."""

    CHANGE_LEVEL: Final = "/danube.native.v1.Broker/ChangeLogLevel"


class ChangeLogLevel(msgspec.Struct, array_like=True, gc=False):
    """Changes the level of the answering broker's log for a time. Answered with a LogLevel."""

    level: str
    """One of LEVELS; empty: that from before the first change, at once."""
    logger: str = "danube"
    """Of this logger and those below: ``danube``, or for instance ``danube.metadata``."""
    for_s: float = 600.0
    """After so many seconds the former level returns."""


class LogLevel(msgspec.Struct, array_like=True, gc=False):
    """The level of a logger after a change."""

    logger: str
    level: str
    """In force now."""
    former: str
    """Returns when the time is over."""
    for_s: float
    """Seconds until then; 0: the former level is in force."""
    broker: str = ""
    """The name of the broker in its cluster, such as ``b2``; empty outside one."""


def check_change(request: ChangeLogLevel, limits: Limits) -> None:
    """Check a request.

    Raises:
        InvalidArgumentError: the level or the logger is none, or the time is not greater than 0.
        LimitExceededError: the time is longer than ``log_level_max_s``.
    """
    if request.level and request.level not in LEVELS:
        raise InvalidArgumentError(f"level {request.level!r} is not {', '.join(LEVELS[:-1])} or {LEVELS[-1]}")
    if not _LOGGER.fullmatch(request.logger):
        raise InvalidArgumentError(
            f"logger {request.logger!r} is none of the broker's: they are danube and, for instance, danube.metadata"
        )
    if not 0 < request.for_s < math.inf:
        raise InvalidArgumentError(f"for_s = {request.for_s} must be greater than 0 and finite")
    if request.for_s > limits.log_level_max_s:
        raise LimitExceededError(
            f"the level would be changed for {request.for_s:g} s, and limits.log_level_max_s is"
            f" {limits.log_level_max_s:g}; set log_level in the configuration to change it for good"
        )


class LevelBook:
    """Remembers which loggers have another level for a time, and what returns. Levels are numbers of ``logging``.

    Args:
        most: loggers that are changed at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._former: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def change(self, logger: str, own: int, until: float) -> int:
        """Note that a logger gets another level until a time; return its own level from before the first change.

        Args:
            logger: its name.
            own: its own level at this moment; 0 if it has none.
            until: a time of the clock that :meth:`due` gets.

        Raises:
            LimitExceededError: too many loggers are changed already.
        """
        if logger not in self._former and len(self._former) >= self._most:
            raise LimitExceededError(
                f"the levels of {len(self._former)} loggers are changed, and limits.max_log_levels is {self._most};"
                " wait until one returns, or change the level of danube as a whole"
            )
        self._until[logger] = until
        return self._former.setdefault(logger, own)

    def forget(self, logger: str) -> int | None:
        """Return the level that a logger gets back now; None if it was not changed."""
        self._until.pop(logger, None)
        return self._former.pop(logger, None)

    def due(self, now: float) -> list[tuple[str, int]]:
        """Return, and forget, the loggers whose time is over, each with the level that it gets back."""
        over = [logger for logger, until in self._until.items() if until <= now]
        return [(logger, former) for logger in over if (former := self.forget(logger)) is not None]

    @property
    def next_due(self) -> float:
        """When the next level returns; infinite if none was changed."""
        return min(self._until.values(), default=math.inf)
