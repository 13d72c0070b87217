"""Handling of Ctrl-C: exit code 130, and never a traceback.

A command has three phases, with different handlers::

    loading the command line       ``leave``   nothing has begun: the process ends at once (from ``danube`` itself on)
    the command itself             ``raise``   KeyboardInterrupt, which unwinds what it has begun
    the interpreter's shutdown     ``leave``   there is nothing to unwind any more

A KeyboardInterrupt in the first or the last phase would be raised wherever the interpreter happens to be: inside an
import, a weak reference's callback, the joining of threads. Only a process in which :func:`arm` was called changes its
handler; a larger program that runs commands keeps its own, and so does a process that ignores the signal.
"""

import _signal as signal  # type: ignore[import-not-found]  # of the module signal, what loads at once
import os
import sys

import danube

__all__ = ["INTERRUPTED", "arm", "leave_on_interrupt", "raise_on_interrupt"]

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as shells have it."""

_armed = False


def arm() -> None:
    """Install the handler ``leave`` for SIGINT, unless the process ignores it or has another handler."""
    global _armed
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, danube._leave):
        _armed = True
        leave_on_interrupt()


def leave_on_interrupt() -> None:
    """Exit the process at once on the signal."""
    if _armed:
        signal.signal(signal.SIGINT, _leave)


def raise_on_interrupt() -> None:
    """Raise KeyboardInterrupt in the main thread on the signal."""
    if _armed:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(_number: int, _frame: object) -> None:
    try:  # noqa: SIM105 - contextlib may not be imported yet, or only half
        sys.stdout.flush()
    except Exception:  # noqa: BLE001, S110 - it is closed, broken, or just being flushed
        pass
    os._exit(INTERRUPTED)
