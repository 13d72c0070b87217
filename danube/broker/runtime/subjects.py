"""The schemas of the subjects that topics of this broker have, for the check of each batch. Pure.

A topic holds the :class:`SubjectSchemas` of its subject; it is replaced inside by the registry whenever the subject
changes, so that a check is one look into a set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from danube.model.batch import BatchHeader

__all__ = ["Frames", "LooksInside", "SubjectSchemas", "Subjects"]


class Frames(NamedTuple):
    """What the frames of a batch's payloads name."""

    numbers: frozenset[int]
    """Of schemas."""
    framed: int
    """How many payloads have a frame, up to the first one that has none."""


class LooksInside(Protocol):
    """Opens batches; :class:`danube.broker.schemas.payloads.Payloads`."""

    def frames(self, part: bytes, header: BatchHeader) -> Awaitable[Frames]:
        """Return what the frames of a batch's payloads name."""
        ...

    def misfit(self, part: bytes, numbers: Collection[int], *, is_framed: bool) -> Awaitable[str]:
        """Return why a batch has a payload that does not fit its schema; empty: all fit."""
        ...


class SubjectSchemas:
    """The numbers of the schemas of one subject.

    Attributes:
        subject: its name.
        numbers: of the schemas, those of deleted versions included.
    """

    __slots__ = ("__weakref__", "_learn", "_payloads", "numbers", "subject")

    def __init__(
        self,
        subject: str,
        numbers: frozenset[int],
        learn: Callable[[str, int], Awaitable[None]],
        payloads: Callable[[], LooksInside],
    ) -> None:
        self.subject = subject
        self.numbers = numbers
        self._learn = learn
        self._payloads = payloads

    async def learn(self, number: int) -> None:
        """Ask the metadata whether the subject has a schema that is not among its numbers; then it is after that.

        Raises:
            DanubeError: the metadata do not answer.
        """
        await self._learn(self.subject, number)

    async def frames(self, part: bytes, header: BatchHeader) -> Frames:
        """Return what the frames of a batch's payloads name.

        Raises:
            CorruptBatchError, MessageTooLargeError: it cannot be opened.
        """
        return await self._payloads().frames(part, header)

    async def misfit(self, part: bytes, numbers: Collection[int], *, is_framed: bool) -> str:
        """Return why a batch has a payload that does not fit its schema, one of these numbers; empty: all fit.

        Raises:
            DanubeError: they cannot be checked now, or the batch cannot be opened.
        """
        return await self._payloads().misfit(part, numbers, is_framed=is_framed)


async def _knows_all(_subject: str, _number: int) -> None:
    """Without a registry there is nothing to learn."""


class Subjects:
    """The subjects that are in use.

    Attributes:
        read: returns the numbers of the schemas of a subject.
        learn: asks the metadata for a schema of a subject that is not known.
        used: returns how many subjects the quota of a namespace counts, as far as this broker knows.
        payloads: returns what opens batches; called with the first batch that is to be opened.
    """

    def __init__(self) -> None:
        self._known: WeakValueDictionary[str, SubjectSchemas] = WeakValueDictionary()
        self.read: Callable[[str], frozenset[int]] = lambda _subject: frozenset()
        self.learn: Callable[[str, int], Awaitable[None]] = _knows_all
        self.used: Callable[[str], int] = lambda _namespace: 0
        self.payloads: Callable[[], LooksInside]

    def of(self, subject: str) -> SubjectSchemas:
        """Return the schemas of a subject, which need not exist; they are current as long as they are held."""
        found = self._known.get(subject)
        if found is None:
            found = self._known[subject] = SubjectSchemas(
                subject, self.read(subject), self._learn, lambda: self.payloads()
            )
        return found

    def changed(self, subject: str) -> None:
        """Read the numbers of a subject again, if a topic has it."""
        found = self._known.get(subject)
        if found is not None:
            found.numbers = self.read(subject)

    async def _learn(self, subject: str, number: int) -> None:
        await self.learn(subject, number)
