"""Key filters: glob patterns in which ``*`` stands for any run of characters, even none, and ``?`` for exactly one.

There is no escape and there are no character classes; matching is case-sensitive and by code point; a byte of a key
that is not UTF-8 counts as one character. The time of a
match is linear in the length of the key and never quadratic, whatever the pattern: both are untrusted input,
and neither a regular expression nor a matcher that backtracks guarantees that.

A pattern without ``?`` is split at its stars: the first piece must start the key, the last one must end it, and each
other piece is searched behind the previous one and matched at its first occurrence. With ``?`` all paths through
the pattern are followed at the same time, one bit each::

    pattern  a*b?     state 0 -a-> state 1 -b-> state 2 -any-> state 3 = matched
                                   | loops on any character (the star)
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Glob", "matches_any"]


class Glob:
    """One compiled pattern."""

    __slots__ = ("_any", "_loops", "_masks", "_matched", "_pieces", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._pieces = pattern.split("*") if "?" not in pattern else None
        self._masks: dict[str, int] = {}
        """Character to the states that it advances, besides those of ``?``."""
        self._any = 0
        """States that every character advances."""
        self._loops = 0
        """States that every character keeps."""
        self._matched = 1
        """The final state."""
        if self._pieces is None:
            for char in pattern:
                state = self._matched
                if char == "*":
                    self._loops |= state
                    continue
                if char == "?":
                    self._any |= state
                else:
                    self._masks[char] = self._masks.get(char, 0) | state
                self._matched = state << 1

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches the whole of ``text``."""
        if self._pieces is not None:
            return _fits(self._pieces, text)
        masks, any_char, loops = self._masks, self._any, self._loops
        states = 1
        for char in text:
            states = ((states & (masks.get(char, 0) | any_char)) << 1) | (states & loops)
            if not states:
                return False
        return bool(states & self._matched)


def _fits(pieces: list[str], text: str) -> bool:
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return text == first
    start, end = len(first), len(text) - len(last)
    if start > end or not text.startswith(first) or not text.endswith(last):
        return False
    for piece in pieces[1:-1]:
        found = text.find(piece, start, end)
        if found < 0:
            return False
        start = found + len(piece)
    return True


def matches_any(globs: Sequence[Glob], text: str) -> bool:
    """Return whether one of the patterns matches; no patterns match everything."""
    return not globs or any(glob.matches(text) for glob in globs)
