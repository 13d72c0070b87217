"""Has schemas examined by a child process (:mod:`danube.broker.schemas.child`), one at a time."""

from __future__ import annotations

import logging
from typing import Final

from danube.broker.schemas.child import CrashedError, Helper, OpenChild, SlowError, Start, open_child
from danube.checker.messages import Request, outcome
from danube.model.errors import CallRefusedError, InvalidSchemaError
from danube.model.limits import Limits
from danube.model.log_events import log_event
from danube.schema.examine import Examination, Finding
from danube.schema.limits import limits_of

__all__ = ["MOST_WAITING", "Checker"]

_log = logging.getLogger("danube.broker")

MOST_WAITING: Final = 64
"""Most examinations that wait for the child, or are with it."""


class Checker:
    """Examines schemas in a child process; see the module. Call it.

    Args:
        start: starts the task that owns the child.
        limits: of the broker.
        open_child: starts a child.
    """

    def __init__(self, start: Start, limits: Limits, open_child: OpenChild = open_child) -> None:
        self._helper = Helper(start, limits, limits.schema_checker_timeout_s, open_child, "examines schemas")
        self._limits = limits_of(limits)
        self._waiting = 0

    @property
    def pid(self) -> int | None:
        """Of the child; None: there is none now."""
        return self._helper.pid

    async def __call__(self, examination: Examination) -> Finding:
        """Have a schema parsed and compared. If this is cancelled, the child is replaced.

        Raises:
            InvalidSchemaError: a schema is invalid, takes too long, or crashes the child.
            SchemaTooLargeError: a limit was hit.
            CallRefusedError: too many wait, or no child can be started.
        """
        if self._waiting >= MOST_WAITING:
            raise CallRefusedError(f"{MOST_WAITING} schemas wait to be examined, which is the most; try again")
        self._waiting += 1
        request = Request(examination, self._limits)
        try:
            return outcome(await self._helper.ask(lambda _child: request))
        except CrashedError as error:
            _log.warning(
                "a schema has crashed the process that examines schemas: %s",
                error,
                extra=log_event("schemas.checker_crashed", repeating=True),
            )
            raise InvalidSchemaError("the schema crashes the parser of its type") from error
        except SlowError as error:
            time_s = self._helper.time_s
            _log.warning(
                "a schema was examined for %g s, and refused",
                time_s,
                extra=log_event("schemas.checker_slow", repeating=True),
            )
            raise InvalidSchemaError(
                f"examining the schema takes longer than schema_checker_timeout_s = {time_s:g} s; simplify it"
            ) from error
        finally:
            self._waiting -= 1
