"""A time limit for each phase of each test: a hang is a failure within seconds, and says where.

A signal interrupts the main thread after ``test_timeout_s`` (pyproject.toml) or what a marker allows, as in
``@pytest.mark.timeout(120)``; markers for long tests have limits of their own (:data:`LIMITS_S`). The tasks of a Trio
loop are printed with what each waits for, and the phase fails with :class:`HangError`: raised at once in code that
runs, by cancelling the test if its loop is idle. What neither ends (a call into C that never returns) ends the process
after :data:`GRACE_S` more, with the stacks of all threads.

It is not pytest-timeout because Hypothesis takes that one's exception for a failing example and runs it again without a
timer, because that one guards no teardown after a failure, and because its exception in an idle loop breaks Trio, whose
remains then fail the tests that follow.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import trio

LIMITS_S = {"slow": 300.0, "spark": 300.0, "extended": 600.0, "long": 7_200.0}
"""The limit of a phase of a test that has one of these markers, if it is above the default."""

GRACE_S = 20.0
"""How long after its limit a test that cannot be interrupted ends the process."""

_REPEAT_S = 5.0
"""How often the signal comes again: an exception may fall into a finalizer, a cancellation upon a shield."""

_stderr = pytest.StashKey[int]()
_has_hung = pytest.StashKey[bool]()


class HangError(BaseException):
    """A test took longer than it may. No ``Exception``: what handles errors must not handle this."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("test_timeout_s", "seconds each phase of a test may take (setup, call, teardown)", default="60")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout(seconds): how long a phase of this test may take; see tests/hangs.py")
    config.stash[_stderr] = os.dup(2)  # as it is before tests' output is captured


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_stderr])


def limit_of(item: pytest.Item) -> float:
    """How many seconds a phase of a test may take."""
    if (marker := item.get_closest_marker("timeout")) is not None:
        return float(marker.args[0])
    default = float(item.config.getini("test_timeout_s"))
    return max([default, *(limit for name, limit in LIMITS_S.items() if item.get_closest_marker(name) is not None)])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with _limited(item, "setup"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with _limited(item, "call"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with _limited(item, "teardown"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have no garbage collected while a report is made, once a test has hung.

    The traceback of a warning about the remains needs the parser, and CPython 3.11 raises SystemError if that
    interrupts the parser ("AST constructor recursion depth mismatch"), which reports need, too.
    """
    if not item.config.stash.get(_has_hung, False):
        return (yield)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def _drop_remains() -> None:
    """Collect what tests that hung have left.

    A loop that was left in the middle leaves coroutines and generators, which complain when they are collected. That
    test has failed, and another one must not fail with them.
    """
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings(action="ignore"):
            gc.collect()
    finally:
        sys.unraisablehook = hook


@contextmanager
def _limited(item: pytest.Item, phase: str) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(f"{item.nodeid} runs outside the main thread, where a signal cannot end it")
    limit = limit_of(item)
    if item.config.stash.get(_has_hung, False):
        _drop_remains()
    hung = HangError(f"the {phase} of {item.nodeid} has taken {limit:g} s; mark it timeout(SECONDS) if it may")
    signals = 0

    def over(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        item.config.stash[_has_hung] = True
        if signals == 1:
            for line in running_tasks():
                print(line, file=sys.stderr)  # noqa: T201
        if signals > 1 or not _cancel_an_idle_loop():
            raise hung

    before = signal.signal(signal.SIGALRM, over)
    faulthandler.dump_traceback_later(limit + GRACE_S, exit=True, file=item.config.stash[_stderr])
    signal.setitimer(signal.ITIMER_REAL, limit, _REPEAT_S)
    try:
        yield
    except BaseException as error:
        if signals and error is not hung:
            raise hung from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
    if signals:
        raise hung


def _cancel_an_idle_loop() -> bool:
    """Cancel the main task of a Trio loop that waits. False: there is no loop, or one of its tasks runs."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        pass
    else:
        return False
    try:
        token, root = trio.lowlevel.current_trio_token(), trio.lowlevel.current_root_task()
    except RuntimeError:
        return False
    if root is None or not root.child_nurseries:
        return False
    token.run_sync_soon(root.child_nurseries[-1].cancel_scope.cancel)
    return True


def running_tasks() -> list[str]:
    """The tasks of the Trio loop of this thread, each with its stack, the outermost call first; none outside a loop."""
    try:
        root = trio.lowlevel.current_root_task()
    except RuntimeError:
        return []
    return [] if root is None else list(_lines(root, 0))


def _lines(task: trio.lowlevel.Task, depth: int) -> Iterator[str]:
    margin = "  " * depth
    yield f"{margin}task {task.name}"
    for frame, line in _stack(task.coro):
        summary = traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_qualname)
        yield f"{margin}  {summary.filename}:{summary.lineno} in {summary.name}: {summary.line}"
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _lines(child, depth + 1)


def _stack(awaited: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames of a coroutine that is suspended: each awaits the next."""
    while awaited is not None:
        frame = (
            getattr(awaited, "cr_frame", None)
            or getattr(awaited, "gi_frame", None)
            or getattr(awaited, "ag_frame", None)
        )
        if frame is not None:
            yield frame, frame.f_lineno
        awaited = (
            getattr(awaited, "cr_await", None)
            or getattr(awaited, "gi_yieldfrom", None)
            or getattr(awaited, "ag_await", None)
        )
