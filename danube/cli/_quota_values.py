"""Quotas of namespaces in the notation of the command line, such as ``max_topics=100 publish_rate=10MiB/s``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from danube.cli._policy_values import TOPIC_POLICIES, Kind
from danube.model.errors import ConfigurationError, InvalidArgumentError

if TYPE_CHECKING:
    from danube.model.quotas import QuotaReport

__all__ = ["QUOTAS", "parse_quota_names", "parse_quotas", "show_quotas"]

_MOST_DIGITS: Final = 18


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise InvalidArgumentError(f"{text!r} is not a number; to remove a quota, use `danube namespaces quota unset`")
    return int(text)


QUOTAS: Final[Mapping[str, Kind]] = {
    "max_topics": Kind(_parse_count, str),
    "publish_rate": TOPIC_POLICIES["publish_rate"],
}
"""Every field of :class:`danube.model.quotas.NamespaceQuota`."""
_USED: Final = {"max_topics": "topics"}
"""For counts: the field of QuotaReport that tells what is used."""


def parse_quotas(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``name=value`` texts; return plain values by the API's names.

    Raises:
        InvalidArgumentError: an unknown name (the message names the nearest), a repeated one, or an invalid value.
    """
    changes: dict[str, Any] = {}
    for text in texts:
        left, equals, right = text.partition("=")
        if not equals:
            raise InvalidArgumentError(f"{text!r} is not name=value, for example max_topics=100")
        name, value = _find(left), right.strip()
        if name in changes:
            raise InvalidArgumentError(f"{name} is given twice; give it once")
        try:
            changes[name] = QUOTAS[name].parse(value)
        except (InvalidArgumentError, ConfigurationError) as error:
            raise InvalidArgumentError(f"{name}: {error}") from error
    return changes


def parse_quota_names(texts: Iterable[str]) -> list[str]:
    """Return the API's names of quotas.

    Raises:
        InvalidArgumentError: an unknown name; the message names the nearest.
    """
    return [_find(text) for text in texts]


def _find(text: str) -> str:
    wanted = text.strip().replace("-", "_").lower()
    if wanted in QUOTAS:
        return wanted
    near = difflib.get_close_matches(wanted, QUOTAS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(QUOTAS)}"
    raise InvalidArgumentError(f"there is no quota {text!r}; {hint}")


def show_quotas(report: QuotaReport) -> list[dict[str, str]]:
    """Return a row with name, value and use for each quota."""
    rows = []
    for name, kind in QUOTAS.items():
        value = getattr(report.quota, name)
        used = str(getattr(report, _USED[name])) if name in _USED else "-"
        rows.append({"quota": name, "value": "-" if value is None else kind.show(value), "used": used})
    return rows
