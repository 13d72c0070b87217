"""Calls that each broker of a cluster answers for itself, and whose answers are put together.

The broker that a client calls asks the others over the links between brokers. It has judged the call, and filters what
its caller may see: the others answer for all of it. A broker that does not answer is named; it is no error.

A question is a msgpack array ``[path, request]``; the answer is that of the call.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import trio

from danube.cluster.records import broker_name
from danube.model.decoding import UNDECODABLE
from danube.model.errors import CallRefusedError, DanubeError, InvalidArgumentError, NotFoundError
from danube.model.ids import BrokerId

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.operations.across import Calls
    from danube.peers import Peer, Peers

__all__ = ["CHANNEL", "Everywhere"]

_log = logging.getLogger("danube.broker")

CHANNEL: Final = "everywhere"
"""The channel of these calls between brokers."""
ANSWER_S: Final = 2.0
"""How long another broker may take to answer."""

T = TypeVar("T")


class _Question(msgspec.Struct, array_like=True):
    path: str
    request: bytes


_encode = msgspec.msgpack.encode
_QUESTION: Final = msgspec.msgpack.Decoder(_Question)


class Everywhere:
    """See the module.

    Args:
        directory: of the topics.
        prepare: makes the operations that answer other brokers, which :meth:`add` themselves; called with the first
            question of one, because most brokers are never asked.

    Attributes:
        calls: the links to the other brokers; None: there are none.
        is_serving: returns whether this broker answers others: not while it starts, and not once it drains.
    """

    def __init__(self, directory: Directory, prepare: Callable[[], object]) -> None:
        self._directory = directory
        self._prepare = prepare
        self.calls: Calls | None = None
        self.is_serving: Callable[[], bool] = lambda: True
        self._operations: dict[str, tuple[Callable[[Any], Awaitable[Any]], type]] = {}

    def begin(self, peers: Peers, is_serving: Callable[[], bool]) -> None:
        """Reach other brokers from now on, and answer them while this one serves."""
        self.calls, self.is_serving = peers, is_serving
        peers.on_call(CHANNEL, self.answer)

    def add(self, path: str, operation: Callable[[Any], Awaitable[Any]], request_type: type) -> None:
        """Answer a call for this broker alone by an operation."""
        self._operations[path] = operation, request_type

    async def answer(self, _peer: Peer, payload: bytes) -> bytes:
        """Answer the question of another broker, of :data:`CHANNEL`.

        Raises:
            CallRefusedError: this broker starts or ends.
            InvalidArgumentError: this version does not know it.
        """
        if not self.is_serving():
            raise CallRefusedError(f"broker {self._directory.broker} is starting or shutting down; try again")
        try:
            question = _QUESTION.decode(payload)
            self._prepare()
            known = self._operations.get(question.path)
            if known is None:
                raise InvalidArgumentError(
                    f"this version of Danube does not carry out {question.path} for other brokers"
                )
            operation, request_type = known
            request: Any = msgspec.msgpack.decode(question.request, type=request_type)
        except UNDECODABLE as error:
            raise InvalidArgumentError(f"a call of another broker does not decode: {error}") from error
        return _encode(await operation(request))

    async def ask_all(self, path: str, request: Any, answer_type: type[T]) -> tuple[list[T], list[str]]:
        """Return the answers of all live brokers, and the names of those that do not answer."""
        me = self._directory.membership.me
        answers: dict[BrokerId, T] = {me: await self.ask(me, path, request, answer_type)}
        silent: list[BrokerId] = []

        async def ask(broker: BrokerId) -> None:
            try:
                answers[broker] = await self.ask(broker, path, request, answer_type)
            except DanubeError as error:
                _log.info("broker b%d does not answer %s: %s", broker, path, error)
                silent.append(broker)

        async with trio.open_nursery() as nursery:
            for broker, _ in self._directory.membership.owners.addresses():
                if broker != me:
                    nursery.start_soon(ask, broker)
        return [answers[broker] for broker in sorted(answers)], [broker_name(each) for each in sorted(silent)]

    async def ask(self, broker: BrokerId, path: str, request: Any, answer_type: type[T]) -> T:
        """Return the answer of one broker, which may be this one.

        Raises:
            NotFoundError: it does not run.
            DanubeError: it does not answer, or what its operation raised.
        """
        if broker == self._directory.membership.me:
            operation, _ = self._operations[path]
            mine: T = await operation(request)
            return mine
        address = dict(self._directory.membership.owners.addresses()).get(broker)
        if address is None or self.calls is None:
            raise NotFoundError(f"broker b{broker} does not run; `danube cluster status` shows those that do")
        payload = await self.calls.call(address, CHANNEL, _encode(_Question(path, _encode(request))), ANSWER_S)
        try:
            return msgspec.msgpack.decode(payload, type=answer_type)
        except UNDECODABLE as error:
            raise InvalidArgumentError(f"broker b{broker} gives an answer that does not decode: {error}") from error
