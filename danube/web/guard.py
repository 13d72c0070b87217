"""What a browser may do on behalf of another page, for the console: headers of answers, and content types. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from danube.http import check_caller, host_name

__all__ = ["HEADERS", "check_caller", "host_name", "media_type"]

_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS: Final = (
    ("Content-Security-Policy", _CSP),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
"""Headers of each answer."""


def media_type(headers: Mapping[str, str]) -> str:
    """Return the type of the body, without parameters, in lower case; empty if there is none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()
