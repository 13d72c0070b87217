"""What can go wrong when bytes of others are decoded."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["UNDECODABLE"]

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be: the second for a text that is no UTF-8, the third for
arrays and maps that are nested too deeply, also where it only skips over them. Input is at fault for all three."""
