"""What a client proves itself with: one token, the same in a file, a function that returns it, or an API key.

It is sent as the header ``authorization`` of every call and stream. A file is read again when it has changed, so a
token can be renewed while the client runs. Over plain text it is sent to this machine only.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from os import PathLike
from typing import Final, TypeAlias

from danube.model.errors import CallRefusedError, ConfigurationError

__all__ = ["Credentials", "FileName", "file_name"]

FileName: TypeAlias = str | PathLike[str]

_LOOK_INTERVAL_S: Final = 1.0
"""How often a file of a token is looked at, at most."""
_MAX_TOKEN_CHARS: Final = 12 * 1024

_log = logging.getLogger("danube.client")


class Credentials:
    """The credentials of one client.

    Args:
        token: a token.
        token_file: a file with nothing but a token.
        token_supplier: returns the token for each call and stream. It must not block, and caches what it fetches.
        api_key: an API key.
        clock_s: monotonic seconds.

    Raises:
        ConfigurationError: more than one of them is given, or one is not a single word of printable ASCII, or the file
            cannot be read.
    """

    def __init__(
        self,
        *,
        token: str | None,
        token_file: FileName | None,
        token_supplier: Callable[[], str] | None,
        api_key: str | None,
        clock_s: Callable[[], float],
    ) -> None:
        given = {"token": token, "token_file": token_file, "token_supplier": token_supplier, "api_key": api_key}
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise ConfigurationError(f"give one of {', '.join(names)}, not {len(names)} of them")
        if token_supplier is not None and not callable(token_supplier):
            raise ConfigurationError(f"token_supplier is a function, not {type(token_supplier).__name__}")
        self._clock_s = clock_s
        self._supplier = token_supplier
        self._file = None if token_file is None else file_name("token_file", token_file)
        self._signature: tuple[int, int, int] | None = None
        self._looked_at_s = clock_s()
        self._header = ""
        if self._file is not None:
            try:
                self._read(self._file)
            except OSError as error:
                raise ConfigurationError(f"token_file {self._file!r} cannot be read: {error.strerror}") from error
        elif token is not None:
            self._header = _header("token", token)
        elif api_key is not None:
            self._header = _header("api_key", api_key)

    def __repr__(self) -> str:
        return "<Credentials ***>" if self else "<Credentials: none>"

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._header or self._supplier is not None)

    def authorization(self) -> str:
        """Return the header for one call or stream.

        Raises:
            CallRefusedError: the function that supplies tokens has raised an exception, or has returned something else.
        """
        if self._supplier is not None:
            try:
                return _header("the answer of token_supplier", self._supplier())
            except Exception as error:
                # Its text may be long, or contain what it sent.
                name = type(error).__name__
                text = error.message if isinstance(error, ConfigurationError) else f"token_supplier has raised {name}"
                raise CallRefusedError(f"there is no token for this call: {text}") from error
        if self._file is not None and self._clock_s() - self._looked_at_s >= _LOOK_INTERVAL_S:
            self._looked_at_s = self._clock_s()
            try:
                self._read(self._file)
            except (OSError, ConfigurationError) as error:
                _log.warning("the token in use stays: token_file %r: %s", self._file, error)
        return self._header

    def _read(self, path: str) -> None:
        status = os.stat(path)
        signature = status.st_mtime_ns, status.st_size, status.st_ino
        if signature == self._signature:
            return
        with open(path, "rb") as file:
            text = file.read(_MAX_TOKEN_CHARS + 1).decode("ascii", "replace")
        self._signature = signature
        self._header = _header(f"token_file {path!r}", text.strip())


def file_name(option: str, value: FileName) -> str:
    """Return the name of a file as text.

    Raises:
        ConfigurationError: the value of this option is none.
    """
    try:
        name: object = os.fspath(value)
        if isinstance(name, str) and name and b"\0" not in os.fsencode(name):
            return name
    except (TypeError, ValueError):
        pass  # refused below
    raise ConfigurationError(f"{option} must be the name of a file, not {value!r}")


def _header(what: str, token: object) -> str:
    if not (
        isinstance(token, str)
        and len(token) <= _MAX_TOKEN_CHARS
        and token.isascii()
        and token.isprintable()
        and token.split() == [token]
    ):
        raise ConfigurationError(
            f"{what} must be one word of printable ASCII, of at most {_MAX_TOKEN_CHARS} characters"
        )
    return f"Bearer {token}"
