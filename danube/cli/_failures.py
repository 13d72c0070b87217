"""How a command ends that fails: one line on standard error, and an exit code.

The line is ``error: what happened, to which thing, what to do``, never a traceback (``--debug`` shows it). Commands
raise; no module below this one prints errors or exits the process. Typer is not needed for this: see
:mod:`danube.cli._plain_options`.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from danube.cli._interrupts import INTERRUPTED, leave_on_interrupt, raise_on_interrupt

if TYPE_CHECKING:
    from danube.model.errors import DanubeError

__all__ = ["errors_in_one_line", "flatten"]


@contextmanager
def errors_in_one_line(*, debug: bool = False) -> Iterator[None]:
    """Run a command within this: an error of it is printed in one line, and ends the process with its exit code.

    Args:
        debug: raise errors as they are, to show their tracebacks.
    """
    from danube.model.errors import DanubeError, exit_code

    try:
        raise_on_interrupt()
        try:
            yield
        finally:
            _flush_stdout()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        _abandon_stdout()
        raise SystemExit(0) from None
    except (DanubeError, OSError, UnicodeEncodeError, BaseExceptionGroup) as error:
        if debug:
            raise
        found = flatten(error)
        if isinstance(found, KeyboardInterrupt):
            raise SystemExit(INTERRUPTED) from None
        if isinstance(found, BrokenPipeError):
            _abandon_stdout()
            raise SystemExit(0) from None
        if isinstance(found, UnicodeEncodeError):
            found = _no_text(found)
        if not isinstance(found, DanubeError | OSError):
            raise
        print(f"error: {_one_line(found)}", file=sys.stderr)
        raise SystemExit(exit_code(found)) from None
    finally:
        leave_on_interrupt()


def flatten(error: BaseException) -> BaseException:
    """Return the first exception inside a group (or the exception itself)."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _no_text(error: UnicodeEncodeError) -> DanubeError:
    """Return the error for a text that cannot be encoded: bytes of an argument, or an unsupported character."""
    from danube.model.errors import InvalidArgumentError

    return InvalidArgumentError(
        f"{error.object[error.start : error.end]!a} cannot be written in the encoding {error.encoding}; give arguments"
        " that are text, and see that the terminal takes UTF-8"
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _flush_stdout() -> None:
    """Flush standard output: a failure to write is an error of the command, to be reported before its end."""
    try:
        sys.stdout.flush()
    except OSError:
        _abandon_stdout()
        raise


def _abandon_stdout() -> None:
    """The reader of our output has gone (``| head``): discard the rest, so that the flush at exit does not fail."""
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:  # an object in memory, whose flush does not fail
        return
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, descriptor)
    os.close(sink)
