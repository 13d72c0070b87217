"""The text of a module, and the replacement of a piece of it."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from types import CodeType

__all__ = ["Mutant", "Source", "same_meaning"]


@dataclass(frozen=True)
class Mutant:
    """One mistake: the text between two positions of a module becomes another."""

    module: str
    """Dotted name."""
    function: str
    """Qualified name of the innermost function (or class) it is in; empty at the top of the module."""
    operator: str
    start: tuple[int, int]
    """Line from 1 on and byte in it, as in :mod:`ast`."""
    end: tuple[int, int]
    text: str
    lines: tuple[int, int]
    """The lines, both included, that a test must run to notice it; ``(0, 0)``: whatever runs anything of the module."""


class Source:
    """A module that can be mutated."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.text = path.read_text()
        self._lines = [line.encode() for line in self.text.splitlines(keepends=True)]

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def code(self) -> CodeType:
        return compile(self.text, str(self.path), "exec", dont_inherit=True)

    def segment(self, node: ast.stmt | ast.expr) -> str:
        """The text of a node."""
        return self._between((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)).decode()

    def _between(self, start: tuple[int, int], end: tuple[int, int]) -> bytes:
        (first, left), (last, right) = start, end
        if first == last:
            return self._lines[first - 1][left:right]
        return b"".join([self._lines[first - 1][left:], *self._lines[first : last - 1], self._lines[last - 1][:right]])

    def mutated(self, mutant: Mutant) -> str:
        """The text of the module with the mistake in it."""
        (first, left), (last, right) = mutant.start, mutant.end
        before = b"".join(self._lines[: first - 1]) + self._lines[first - 1][:left]
        after = self._lines[last - 1][right:] + b"".join(self._lines[last:])
        return (before + mutant.text.encode() + after).decode()

    def compiled(self, mutant: Mutant) -> CodeType:
        """The code of the module with the mistake in it; SyntaxError if it makes no sense."""
        return compile(self.mutated(mutant), str(self.path), "exec", dont_inherit=True)

    def changes(self, mutant: Mutant) -> bool:
        """Whether the mistake compiles, and to anything else than the module as it is."""
        try:
            return not same_meaning(self.compiled(mutant), self.code)
        except (SyntaxError, ValueError):
            return False

    def diff(self, mutant: Mutant) -> list[str]:
        """A unified diff, without its file names."""
        before, after = self.text.splitlines(), self.mutated(mutant).splitlines()
        return list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]

    def identity(self, mutant: Mutant) -> tuple[str, str, str, str]:
        """Module, function, the lines that went and the lines that came, each stripped: it outlives edits elsewhere."""
        diff = self.diff(mutant)
        gone = " ".join(line[1:].strip() for line in diff if line.startswith("-"))
        come = " ".join(line[1:].strip() for line in diff if line.startswith("+"))
        return mutant.module, mutant.function, gone, come


def same_meaning(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects do the same, wherever in a file they are."""
    return all(mine == theirs for mine, theirs in zip_longest(_meaning(one), _meaning(other)))


def _meaning(code: CodeType) -> Iterator[object]:
    """What a code object does, without where it is."""
    yield code.co_qualname
    yield code.co_code
    yield code.co_names
    yield code.co_varnames
    yield code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _meaning(constant)
        else:
            yield type(constant), repr(constant)
