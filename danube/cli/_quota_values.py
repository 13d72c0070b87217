"""Quotas in the notation of the command line, such as ``max_topics=100 publish_rate=10MiB/s``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from danube.cli._policy_values import TOPIC_POLICIES, Kind
from danube.model.errors import ConfigurationError, InvalidArgumentError

if TYPE_CHECKING:
    from danube.model.quotas import PrincipalQuota, QuotaReport

__all__ = [
    "PRINCIPAL_QUOTAS",
    "QUOTAS",
    "parse_quota_names",
    "parse_quotas",
    "show_principal_quotas",
    "show_quotas",
]

_MOST_DIGITS: Final = 18


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise InvalidArgumentError(f"{text!r} is not a number; to remove a quota, use `quota unset NAME`")
    return int(text)


def _parse_calls(text: str) -> float:
    try:
        return float(text.removesuffix("/s"))
    except ValueError:
        raise InvalidArgumentError(
            f"{text!r} is not a rate of calls, such as 100; to remove it, use `quota unset NAME`"
        ) from None


_SIZE: Final = TOPIC_POLICIES["max_message_bytes"]
_BYTES_PER_S: Final = Kind(lambda text: _SIZE.parse(text.removesuffix("/s")), lambda value: f"{_SIZE.show(value)}/s")
QUOTAS: Final[Mapping[str, Kind]] = {
    "max_topics": Kind(_parse_count, str),
    "publish_rate": TOPIC_POLICIES["publish_rate"],
    "dispatch_rate": TOPIC_POLICIES["dispatch_rate"],
    "max_stored_bytes": _SIZE,
    "max_connections": Kind(_parse_count, str),
    "max_subjects": Kind(_parse_count, str),
}
"""Every field of :class:`danube.model.quotas.NamespaceQuota`."""
PRINCIPAL_QUOTAS: Final[Mapping[str, Kind]] = {
    "max_streams": Kind(_parse_count, str),
    "calls_per_s": Kind(_parse_calls, lambda value: f"{value:g}"),
    "publish_bytes_per_s": _BYTES_PER_S,
    "consume_bytes_per_s": _BYTES_PER_S,
}
"""Every field of :class:`danube.model.quotas.PrincipalQuota`."""
_USED: Final = {
    "max_topics": "topics",
    "max_stored_bytes": "stored_bytes",
    "max_connections": "connections",
    "max_subjects": "subjects",
}
"""For counts: the field of QuotaReport that tells what is used."""


def parse_quotas(texts: Sequence[str], kinds: Mapping[str, Kind] = QUOTAS) -> dict[str, Any]:
    """Parse ``name=value`` texts; return plain values by the API's names.

    Args:
        texts: as typed.
        kinds: the quotas there are.

    Raises:
        InvalidArgumentError: an unknown name (the message names the nearest), a repeated one, or an invalid value.
    """
    changes: dict[str, Any] = {}
    for text in texts:
        left, equals, right = text.partition("=")
        if not equals:
            raise InvalidArgumentError(f"{text!r} is not name=value, for example {next(iter(kinds))}=100")
        name, value = _find(left, kinds), right.strip()
        if name in changes:
            raise InvalidArgumentError(f"{name} is given twice; give it once")
        try:
            changes[name] = kinds[name].parse(value)
        except (InvalidArgumentError, ConfigurationError) as error:
            raise InvalidArgumentError(f"{name}: {error}") from error
    return changes


def parse_quota_names(texts: Iterable[str], kinds: Mapping[str, Kind] = QUOTAS) -> list[str]:
    """Return the API's names of quotas, of which there are these kinds.

    Raises:
        InvalidArgumentError: an unknown name; the message names the nearest.
    """
    return [_find(text, kinds) for text in texts]


def _find(text: str, kinds: Mapping[str, Kind]) -> str:
    wanted = text.strip().replace("-", "_").lower()
    if wanted in kinds:
        return wanted
    near = difflib.get_close_matches(wanted, kinds, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(kinds)}"
    raise InvalidArgumentError(f"there is no quota {text!r}; {hint}")


def show_principal_quotas(quota: PrincipalQuota) -> list[dict[str, str]]:
    """Return a row with name and value for each quota."""
    values = {name: getattr(quota, name) for name in PRINCIPAL_QUOTAS}
    return [
        {"quota": name, "value": "-" if value is None else PRINCIPAL_QUOTAS[name].show(value)}
        for name, value in values.items()
    ]


def show_quotas(report: QuotaReport) -> list[dict[str, str]]:
    """Return a row with name, value and use for each quota."""
    rows = []
    for name, kind in QUOTAS.items():
        value = getattr(report.quota, name)
        used = kind.show(getattr(report, _USED[name])) if name in _USED else "-"
        rows.append({"quota": name, "value": "-" if value is None else kind.show(value), "used": used})
    return rows
