"""Exceptions that decoding untrusted bytes can raise."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["UNDECODABLE"]

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of msgspec for invalid input. The second is raised for text that is not UTF-8, the third for arrays and
maps nested too deeply, even in skipped parts."""
