"""Who makes the call that the present task carries out, for requirements that only an operation can judge.

The gate judges a call before its operation runs (:mod:`danube.broker.security.gate`), except for requirements with a
condition: whether opening a producer creates the topic, say. The operation knows that, and asks here.

The caller is a context variable, so that operations need not pass it on. Tasks that a call starts inherit it: work of
the broker itself, such as copying dead letters, therefore never asks.

A call that another broker carries out, or a part of it, is judged by the broker that it was made at: the proof of the
caller does not travel. :func:`passed_on` sends the call with the rights that were judged already; where it needs
another one, the other broker refuses before it changes anything, and says which; that one is judged, and the call sent
again::

    caller's broker                 the other broker
       call, no rights      ──▶     needs PRODUCE on /hr/x for dead letters
       judges that          ◀──     refuses, asks for it
       call, that right     ──▶     carries it out

The other broker may know better: its copy of the records of access control may be newer than that of a broker which no
longer reaches the metadata. So a call says what its judge has seen, and is refused where a newer change is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from msgspec import UnsetType

from danube.model.errors import (
    CallRefusedError,
    FailedPreconditionError,
    InternalError,
    PermissionDeniedError,
)

if TYPE_CHECKING:
    from danube.security.roles import Principal

__all__ = [
    "Caller",
    "JudgedRight",
    "SentRights",
    "caller_name",
    "calling",
    "current_caller",
    "may_consume",
    "may_describe",
    "may_produce",
    "may_read_schema",
    "passed_on",
    "received",
    "require_creation",
    "require_dead_letters",
    "require_schema",
]

T = TypeVar("T")
JudgedRight = tuple[str, str]
"""What a call does, and the topic to which that applies; its caller may do that."""
SentRights: TypeAlias = "list[JudgedRight] | UnsetType | None"
"""What a call that another broker has sent says of its caller: what it may do; None: anything, because nothing was
judged; UNSET: nothing at all, as brokers of earlier versions do."""
_CREATION: Final = "creation"
_DEAD_LETTERS: Final = "dead_letters"


class Caller(Protocol):
    """The caller of one call that was allowed."""

    @property
    def principal(self) -> Principal:
        """Who calls."""
        ...

    @property
    def seen(self) -> int:
        """The revision of the metadata up to which the broker had seen all changes when it judged the call."""
        ...

    @property
    def proof(self) -> str:
        """Kind and id of its credential."""
        ...

    @property
    def proof_ends_s(self) -> float:
        """When its credential ends, by the wall clock; infinite: never."""
        ...

    def note_session(self, outcome: str, /) -> None:
        """Enter in the audit log that a session of a browser has begun or ended."""
        ...

    def require_creation(self, topic: str, /) -> None:
        """Raise PermissionDeniedError if the caller may not create a topic by this call."""
        ...

    def require_dead_letters(self, topic: str, /) -> None:
        """Raise PermissionDeniedError if the caller may not send dead letters to a topic by this call."""
        ...

    def require_schema(self, subject: str, /) -> None:
        """Raise PermissionDeniedError if the caller may not give a topic this subject by this call."""
        ...

    def may_describe(self, topic: str, /) -> bool:
        """Whether the caller may see the settings of a topic."""
        ...

    def may_produce(self, topic: str, /) -> bool:
        """Whether the caller may produce to a topic."""
        ...

    def may_consume(self, topic: str, subscription: str, /) -> bool:
        """Whether the caller may consume from a subscription."""
        ...

    def may_read_schema(self, subject: str, /) -> bool:
        """Whether the caller may read the schemas of a subject."""
        ...


_CALLER: Final[ContextVar[Caller | None]] = ContextVar("danube caller", default=None)


def current_caller() -> Caller | None:
    """Return the caller of the present task; None for work of the broker itself, and with security off."""
    return _CALLER.get()


def caller_name() -> str:
    """Return who makes the present call, as records note it; empty for the broker itself, and with security off."""
    caller = _CALLER.get()
    return "" if caller is None else str(caller.principal)


def require_creation(topic: str) -> None:
    """The present call creates a topic, or adds partitions to it.

    Raises:
        PermissionDeniedError: its caller may not do that.
    """
    caller = _CALLER.get()
    if caller is not None:
        caller.require_creation(topic)


def require_dead_letters(topic: str) -> None:
    """The present call decides that dead letters go to a topic.

    Raises:
        PermissionDeniedError: its caller may not produce there.
    """
    caller = _CALLER.get()
    if caller is not None:
        caller.require_dead_letters(topic)


def require_schema(subject: str) -> None:
    """The present call gives a topic a subject of the schema registry.

    Raises:
        PermissionDeniedError: its caller may not read that one.
    """
    caller = _CALLER.get()
    if caller is not None:
        caller.require_schema(subject)


def may_describe(topic: str) -> bool:
    """Whether the caller of the present task may see the settings of a topic; as :func:`may_produce`."""
    caller = _CALLER.get()
    return caller is None or caller.may_describe(topic)


def may_produce(topic: str) -> bool:
    """Whether the caller of the present task may produce to a topic; True for work of the broker itself."""
    caller = _CALLER.get()
    return caller is None or caller.may_produce(topic)


def may_consume(topic: str, subscription: str) -> bool:
    """Whether the caller of the present task may consume from a subscription; as :func:`may_produce`."""
    caller = _CALLER.get()
    return caller is None or caller.may_consume(topic, subscription)


def may_read_schema(subject: str) -> bool:
    """Whether the caller of the present task may read the schemas of a subject; as :func:`may_produce`."""
    caller = _CALLER.get()
    return caller is None or caller.may_read_schema(subject)


@contextmanager
def calling(caller: Caller | None) -> Iterator[None]:
    """Carry out a call for a caller within this; None: for the broker itself."""
    token = _CALLER.set(caller)
    try:
        yield
    finally:
        _CALLER.reset(token)


# --- Calls that another broker carries out


class _Distant:
    """The caller of a call that another broker has sent, which judges it."""

    def __init__(self, rights: Iterable[JudgedRight], seen: int) -> None:
        self._rights = frozenset(rights)
        self.seen = seen

    @property
    def principal(self) -> Principal:
        raise InternalError("a call that another broker has sent does not tell who made it")

    @property
    def proof(self) -> str:
        raise InternalError("a call that another broker has sent does not tell how its caller was proven")

    @property
    def proof_ends_s(self) -> float:
        raise InternalError("a call that another broker has sent does not tell how its caller was proven")

    def note_session(self, outcome: str) -> None:
        raise InternalError(f"a session cannot have {outcome} at another broker")

    def require_creation(self, topic: str) -> None:
        self._require(_CREATION, topic)

    def require_dead_letters(self, topic: str) -> None:
        self._require(_DEAD_LETTERS, topic)

    def require_schema(self, subject: str) -> None:
        raise InternalError(f"a call that another broker has sent does not tell who may use subject {subject}")

    def may_describe(self, topic: str) -> bool:
        raise InternalError(f"a call that another broker has sent does not tell who may describe {topic}")

    def may_produce(self, topic: str) -> bool:
        raise InternalError(f"a call that another broker has sent does not tell who may produce to {topic}")

    def may_consume(self, topic: str, subscription: str) -> bool:
        raise InternalError(f"a call that another broker has sent does not tell who may consume {topic}#{subscription}")

    def may_read_schema(self, subject: str) -> bool:
        raise InternalError(f"a call that another broker has sent does not tell who may read the schemas of {subject}")

    def _require(self, what: str, topic: str) -> None:
        if (what, topic) not in self._rights:
            raise PermissionDeniedError(
                f"the broker that the call was made at has not judged {what} for topic {topic}",
                {"judge": what, "topic": topic},
            )


async def passed_on(send: Callable[[Sequence[JudgedRight] | None, int], Awaitable[T]]) -> T:
    """Have another broker carry out the present call, and return its answer.

    Args:
        send: sends the call with these rights, for :func:`received`, None: nothing is judged; and with what its judge
            has seen (:attr:`Caller.seen`). It is repeated once for each right that the other broker asks for, before
            that one has changed anything for it.

    Raises:
        PermissionDeniedError: the caller lacks a right that the call needs.
        DanubeError: what ``send`` raised.
    """
    caller = _CALLER.get()
    if caller is None:
        return await send(None, 0)
    judged: list[JudgedRight] = []
    while True:
        try:
            return await send(judged, caller.seen)
        except PermissionDeniedError as error:
            right = error.details.get("judge", ""), error.details.get("topic", "")
            if right in judged:
                raise
            match right[0]:
                case "creation":
                    caller.require_creation(right[1])
                case "dead_letters":
                    caller.require_dead_letters(right[1])
                case _:
                    raise
            judged.append(right)


@contextmanager
def received(rights: SentRights, seen: int, known: int) -> Iterator[None]:
    """Carry out a call of another broker within this, with the rights that it was sent with.

    Args:
        rights: these.
        seen: the revision of the metadata up to which the broker that has judged it had seen all changes.
        known: the revision of the latest change of access control that this broker knows to exist; 0: none.

    Raises:
        FailedPreconditionError: it does not say what its caller may do.
        CallRefusedError: it was judged by what counts no longer.
    """
    if isinstance(rights, UnsetType):
        raise FailedPreconditionError(
            "the call was passed on by a broker of an earlier version, which does not say what its caller may do; call"
            " the owner of the topic itself, or install the same version of Danube on all brokers"
        )
    if rights is not None and seen < known:
        raise CallRefusedError(
            "the broker that the call was made at has not heard of the latest change of access control, perhaps because"
            " it does not reach the metadata; try again, or call the owner of the topic itself"
        )
    with calling(None if rights is None else _Distant(rights, seen)):
        yield
