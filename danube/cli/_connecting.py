"""Connects a command to its broker, with the credentials of its context or of the environment."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from danube.cli._context import resolve_context
from danube.model.errors import ConfigurationError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from danube.cli._context import Context
    from danube.client import Client

__all__ = ["Target", "check_credentials", "credentials_of", "find_target"]

_COMMAND_S: Final = 30.0
"""How long ``token_command`` may take."""
_SOURCES: Final = ("token_file", "token_command", "api_key_file")


class Target:
    """A broker, and what is sent to it.

    Args:
        url: its address.
        options: of :func:`danube.connect`, credentials among them.
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.url = url
        self._options = options

    def __repr__(self) -> str:
        return f"Target({self.url!r})"

    def at(self, address: str) -> Target:
        """Return another broker of the same cluster, at ``host:port``."""
        scheme = self.url.partition("://")[0] if "://" in self.url else "danube"
        return Target(f"{scheme}://{address}", self._options)

    def connect(self, **options: Any) -> AbstractAsyncContextManager[Client]:
        """Connect, with further options of :func:`danube.connect`."""
        import danube

        return danube.connect(self.url, **self._options, **options)


def find_target(url: str | None, context: str | None) -> Target:
    """Return the broker of a command, given its ``--url`` and ``--context``.

    Raises:
        NotFoundError: the context does not exist.
        ConfigurationError: the contexts, or a file with a credential, cannot be read; or the command that prints
            a token has failed.
    """
    found = resolve_context(url, context)
    return Target(found.context.url, credentials_of(found.context, is_named=found.is_named))


def credentials_of(context: Context, *, is_named: bool = False) -> dict[str, Any]:
    """Return the options of :func:`danube.connect` for a context: its own credentials, or those of the environment.

    Args:
        context: where the command goes.
        is_named: whether the command names it. Its credentials come first then, else those of the environment.

    Raises:
        ConfigurationError: it names more than one credential; a file cannot be read, or a command has failed.
    """
    check_credentials(context)
    options: dict[str, Any] = {name: getattr(context, name) for name in ("ca", "cert", "key") if getattr(context, name)}
    authorities = os.environ.get("DANUBE_CA")
    if authorities and not (is_named and context.ca):
        options["ca"] = authorities
    has_own = any(getattr(context, name) for name in (*_SOURCES, "cert"))
    proof = {} if is_named and has_own else _of_environment()
    if not proof:
        if context.token_file:
            proof["token_file"] = context.token_file
        elif context.token_command:
            proof["token"] = _run(context.token_command)
        elif context.api_key_file:
            proof["api_key"] = _read(context.api_key_file)
    return options | proof


def _of_environment() -> dict[str, Any]:
    for variable, name in (("DANUBE_TOKEN", "token"), ("DANUBE_TOKEN_FILE", "token_file")):
        if os.environ.get(variable):
            return {name: os.environ[variable]}
    return {}


def check_credentials(context: Context) -> None:
    """Raise ConfigurationError if a context names more than one credential to be sent."""
    given = [name for name in _SOURCES if getattr(context, name)]
    if len(given) > 1:
        raise ConfigurationError(f"the context names {' and '.join(given)}; one credential is sent, so keep one")


def _read(path: str) -> str:
    try:
        return Path(path).read_text("ascii", "replace").strip()
    except OSError as error:
        raise ConfigurationError(f"the API key in {path} cannot be read: {error.strerror or error}") from error


def _run(command: str) -> str:
    """Return what a command prints; an error never contains it."""
    try:
        words = shlex.split(command)
        done = subprocess.run(words, stdout=subprocess.PIPE, timeout=_COMMAND_S, check=False, text=True)
    except (ValueError, OSError, subprocess.TimeoutExpired) as error:
        why = f"takes longer than {_COMMAND_S:g} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise ConfigurationError(f"the token_command of the context cannot be run: {why}") from error
    if done.returncode or not done.stdout.strip():
        raise ConfigurationError(
            f"the token_command of the context has printed no token (exit code {done.returncode}); run it by hand"
        )
    return done.stdout.strip()
