"""The result of a diagnostic check, of a machine, a broker or a cluster."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Check"]


class Check(NamedTuple):
    """The result of one check."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    """What to do if it is not ok."""
