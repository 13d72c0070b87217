"""Reads the files of the web console from the installed package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from danube.web.console import ConsoleFiles

__all__ = ["STATIC", "console_files"]

STATIC: Final = Path(__file__).with_name("static")
"""The directory of the files."""


def console_files() -> ConsoleFiles:
    """Return the files of the console. Each is read when it is first asked for, as a module is when it is imported."""
    found = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.is_file()}
    return ConsoleFiles(found, lambda name: found[name].read_bytes())
