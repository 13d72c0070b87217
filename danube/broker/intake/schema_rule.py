"""The check of batches against the subject of their topic: whether they name one of its schemas. Pure."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, Protocol

from danube.model.batch import schema_id_of
from danube.model.errors import DanubeError, SchemaMismatchError
from danube.model.log_events import log_event
from danube.model.policies import SchemaValidation

if TYPE_CHECKING:
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


class SchemaRule:
    """The rule of one topic; there is none while nothing is to be checked.

    Args:
        topic: its name.
        schemas: of its subject.
        validation: WARN counts batches without a schema of the subject, ENFORCE refuses them.

    Attributes:
        schemas: of the subject.
    """

    __slots__ = ("_enforces", "_topic", "schemas")

    def __init__(self, topic: str, schemas: KnownSchemas, validation: SchemaValidation) -> None:
        self._topic = topic
        self._enforces = validation is SchemaValidation.ENFORCE
        self.schemas = schemas

    def asks(self, number: int) -> bool:
        """Whether the metadata are to be asked for a schema before a batch with it is checked."""
        return bool(number) and number not in self.schemas.numbers

    def asks_for(self, part: bytes) -> int:
        """Return the number in a batch for which the metadata are to be asked; 0: they are not.

        Args:
            part: the batch, whose checksum need not be right.
        """
        number = schema_id_of(part)
        return number if number and number not in self.schemas.numbers else 0

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
        if number in schemas.numbers:
            return True
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
