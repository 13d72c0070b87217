"""The root of the command tree: options for every command, and the mapping of errors to exit codes.

An error is one line on standard error, ``error: what happened, to which thing, what to do``, never a traceback
(``--debug`` shows it). Commands raise; no module below this one prints errors or exits the process.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from danube.cli._context import ContextOption, UrlOption, set_defaults
from danube.cli._extensions import extension_names, find_extension
from danube.cli._interrupts import INTERRUPTED, leave_on_interrupt, raise_on_interrupt

if TYPE_CHECKING:
    from danube.model.errors import DanubeError

__all__ = ["EXIT_CODES", "RootGroup", "flatten", "root"]

EXIT_CODES = """\
Exit codes: 0 done; 1 any other error, or a check that failed; 2 wrong usage; 65 invalid argument, name, message or
configuration; 66 topic, namespace or subscription not found; 69 broker not reachable, draining or failing; 70 a bug
in Danube; 73 exists already; 74 stored data is damaged; 75 a limit, a conflict or a deadline: try again later; 76 not
implemented by this broker; 77 not permitted; 78 refused in this state (durability or type mismatch, subscription
busy, producer fenced, data directory in use); 130 interrupted."""


class RootGroup(TyperGroup):
    """The group behind ``danube``: finds commands of other packages, converts errors to one line and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, those of other packages last."""
        own = super().list_commands(ctx)
        return own + [name for name in extension_names() if name not in own]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command: a built-in one, else one of another package, else None."""
        return super().get_command(ctx, cmd_name) or find_extension(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        from danube.model.errors import DanubeError, exit_code

        try:
            raise_on_interrupt()
            try:
                return super().invoke(ctx)
            finally:
                _flush_stdout()
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _abandon_stdout()
            raise typer.Exit(0) from None
        except (DanubeError, OSError, UnicodeEncodeError, BaseExceptionGroup) as error:
            if ctx.params.get("debug"):
                raise
            found = flatten(error)
            if isinstance(found, KeyboardInterrupt):
                raise typer.Exit(INTERRUPTED) from None
            if isinstance(found, BrokenPipeError):
                _abandon_stdout()
                raise typer.Exit(0) from None
            if isinstance(found, UnicodeEncodeError):
                found = _no_text(found)
            if not isinstance(found, DanubeError | OSError):
                raise
            print(f"error: {_one_line(found)}", file=sys.stderr)
            raise typer.Exit(exit_code(found)) from None
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


def _show_version(wanted: bool) -> None:
    if wanted:
        from danube import __version__

        print(f"danube {__version__}")
        raise typer.Exit


def root(
    url: UrlOption = None,
    context: ContextOption = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks instead of one-line errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Danube, a message broker in one Python process.

    Start a broker with `danube serve`; the other commands connect to it.
    """
    set_defaults(url, context)
