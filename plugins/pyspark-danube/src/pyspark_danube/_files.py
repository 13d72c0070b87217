"""Small programs that the plugin writes into the user's cache directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_directory", "install_script"]


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory for files that can be made again: below ``XDG_CACHE_HOME`` or ``~/.cache``."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "danube"


def install_script(path: Path, text: str) -> None:
    """Write a program, unless it is there with the same text; other processes never see half of it.

    Raises:
        OSError: it cannot be written.
    """
    if path.is_file() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(path)
