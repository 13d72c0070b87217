"""Functions that are loaded already get the code of a mutated module.

Importing a broker and its tests takes seconds, and a mistake is one function: the functions that live, wherever they
were imported to or whatever decorates them, get another code object. Numbers that are taken when a module is loaded
(defaults of parameters, constants) are taken from a second, mutated copy of the module.
"""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .sources import Mutant, Source, same_meaning

__all__ = ["Loaded", "NotPlanted"]


class NotPlanted(Exception):  # noqa: N818
    """This mistake cannot be made in modules that are loaded."""


class Loaded:
    """The functions of modules that are loaded, by where their code is from. Made once, before workers are forked."""

    def __init__(self) -> None:
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        for some in gc.get_objects():
            if type(some) is FunctionType:
                self._functions[_key(some.__code__)].append(some)

    def plant(self, source: Source, mutant: Mutant) -> None:
        """Make the mistake, in this process, for good."""
        code = source.compiled(mutant)
        planted = 0
        for old, new in _differing(source.code, code):
            for function in self._functions.get(_key(old), ()):
                if len(function.__code__.co_freevars) != len(new.co_freevars):
                    raise NotPlanted(f"{old.co_qualname} closes over other names")
                function.__code__ = new
                planted += 1
        if mutant.lines == (0, 0):
            planted += _plant_values(sys.modules[source.name], code)
        if not planted:
            raise NotPlanted("no function that lives has this code")


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _differing(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Code objects of functions that differ, each with its successor."""
    for mine, other in _pairs(old, new):
        if not same_meaning(mine, other):
            yield mine, other
        yield from _differing(mine, other)


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    successors: dict[str, list[CodeType]] = defaultdict(list)
    for constant in new.co_consts:
        if isinstance(constant, CodeType):
            successors[constant.co_qualname].append(constant)
    originals: dict[str, list[CodeType]] = defaultdict(list)
    for constant in old.co_consts:
        if isinstance(constant, CodeType):
            originals[constant.co_qualname].append(constant)
    for name, codes in originals.items():
        if len(codes) == len(successors[name]):
            yield from zip(codes, successors[name], strict=True)


def _plant_values(module: ModuleType, code: CodeType) -> int:
    """Take constants and defaults from a copy of a module; say how many differ."""
    copy = ModuleType(module.__name__)
    copy.__dict__.update({"__file__": module.__file__, "__package__": module.__package__, "__spec__": module.__spec__})
    exec(code, copy.__dict__)
    planted = 0
    for name, value in list(vars(module).items()):
        other = vars(copy).get(name)
        if type(value) in (int, float) and other != value:
            for place in list(sys.modules.values()):
                if vars(place).get(name) is value:
                    setattr(place, name, other)
            planted += 1
        elif isinstance(value, FunctionType) and isinstance(other, FunctionType):
            planted += _plant_defaults(value, other)
        elif isinstance(value, type) and isinstance(other, type) and value.__module__ == module.__name__:
            for key, mine in list(vars(value).items()):
                theirs = vars(other).get(key)
                mine, theirs = _function(mine), _function(theirs)
                if mine is not None and theirs is not None:
                    planted += _plant_defaults(mine, theirs)
    return planted


def _function(member: Any) -> FunctionType | None:
    member = getattr(member, "__func__", member)
    return member if isinstance(member, FunctionType) else None


def _plant_defaults(function: FunctionType, other: FunctionType) -> int:
    planted = 0
    if function.__defaults__ and _simple(function.__defaults__) != _simple(other.__defaults__ or ()):
        function.__defaults__ = other.__defaults__
        planted = 1
    mine, theirs = function.__kwdefaults__ or {}, other.__kwdefaults__ or {}
    if _simple(tuple(mine.values())) != _simple(tuple(theirs.values())):
        function.__kwdefaults__ = theirs
        planted = 1
    return planted


def _simple(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value if isinstance(value, int | float) else None for value in values)
