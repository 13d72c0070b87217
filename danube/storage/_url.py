"""Storage URLs: parsing, and removal of secrets for display.

``scheme://location/path?option=value``. A URL can contain secrets, as user information or as options;
messages, manifests and metrics show ``parse_url(url).public``, which leaves them out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from danube.model.errors import ConfigurationError

__all__ = [
    "ALIASES",
    "StorageUrl",
    "is_secret",
    "parse_url",
    "public_text",
    "reachable_url",
    "storage_directory",
    "storage_place",
]

ALIASES = {"gs": "gcs", "az": "azure", "abfs": "azure"}
"""Aliases of schemes."""

_SECRET = re.compile(
    r"key|secret|token|passw|credential|connection_string|sas|sig$|signature|filesystem_options", re.IGNORECASE
)
_USER_INFORMATION = re.compile(r"//[^/@\s]*@")
_PARAMETER = re.compile(r"(?P<name>[\w-]+)=(?P<value>[^&;\s'\"]+)")
_TEXT_LENGTH = 300


class StorageUrl(NamedTuple):
    """A storage URL in parts."""

    scheme: str
    """The scheme, aliases resolved."""
    location: str
    """Bucket, or host and port, as written; user information included."""
    path: str
    """The path, decoded."""
    options: dict[str, str]
    """The options of the query."""
    public: str
    """The URL without secrets."""


def is_secret(option: str) -> bool:
    """Whether the value of an option of that name must not be shown."""
    return _SECRET.search(option) is not None


def public_text(text: str) -> str:
    """Return a foreign error's text in a form safe to show: one line, bounded, without probable secrets.

    Client libraries put whole URLs into their messages, with signatures and user information in them.
    """
    text = _USER_INFORMATION.sub("//", " ".join(text.split()))
    text = _PARAMETER.sub(lambda found: f"{found['name']}=..." if is_secret(found["name"]) else found[0], text)
    return text if len(text) <= _TEXT_LENGTH else text[:_TEXT_LENGTH] + "..."


def parse_url(url: str) -> StorageUrl:
    """Parse a storage URL; raises :class:`ConfigurationError` (without the URL's secrets) if it is invalid."""
    scheme, separator, _ = url.partition("://")
    if not separator or not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]*", scheme):
        # An invalid URL is not shown: a secret could be anywhere in it.
        raise ConfigurationError(
            "storage URL is not valid: write scheme://..., for example disk:// or s3://bucket/prefix"
        )
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"storage URL {scheme}://... is not valid: {error}") from None
    if parts.fragment:
        raise ConfigurationError(f"storage URL {scheme}://... has a '#': write it as %23")
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in options:
            raise ConfigurationError(f"storage URL {scheme}://... gives the option {name!r} twice")
        options[name] = value
    return StorageUrl(
        ALIASES.get(parts.scheme, parts.scheme),
        parts.netloc,
        unquote(parts.path),
        options,
        _public(parts.scheme, parts.netloc, unquote(parts.path), options),
    )


def storage_place(url: str) -> str:
    """Return the place of a storage URL: without options and secrets, normalised."""
    parts = parse_url(url)
    return f"{parts.scheme}://{parts.location.rpartition('@')[2]}{parts.path.rstrip('/')}"


def reachable_url(url: str, options: Mapping[str, Any], data_directory: str) -> str:
    """Return a storage URL for other processes: absolute, with all options except secrets.

    Args:
        url: as configured.
        options: configured in addition to the URL; those in its query take precedence. Only strings, numbers and
            booleans.
        data_directory: the broker's, used by ``disk://``.
    """
    parts = parse_url(url)
    beside = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if isinstance(value, str | int | float)
    }
    path = parts.path
    if parts.scheme == "disk" and not parts.location and not path:
        path = str(storage_directory(data_directory))
    return _public(parts.scheme, parts.location, path, beside | parts.options)


def storage_directory(data_directory: str | os.PathLike[str]) -> Path:
    """Return the directory of ``disk://``."""
    return Path(os.path.abspath(data_directory)) / "storage"


def _public(scheme: str, location: str, path: str, options: dict[str, str]) -> str:
    shown = {name: _USER_INFORMATION.sub("//", value) for name, value in options.items() if not is_secret(name)}
    query = f"?{urlencode(shown, safe=':/')}" if shown else ""
    return f"{scheme}://{location.rpartition('@')[2]}{quote(path)}{query}"
