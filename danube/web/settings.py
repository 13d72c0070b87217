"""The configuration of a broker as a list of settings, without secrets. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from danube.model.secret import Secret
from danube.web.bodies import Setting

__all__ = ["HIDDEN", "settings_of"]

HIDDEN: Final = "***"
_SECRET_WORDS: Final = ("password", "secret", "token", "credential", "sas", "key")
_OPENLY: Final = frozenset({"tls.key", "cluster_secret"})
"""Names of files, not what they contain."""


def settings_of(config: msgspec.Struct, *, without: frozenset[str] = frozenset()) -> list[Setting]:
    """Return all settings, with dots where they are in tables.

    What could be a secret is shown as ``***``: every option of a storage or a metadata engine whose name says so, and
    user information, passwords and queries of URLs.

    Args:
        config: the configuration, or the limits.
        without: top-level fields to be left out.
    """
    return list(_settings(config, "", without))


def _settings(config: msgspec.Struct, prefix: str, without: frozenset[str]) -> Iterator[Setting]:
    for field in msgspec.structs.fields(config):
        if field.name in without:
            continue
        name, value = f"{prefix}{field.name}", getattr(config, field.name)
        if isinstance(value, msgspec.Struct):
            yield from _settings(value, f"{name}.", frozenset())
            continue
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        source = "default" if value == default else "configured"
        yield Setting(name=name, value=_shown(name, value), source=source)


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, Secret):
        return HIDDEN
    if isinstance(value, msgspec.Struct):
        return {each: _shown(f"{name}.{each}", getattr(value, each)) for each in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(key): _shown(f"{name}.{key}", each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown(name, each) for each in value]
    last = name.rpartition(".")[2].lower()
    if value and name not in _OPENLY and isinstance(value, str) and any(word in last for word in _SECRET_WORDS):
        return HIDDEN
    if isinstance(value, str) and "://" in value:
        return _bare_url(value)
    return value


def _bare_url(url: str) -> str:
    """Return a URL without what may be a secret: user information, and the values of its query."""
    scheme, _, rest = url.partition("://")
    rest, mark, query = rest.partition("?")
    place, slash, path = rest.partition("/")
    user, at, host = place.rpartition("@")
    shown = "&".join(f"{pair.partition('=')[0]}={HIDDEN}" for pair in query.split("&") if pair)
    return f"{scheme}://{HIDDEN + at if user else ''}{host}{slash}{path}{mark}{shown}"
