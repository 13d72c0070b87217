"""Finds and loads what installed packages register: importlib.metadata is imported only to look for it.

It takes longer than all plugins of the broker itself, and a broker with built-in plugins alone needs none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["built_in_points", "entry_points", "load_target"]


def entry_points(group: str, name: str | None = None) -> Iterable[EntryPoint]:
    """Return the entry points of a group in all installed packages, or those of one name."""
    from importlib import metadata

    return metadata.entry_points(group=group) if name is None else metadata.entry_points(group=group, name=name)


def built_in_points(group: str, targets: Mapping[str, str]) -> dict[str, EntryPoint]:
    """Return the built-in targets of a group as entry points, by name."""
    from importlib.metadata import EntryPoint

    return {name: EntryPoint(name, target, group) for name, target in targets.items()}


def load_target(target: str) -> Any:
    """Return the object at ``module:name``.

    Raises:
        ImportError, AttributeError: it cannot be imported, or the module has no such name.
    """
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
