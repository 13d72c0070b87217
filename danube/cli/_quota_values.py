"""Quotas of namespaces in the notation of the command line: ``max_topics=100``. A name may be written with dashes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from danube.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from danube.model.quotas import QuotaReport

__all__ = ["QUOTAS", "parse_quota_names", "parse_quotas", "show_quotas"]

QUOTAS: Final = {"max_topics": "topics"}
"""Every field of :class:`danube.model.quotas.NamespaceQuota`, with the field of QuotaReport that tells what is used."""

_MOST_DIGITS: Final = 18


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
        if not (value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS):
            raise InvalidArgumentError(
                f"{name}: {value!r} is not a number; to remove a quota, use `danube namespaces quota unset`"
            )
        changes[name] = int(value)
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
    for name, used in QUOTAS.items():
        value = getattr(report.quota, name)
        rows.append({"quota": name, "value": "-" if value is None else str(value), "used": str(getattr(report, used))})
    return rows
