"""Removes secrets from configurations and logs, before they leave the machine. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["HIDDEN", "without_secrets", "without_secrets_in_text"]

HIDDEN: Final = "***"

_SECRET_NAME: Final = re.compile(
    r"secret|passw|token|credential|api_?key|access_?key|account_?key|private|signature|\bsas\b|(^|_)(key|pwd|auth)$",
    re.IGNORECASE,
)
_URL_USER: Final = re.compile(r"(?<=://)[^/\s@\"']+@")
_URL_VALUE: Final = re.compile(
    r"([?&;][^=&\s]*(?:secret|passw|token|credential|key|sig|auth)[^=&\s]*=)[^&\s\"']+", re.IGNORECASE
)
_PATTERNS: Final = (
    (_URL_USER, f"{HIDDEN}@"),
    (_URL_VALUE, rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]+"), rf"\1 {HIDDEN}"),
    (re.compile(r"\bdnb_\w+"), f"dnb_{HIDDEN}"),
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]+\.[\w-]*"), HIDDEN),
    (
        re.compile(r"(?i)([\w-]*(?:secret|passw(?:or)?d|token|credential|api[_-]?key|access[_-]?key)[\w-]*[\"']?\s*[=:]\s*)"
                   r"(\"[^\"]*\"|'[^']*'|[^\s,;}\])]+)"),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
)  # fmt: skip

_SUSPICIOUS: Final = (
    *("secret", "passw", "token", "credential", "key", "sig", "auth"),
    *("bearer", "basic", "://", "dnb_", "eyj", "-----begin "),
)
"""Of which every pattern needs one."""


def without_secrets(value: Any, name: str = "") -> Any:
    """Return settings without what is, or may be, a secret: by the name of the setting, or by its form.

    Args:
        value: tables, lists, texts and numbers.
        name: of the setting; empty for the whole.
    """
    if isinstance(value, dict):
        return {key: without_secrets(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(inner, name) for inner in value]
    if value not in ("", None) and not isinstance(value, bool | int | float) and _SECRET_NAME.search(name):
        return HIDDEN
    return without_secrets_in_text(value) if isinstance(value, str) else value


def without_secrets_in_text(text: str) -> str:
    """Return a text, such as a log, without what has the form of a secret."""
    lower = text.lower()
    if not any(word in lower for word in _SUSPICIOUS):
        return text  # most texts: the patterns take much longer
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
