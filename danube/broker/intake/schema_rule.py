"""The check of batches against the subject of their topic: whether they name one of its schemas. Pure.

With the policies ``schema_payloads`` and ``schema_framing`` batches are opened as well, before they are taken
(:meth:`SchemaRule.examine`), where that can wait; else a check is one look into a set.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Collection
from typing import TYPE_CHECKING, Final, Protocol

from danube.model.batch import schema_id_of
from danube.model.errors import DanubeError, SchemaMismatchError
from danube.model.log_events import log_event
from danube.model.policies import SchemaFraming, SchemaPayloads, SchemaValidation

if TYPE_CHECKING:
    from danube.broker.runtime.subjects import Frames
    from danube.model.batch import BatchHeader

__all__ = ["KnownSchemas", "SchemaRule"]

_log = logging.getLogger("danube.broker")
_LISTED: Final = 5


class KnownSchemas(Protocol):
    """The schemas of a subject; :class:`danube.broker.runtime.subjects.SubjectSchemas`."""

    @property
    def subject(self) -> str:
        """Its name."""
        ...

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of its schemas."""
        ...

    def learn(self, number: int) -> Awaitable[None]:
        """Ask the metadata for a schema that is not known."""
        ...

    def frames(self, part: bytes, header: BatchHeader) -> Awaitable[Frames]:
        """Return what the frames of a batch's payloads name; its checksum and sizes are right."""
        ...

    def misfit(self, part: bytes, numbers: Collection[int], *, is_framed: bool) -> Awaitable[str]:
        """Return why a batch has a payload that does not fit its schema, one of these numbers; empty: all fit."""
        ...


class SchemaRule:
    """The rule of one topic; there is none while nothing is to be checked.

    Args:
        topic: its name.
        schemas: of its subject.
        validation: WARN counts batches without a schema of the subject, ENFORCE refuses them.
        payloads: BROKER: payloads must fit their schema, too.
        framing: CONFLUENT: if the header of a batch names no schema, each payload does.

    Attributes:
        schemas: of the subject.
    """

    __slots__ = ("_checks_payloads", "_enforces", "_is_framed", "_topic", "schemas")

    def __init__(
        self,
        topic: str,
        schemas: KnownSchemas,
        validation: SchemaValidation,
        payloads: SchemaPayloads = SchemaPayloads.CLIENT,
        framing: SchemaFraming = SchemaFraming.NONE,
    ) -> None:
        self._topic = topic
        self._enforces = validation is SchemaValidation.ENFORCE
        self._checks_payloads = payloads is SchemaPayloads.BROKER
        self._is_framed = framing is SchemaFraming.CONFLUENT
        self.schemas = schemas

    def waits_for(self, part: bytes) -> bool:
        """Whether a batch must be examined before it is checked, because that may have to wait.

        Args:
            part: the batch, whose checksum need not be right.
        """
        number = schema_id_of(part)
        if number:
            return self._checks_payloads or number not in self.schemas.numbers
        return self._is_framed

    async def examine(self, part: bytes, header: BatchHeader) -> bool:
        """Do what must be done before :meth:`check`: learn schemas, and look at payloads if the policies say so.

        Args:
            part, header: the batch; its checksum and sizes are right.

        Returns:
            False: something is wrong that :meth:`check` does not see; it was logged, and is to be counted.

        Raises:
            SchemaMismatchError: ENFORCE, and something is wrong with a payload; the message has the first one's index.
            DanubeError: ENFORCE, and the metadata, or the check of payloads, are unavailable; or the batch is damaged.
        """
        number = header.schema_id
        if number:
            if self.asks(number):
                await self.learn(number)
            if not self._checks_payloads or number not in self.schemas.numbers:
                return True
            return await self._fits(part, (number,), is_framed=False)
        if not self._is_framed:
            return True
        numbers, framed = await self.schemas.frames(part, header)
        if framed < header.record_count:
            return self._judged(
                f"message {framed} of the batch has no Confluent frame, and its header names no schema; a frame is a"
                " zero byte and the four bytes of the schema's number"
            )
        for each in sorted(numbers - self.schemas.numbers):
            await self.learn(each)
            if each not in self.schemas.numbers:
                return self._judged(f"a message of the batch has schema {each} in its frame{self._taken()}")
        return not self._checks_payloads or await self._fits(part, numbers, is_framed=True)

    async def _fits(self, part: bytes, numbers: Collection[int], *, is_framed: bool) -> bool:
        try:
            why = await self.schemas.misfit(part, numbers, is_framed=is_framed)
        except DanubeError as error:
            if self._enforces:
                raise
            why = f"the payloads could not be checked: {error.message}"
        return not why or self._judged(why)

    def _judged(self, why: str) -> bool:
        if self._enforces:
            raise SchemaMismatchError(f"topic {self._topic!r}: {why}")
        _log.warning(
            "topic %r: %s", self._topic, why, extra=log_event("schemas.mismatch", topic=self._topic, repeating=True)
        )
        return False

    def _taken(self) -> str:
        listed = ", ".join(map(str, sorted(self.schemas.numbers)[-_LISTED:])) or "none yet"
        return f", and the topic takes only schemas of subject {self.schemas.subject!r}: {listed}"

    def asks(self, number: int) -> bool:
        """Whether the metadata are to be asked for a schema before a batch with it is checked."""
        return bool(number) and number not in self.schemas.numbers

    async def learn(self, number: int) -> None:
        """Ask the metadata for a schema. When they do not answer, WARN goes on without.

        Raises:
            DanubeError: ENFORCE, and the metadata do not answer: the batch can be sent again.
        """
        try:
            await self.schemas.learn(number)
        except DanubeError:
            if self._enforces:
                raise

    def check(self, header: BatchHeader) -> bool:
        """Return whether a batch names a schema of the subject.

        Raises:
            SchemaMismatchError: ENFORCE, and it does not.
        """
        number = header.schema_id
        schemas = self.schemas
        if number in schemas.numbers or (self._is_framed and not number):
            return True  # frames were examined before
        names = f"schema {number}" if number else "no schema"
        if self._enforces:
            listed = ", ".join(map(str, sorted(schemas.numbers)[-_LISTED:])) or "none yet"
            raise SchemaMismatchError(
                f"the batch names {names}, and topic {self._topic!r} takes only schemas of subject"
                f" {schemas.subject!r}: {listed}; register the schema there, or change the policy schema_validation"
            )
        _log.warning(
            "topic %r: a batch names %s, which subject %r does not have",
            self._topic,
            names,
            schemas.subject,
            extra=log_event("schemas.mismatch", topic=self._topic, repeating=True),
        )
        return False
