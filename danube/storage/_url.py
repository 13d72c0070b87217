"""Storage URLs: parsing, and removal of secrets for display. Pure: no I/O, no clock.

``scheme://location/path?option=value``. A URL can contain secrets, as user information or as options;
messages, manifests and metrics show ``parse_url(url).public``, which leaves them out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from danube.model.errors import ConfigurationError

__all__ = [
    "ALIASES",
    "StorageUrl",
    "is_secret",
    "parse_url",
    "public_url",
    "public_text",
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
        public_url(parts.scheme, parts.netloc, unquote(parts.path), options),
    )


def storage_place(url: str) -> str:
    """Return the place of a storage URL: without options and secrets, normalised."""
    parts = parse_url(url)
    return f"{parts.scheme}://{parts.location.rpartition('@')[2]}{parts.path.rstrip('/')}"


def public_url(scheme: str, location: str, path: str, options: Mapping[str, str]) -> str:
    """Build a URL of its parts, without secrets."""
    shown = {name: _USER_INFORMATION.sub("//", value) for name, value in options.items() if not is_secret(name)}
    query = f"?{urlencode(shown, safe=':/')}" if shown else ""
    return f"{scheme}://{location.rpartition('@')[2]}{quote(path)}{query}"
