"""Secrets in the configuration file of a broker.

A secret is ``"env:NAME"``, the value of an environment variable, or ``"file:/path"``, the content of a file without the
space around. It may be in the configuration file itself only if others than its owner and group cannot read that. In
the configuration it is a :class:`~danube.model.secret.Secret`, which is shown as ``***``.

Secret are the options of storages and of the metadata engine whose names say so (``password``, ``secret_key``,
``token`` ...), unless the value is a path, and ``[security.upstream] secret``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from danube.model.errors import ConfigurationError
from danube.model.secret import Secret
from danube.storage import is_secret

__all__ = ["with_secrets"]

_ENV: Final = "env:"
_FILE: Final = "file:"
_MAX_CHARS: Final = 64 * 1024


def with_secrets(settings: Mapping[str, Any], path: str, *, is_open: bool) -> dict[str, Any]:
    """Return the settings of a file with its secrets resolved.

    Args:
        settings: as in the file; not changed. Tables of the wrong form are left as they are.
        path: of the file, for errors.
        is_open: whether others than its owner and group can read the file.

    Raises:
        ConfigurationError: a variable is not set, a file cannot be read, or a plain secret is in an open file.
    """
    found = dict(settings)

    def resolved(value: str, where: str) -> Secret:
        if value.startswith(_ENV):
            name = value.removeprefix(_ENV)
            text = os.environ.get(name)
            if not text:
                raise ConfigurationError(f"{path}: {where} is in the environment variable {name}, which is not set")
            return Secret(text)
        if value.startswith(_FILE):
            return Secret(_read(value.removeprefix(_FILE), f"{path}: {where}"))
        if is_open:
            raise ConfigurationError(
                f"{path}: {where} is a secret, and others can read the file: write 'env:NAME' or 'file:/path' there, or"
                f" run chmod o-rwx {path}"
            )
        return Secret(value)

    def table(holder: Any, where: str) -> Any:
        options = holder.get("options") if isinstance(holder, dict) else None
        if not isinstance(options, dict):
            return holder
        return {
            **holder,
            "options": {
                name: resolved(value, f"{where} {name}") if _holds_secret(name, value) else value
                for name, value in options.items()
            },
        }

    for name in ("metadata", "storage"):
        if name in found:
            found[name] = table(found[name], f"[{name}] option")
    if isinstance(found.get("storages"), dict):
        found["storages"] = {name: table(each, f"[storages.{name}] option") for name, each in found["storages"].items()}
    security = found.get("security")
    upstream = security.get("upstream") if isinstance(security, dict) else None
    if isinstance(security, dict) and isinstance(upstream, dict) and isinstance(upstream.get("secret"), str):
        secret = resolved(upstream["secret"], "[security.upstream] secret")
        found["security"] = {**security, "upstream": {**upstream, "secret": secret}}
    return found


def _holds_secret(name: str, value: object) -> bool:
    return isinstance(value, str) and bool(value) and is_secret(name) and not value.startswith(("/", "./", "~"))


def _read(path: str, where: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(_MAX_CHARS + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(f"{where} is in the file {path}, which cannot be read: {why}") from error
    if not text.strip() or len(text) > _MAX_CHARS:
        raise ConfigurationError(f"{where} is in the file {path}, which is empty or too long")
    return text.strip()
