"""A text that must not be shown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

__all__ = ["Secret", "revealed"]

_SHOWN = "***"


class Secret(str):
    """A secret text: logs, errors and ``repr`` show ``***``; :meth:`reveal` returns it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{_SHOWN}'"

    def __str__(self) -> str:
        return _SHOWN

    def __format__(self, spec: str) -> str:
        return format(_SHOWN, spec)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")

    def reveal(self) -> str:
        """Return the text as it is."""
        return str.__str__(self)


def revealed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with secrets as plain texts, for the plugin that needs them."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in options.items()}
