"""Calls of a member's callers, until each is answered. Pure: the time is passed in, and callers are woken outside."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from danube.metadata._contract import LeaseId
from danube.metadata._machine import StoreMachine
from danube.model.errors import DanubeError

__all__ = ["Call", "Change", "Read", "Renewal", "Waiting", "again"]


def _unheard() -> None:
    """Wake the caller of a call that has none yet."""


class Call:
    """A call that waits for its answer; the first one counts.

    Attributes:
        deadline: when it fails without an answer.
        result, error: the answer.
        is_answered: whether there is one.
        is_withdrawn: whether its caller has stopped waiting.
        on_answer: called once, when there is an answer.
    """

    __slots__ = ("deadline", "error", "is_answered", "is_withdrawn", "on_answer", "result")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.result: Any = None
        self.error: DanubeError | None = None
        self.is_answered = False
        self.is_withdrawn = False
        self.on_answer: Callable[[], None] = _unheard

    @property
    def is_open(self) -> bool:
        """Whether its caller waits for an answer."""
        return not self.is_answered and not self.is_withdrawn

    def answer(self, outcome: object) -> None:
        """Answer with an outcome: a result, or the error to be raised."""
        if isinstance(outcome, DanubeError):
            self.fail(outcome)
        elif not self.is_answered:
            self.result = outcome
            self.finish()

    def fail(self, error: DanubeError) -> None:
        """Answer with an error."""
        if not self.is_answered:
            self.error = error
            self.finish()

    def finish(self) -> None:
        """Tell the caller that result or error are there."""
        self.is_answered = True
        self.on_answer()


class Change(Call):
    """A command that is to be applied.

    Attributes:
        data: the encoded command.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes, deadline: float) -> None:
        super().__init__(deadline)
        self.data = data


class Read(Call):
    """A linearizable read.

    Attributes:
        work: returns its result.
        is_brief: whether that takes microseconds, as reading one key does.
    """

    __slots__ = ("is_brief", "work")

    def __init__(self, work: Callable[[StoreMachine], Any], deadline: float, *, is_brief: bool = False) -> None:
        super().__init__(deadline)
        self.work = work
        self.is_brief = is_brief


class Renewal(Call):
    """A keep-alive.

    Attributes:
        lease: to be renewed.
    """

    __slots__ = ("lease",)

    def __init__(self, lease: LeaseId, deadline: float) -> None:
        super().__init__(deadline)
        self.lease = lease


class Waiting:
    """All calls that may wait for an answer, in the order of their deadlines."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()

    def add(self, call: Call) -> None:
        """Add a call, with a deadline that is not before those of the others."""
        self._forget_answered()
        self._calls.append(call)

    def _forget_answered(self) -> None:
        calls = self._calls
        while calls and calls[0].is_answered:
            calls.popleft()

    @property
    def is_any_open(self) -> bool:
        """Whether a call may wait for its answer."""
        self._forget_answered()
        return bool(self._calls)

    def overdue(self, now: float) -> list[Call]:
        """Return, and forget, the calls without an answer whose deadline has passed."""
        calls, found = self._calls, []
        while calls and (calls[0].is_answered or calls[0].deadline <= now):
            call = calls.popleft()
            if not call.is_answered:
                found.append(call)
        return found

    def fail(self, error: DanubeError) -> None:
        """Answer all calls with an error."""
        calls, self._calls = self._calls, deque()
        for call in calls:
            if not call.is_answered:
                call.fail(again(error))


def again(error: DanubeError) -> DanubeError:
    """Return a new exception of the same kind: one object raised in many tasks would collect all their tracebacks."""
    return type(error)(error.message)
