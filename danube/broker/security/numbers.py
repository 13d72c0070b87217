"""The objects that requests name by numbers, for the table of rights: producers and consumers of faces, and stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

__all__ = ["NumberedObjects", "TopicsOfStages"]

TopicsOfStages = Callable[[str, Iterable[int], str], Iterable[str]]


class _Face(Protocol):
    def subscription_of_consumer(self, consumer_id: int, /) -> tuple[str, str] | None: ...


class NumberedObjects:
    """A :class:`danube.security.resources.Book`.

    Args:
        faces: whose producers and consumers have numbers.

    Attributes:
        stages: returns the topics of stages; set once they are loaded.
        schemas: returns the subjects that a number stands for; set once the registry is loaded.
    """

    def __init__(self, faces: Sequence[_Face]) -> None:
        self._faces = faces
        self.stages: TopicsOfStages = lambda _producer, _stage_ids, _write_id: ()
        self.schemas: Callable[[int], Sequence[str]] = lambda _number: ()

    def subscription_of_consumer(self, consumer_id: int) -> tuple[str, str] | None:
        """Return the topic and the subscription of a consumer."""
        return next(filter(None, (face.subscription_of_consumer(consumer_id) for face in self._faces)), None)

    def subjects_of_schema(self, number: int) -> Sequence[str]:
        """Return the subjects that have a schema, or the one with this number."""
        return self.schemas(number)

    def topics_of_stages(self, producer: str, stage_ids: Iterable[int], write_id: str) -> Iterable[str]:
        """Return the topics of some stages, of all others of their producer, and of its last commit."""
        return self.stages(producer, stage_ids, write_id)
