"""Key filters: patterns in which ``*`` stands for any run of characters, also none, and ``?`` for exactly one.

There is no escape and there are no character classes; matching is case-sensitive and by code point. The time that a
match takes grows with the length of the key and never with its square, whatever the pattern: both come from strangers,
and neither a regular expression nor a matcher that backtracks gives that.

A pattern without ``?`` is cut at its stars: the first piece must open the key, the last one must close it, and each of
the others is looked for behind the one before it, at the first place where it is found. With ``?`` all ways through
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
        """For each character the states that it leads on from, besides those of ``?``."""
        self._any = 0
        """States that every character leads on from."""
        self._loops = 0
        """States that every character leads back to."""
        self._matched = 1
        """The last state."""
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
        """Tell whether the whole of ``text`` fits the pattern."""
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
    """Tell whether one of the patterns fits; no patterns at all fit everything."""
    return not globs or any(glob.matches(text) for glob in globs)
