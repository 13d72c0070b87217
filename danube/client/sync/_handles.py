"""The base of the blocking classes, each of which wraps an asynchronous object and its event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from danube.client.sync._loop import Loop

__all__ = ["Handle", "opened"]

T = TypeVar("T")
H = TypeVar("H", bound="Handle[Any]")


class Handle(Generic[T]):
    """A blocking form of an object of the asynchronous client."""

    def __init__(self, inner: T, loop: Loop) -> None:
        self._inner = inner
        self._loop = loop

    def _leave(self) -> None:
        """Pass collected data to the loop; called before the block of this object is left."""


@contextmanager
def opened(loop: Loop, block: AbstractAsyncContextManager[T], kind: Callable[[T, Loop], H]) -> Iterator[H]:
    """Run an asynchronous ``with`` block, and yield the blocking form of the opened object."""
    with loop.enter(block) as inner:
        handle = kind(inner, loop)
        try:
            yield handle
        finally:
            if not loop.over:
                handle._leave()
