"""Selects the address of the broker for a command, and manages the file of named contexts.

The address is, first match wins: ``--url``; ``--context NAME``; ``DANUBE_URL`` in the environment; the current context;
``danube://127.0.0.1:6650``. Contexts are stored in ``$XDG_CONFIG_HOME/danube/contexts.toml`` (``~/.config`` without the
variable)::

    current = "staging"

    [contexts."staging"]
    url = "danube://10.0.0.7:6650"
    description = "shared test broker"
"""

from __future__ import annotations

import difflib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from danube.model.errors import ConfigurationError, NotFoundError

__all__ = [
    "DEFAULT_URL",
    "Context",
    "ContextOption",
    "Contexts",
    "UrlOption",
    "changing_contexts",
    "check_text",
    "contexts_path",
    "load_contexts",
    "resolve_url",
    "save_contexts",
    "set_defaults",
]

DEFAULT_URL: Final = "danube://127.0.0.1:6650"

UrlOption = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="Broker address, danube://HOST:PORT. [DANUBE_URL]")
]
ContextOption = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="Named context to take the address from.")
]


class Context(msgspec.Struct, forbid_unknown_fields=True):
    """One named broker."""

    url: str
    description: str = ""


class Contexts(msgspec.Struct, forbid_unknown_fields=True):
    """The file of contexts."""

    current: str = ""
    """The context that is used by default; empty for none."""
    contexts: dict[str, Context] = {}

    def find(self, name: str) -> Context:
        """Return a context.

        Raises:
            NotFoundError: there is no context of this name; the message names the nearest one.
        """
        if name in self.contexts:
            return self.contexts[name]
        near = difflib.get_close_matches(name, self.contexts, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`danube context list` shows what there is"
        raise NotFoundError(f"there is no context {name!r}; {hint}")


class _Defaults:
    """Address options given before the command: ``danube --url URL topics list``."""

    url: str | None = None
    context: str | None = None


def set_defaults(url: str | None, context: str | None) -> None:
    """Store the options of the root command for :func:`resolve_url`."""
    _Defaults.url, _Defaults.context = url, context


def resolve_url(url: str | None, context: str | None) -> str:
    """Return the address of the broker, given a command's own ``--url`` and ``--context``.

    Raises:
        NotFoundError: the context does not exist.
        ConfigurationError: the file of contexts cannot be read.
    """
    url = url or (None if context else _Defaults.url)
    context = context or _Defaults.context
    if url:
        return url
    if context:
        return load_contexts().find(context).url
    if os.environ.get("DANUBE_URL"):
        return os.environ["DANUBE_URL"]
    stored = load_contexts()
    return stored.find(stored.current).url if stored.current else DEFAULT_URL


def contexts_path() -> Path:
    """Return where the file of contexts is, or would be."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "danube" / "contexts.toml"


def load_contexts() -> Contexts:
    """Load the file of contexts; empty if the file is missing.

    Raises:
        ConfigurationError: the file cannot be read or is invalid.
    """
    path = contexts_path()
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, RecursionError) as error:  # msgspec's and tomllib's errors are ValueErrors
        raise ConfigurationError(f"{path}: {error}; repair the file or remove it") from error


@contextmanager
def changing_contexts() -> Iterator[Contexts]:
    """Yield the contexts for a change, and store them afterwards; concurrent changes of other processes wait.

    Raises:
        ConfigurationError: the file cannot be read, or is invalid.
        OSError: it, or the lock beside it, cannot be written.
    """
    path = contexts_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Each change replaces the file itself, so it cannot serve as the lock. The process's end releases the lock.
    with open(path.with_suffix(".lock"), "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stored = load_contexts()
        yield stored
        save_contexts(stored)


def save_contexts(stored: Contexts) -> None:
    """Write the file of contexts atomically; only its owner may read it."""
    path = contexts_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"current = {_quoted(stored.current)}"]
    for name, context in sorted(stored.contexts.items()):
        lines += ["", f"[contexts.{_quoted(name)}]", f"url = {_quoted(context.url)}"]
        if context.description:
            lines.append(f"description = {_quoted(context.description)}")
    fresh = path.with_suffix(f".{os.getpid()}.new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    fresh.replace(path)


def check_text(text: str) -> None:
    """Raise ConfigurationError for an argument that is not in the terminal's encoding: no file could store it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{text!a} is not text in the encoding of this system") from None


def _quoted(text: str) -> str:
    # A JSON text is a TOML basic string, except for DEL, which TOML requires to be escaped.
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
