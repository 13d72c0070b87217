"""Selects the address of the broker for a command, and manages the file of named contexts.

The address is, first match wins: ``--url``; ``--context NAME``; ``DANUBE_URL`` in the environment; ``DANUBE_CONTEXT``
there; the current context; ``danube://127.0.0.1:6650``. Contexts are stored in
``$XDG_CONFIG_HOME/danube/contexts.toml`` (``~/.config`` without the variable)::

    current = "staging"

    [contexts."staging"]
    url = "danube+tls://10.0.0.7:6650"
    description = "shared test broker"
    ca = "/home/ada/staging/ca.pem"
    token_file = "/home/ada/staging/token"
    namespace = "shop"

A context names files with credentials; it never has one itself, and they are sent to its own address only. Credentials
are, first match wins: those of the context in ``--context NAME``; ``DANUBE_TOKEN`` or ``DANUBE_TOKEN_FILE`` in the
environment, also for ``--url`` and ``DANUBE_URL``; those of the current context. ``DANUBE_CA`` is in the same place.
"""

from __future__ import annotations

import difflib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import typer

from danube.model.errors import ConfigurationError, NotFoundError

__all__ = [
    "DEFAULT_URL",
    "Context",
    "ContextOption",
    "Contexts",
    "Resolved",
    "UrlOption",
    "changing_contexts",
    "check_text",
    "contexts_path",
    "load_contexts",
    "namespace_of",
    "resolve_context",
    "resolve_url",
    "save_contexts",
    "set_defaults",
]

DEFAULT_URL: Final = "danube://127.0.0.1:6650"
DEFAULT_NAMESPACE: Final = "default"


def _complete_context(incomplete: str) -> list[str]:
    from danube.cli._completion import complete_context

    return complete_context(incomplete)


# Both are eager: they are known when the names of topics are completed, and bare ones are made full.
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Broker address, danube://HOST:PORT; of a cluster danube://A,B,C. [DANUBE_URL]",
        is_eager=True,
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="Named context to take address and credentials from. [DANUBE_CONTEXT]",
        is_eager=True,
        autocompletion=_complete_context,
    ),
]


class Context(msgspec.Struct, forbid_unknown_fields=True):
    """One named broker or cluster."""

    url: str
    description: str = ""
    ca: str = ""
    """File with the authorities that sign the certificates of the brokers."""
    cert: str = ""
    """File with the certificate of this client."""
    key: str = ""
    """File with its key."""
    token_file: str = ""
    """File with a token; only one of the three is given."""
    token_command: str = ""
    """Command that prints a token; it runs once for each command, without a shell."""
    api_key_file: str = ""
    """File with an API key."""
    namespace: str = ""
    """Namespace of topics that are named without one; empty: ``default``."""


class Resolved(NamedTuple):
    """Where a command goes."""

    context: Context
    is_named: bool
    """Whether the command names the context, so that its credentials come before those of the environment."""


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


def resolve_context(url: str | None, context: str | None) -> Resolved:
    """Return where the broker is, and the credentials for it, given a command's own ``--url`` and ``--context``.

    Raises:
        NotFoundError: the context does not exist.
        ConfigurationError: the file of contexts cannot be read.
    """
    url = url or (None if context else _Defaults.url)
    context = context or _Defaults.context
    if url:
        return Resolved(Context(url), False)
    if context:
        return Resolved(load_contexts().find(context), True)
    if os.environ.get("DANUBE_URL"):
        return Resolved(Context(os.environ["DANUBE_URL"]), False)
    if os.environ.get("DANUBE_CONTEXT"):
        return Resolved(load_contexts().find(os.environ["DANUBE_CONTEXT"]), True)
    stored = load_contexts()
    return Resolved(stored.find(stored.current) if stored.current else Context(DEFAULT_URL), False)


def resolve_url(url: str | None, context: str | None) -> str:
    """Return the address of the broker; as :func:`resolve_context`."""
    return resolve_context(url, context).context.url


def namespace_of(url: str | None, context: str | None) -> str:
    """Return the namespace of topics that are named without one; arguments and errors as :func:`resolve_context`."""
    return resolve_context(url, context).context.namespace or DEFAULT_NAMESPACE


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
        for field in Context.__struct_fields__[1:]:
            value = getattr(context, field)
            if value:
                lines.append(f"{field} = {_quoted(value)}")
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
