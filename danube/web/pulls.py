"""Consumers by HTTP: a pull receives messages, and later calls settle them.

Between two calls a *session* keeps the consumer connected: without it the broker would deliver its messages to others
at once. There is one for each caller, topic and subscription. It ends when it was not used for longer than the ack
timeout of the subscription (at least ``http_pull_idle_s``); what it has not settled is then delivered again.

An ``ack_id`` names a delivery within its session: who has not pulled a message cannot settle it.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from danube.http import single_error
from danube.model.errors import DanubeError, InvalidArgumentError, LimitExceededError, UnavailableError
from danube.web.administration import Handler
from danube.web.bodies import AckIds, Extension, Pull, PulledMessages, Refusal, Settled
from danube.web.caller import ApiCall
from danube.web.messages import pull_start, pulled_message

if TYPE_CHECKING:
    from danube.broker.faces import Served
    from danube.client import Consumer, Message

__all__ = ["HANDLERS", "Pulls"]

_FIRST_S: Final = 0.25
"""How long a pull without a wait waits for what the broker has already."""
_NEXT_S: Final = 0.02
"""How long a pull that has a message waits for the next one."""
_CREDIT: Final = 1_000
_LOOK_S: Final = 5.0

_Key = tuple[str, str, str]


class _Session:
    """The consumer of one caller."""

    def __init__(self, key: _Key, number: int, kind: str) -> None:
        self.key = key
        self.number = number
        self.kind = kind
        self.consumer: Consumer
        self.scope = trio.CancelScope()
        self.held: dict[str, tuple[Message, float]] = {}
        """Deliveries that were not settled, and when they were made."""
        self.used_at_s = trio.current_time()
        self.users = 0
        self.failure: DanubeError | None = None

    def forget_late(self, now_s: float) -> None:
        """Forget deliveries that have timed out long ago."""
        timeout_s = self.consumer.ack_timeout_s
        if timeout_s:
            late = [each for each, (_, at_s) in self.held.items() if now_s - at_s > 2 * timeout_s]
            for each in late:
                del self.held[each]


class Pulls:
    """The sessions of one broker. :meth:`run` must run while they are used."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker
        self._sessions: dict[_Key, _Session] = {}
        self._opening: dict[_Key, trio.Lock] = {}
        self._coming = 0
        """Sessions that are being opened."""
        self._nursery: trio.Nursery | None = None
        self._next_number = 1

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the sessions, and end those that are not used, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                while True:
                    await trio.sleep(_LOOK_S)
                    self._end_idle(trio.current_time())
            finally:
                self._nursery = None

    def _end_idle(self, now_s: float) -> None:
        least_s = self._broker.runtime.limits.http_pull_idle_s
        for session in list(self._sessions.values()):
            session.forget_late(now_s)
            if not session.users and now_s - session.used_at_s > max(least_s, session.consumer.ack_timeout_s):
                session.scope.cancel()
                del self._sessions[session.key]

    @asynccontextmanager
    async def session(self, call: ApiCall, pull: Pull | None) -> AsyncIterator[_Session | None]:
        """Use the session of a caller during the block.

        Args:
            call: names the caller, the topic and the subscription.
            pull: how to open the session if there is none; None: then the value is None.
        """
        key = _key(call)
        lock = self._opening.setdefault(key, trio.Lock())
        try:
            async with lock:
                session = self._sessions.get(key)
                if session is None and pull is not None:
                    session = await self._open(key, call, pull)
                if session is not None:
                    session.users += 1  # before anything else can run: from now on it does not end as unused
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._opening.pop(key, None)
        if session is None:
            yield None
            return
        try:
            yield session
            if session.failure is not None:
                raise session.failure
        finally:
            session.users -= 1
            session.used_at_s = trio.current_time()

    async def _open(self, key: _Key, call: ApiCall, pull: Pull) -> _Session:
        nursery, most = self._nursery, self._broker.runtime.limits.http_max_pulls
        if nursery is None:
            raise UnavailableError("the broker is shutting down; try again")
        if len(self._sessions) + self._coming >= most:
            raise LimitExceededError(
                f"{most} subscriptions are being pulled from, and http_max_pulls is {most}; try again later"
            )
        start = pull_start(pull)  # reports an invalid value before anything is opened
        session = _Session(key, self._next_number, pull.type.value)
        self._next_number += 1
        self._coming += 1
        try:
            failure = await nursery.start(self._hold, session, call, pull, start)
        finally:
            self._coming -= 1
        if failure is not None:
            raise failure
        return session

    async def _hold(
        self,
        session: _Session,
        call: ApiCall,
        pull: Pull,
        start: str | int,
        *,
        task_status: trio.TaskStatus[DanubeError | None],
    ) -> None:
        """Keep the consumer of a session connected until the session ends."""
        opened = False
        try:
            with session.scope:
                async with (
                    call.client() as client,
                    client.consumer(
                        call.topic,
                        subscription=call.path["subscription"],
                        type=pull.type,
                        start=start,
                        credit_messages=_CREDIT,
                        credit_bytes=4 << 20,
                    ) as consumer,
                ):
                    session.consumer = consumer
                    session.used_at_s = trio.current_time()
                    self._sessions[session.key] = session
                    opened = True
                    task_status.started(None)
                    await trio.sleep_forever()
        except Exception as error:
            found = single_error(error)
            if not isinstance(found, DanubeError):
                raise
            session.failure = found
            if not opened:
                task_status.started(found)
        finally:
            if self._sessions.get(session.key) is session:
                del self._sessions[session.key]

    def drop(self, session: _Session) -> None:
        """End a session whose consumer has failed; the next pull opens another one."""
        session.scope.cancel()
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]


def _key(call: ApiCall) -> _Key:
    """Return what tells sessions apart: who calls, without keeping a secret, and the subscription."""
    certificate = call.request.peer_certificate
    proof = call.request.headers.get("authorization", "").encode("latin-1")
    proof += b"\0" + (b"" if certificate is None else certificate.der)
    return hashlib.sha256(proof).hexdigest(), call.topic, call.path["subscription"]


# --- Handlers


async def pull_messages(call: ApiCall) -> PulledMessages:
    """Receive messages."""
    pull: Pull = call.body if call.body is not None else Pull()
    most_held = call.broker.runtime.limits.http_max_pulled_messages
    async with call.pulls.session(call, pull) as session:
        assert session is not None
        if session.kind != pull.type.value:
            raise InvalidArgumentError(
                f"the caller pulls from this subscription as {session.kind}, not {pull.type.value}; use one type"
            )
        session.forget_late(trio.current_time())
        room = most_held - len(session.held)
        if room <= 0:
            raise LimitExceededError(
                f"{most_held} pulled messages are not settled (http_max_pulled_messages); acknowledge some of them"
            )
        rows = []
        try:
            for message in await _receive(session.consumer, min(pull.max, room), pull.wait_s):
                ack_id = f"{session.number}-{message.partition}-{message.offset}-{message.attempt}"
                session.held[ack_id] = message, trio.current_time()
                rows.append(pulled_message(message, ack_id, call.values["payload_bytes"]))
        except DanubeError:
            call.pulls.drop(session)
            raise
        return PulledMessages(messages=rows, ack_timeout_s=session.consumer.ack_timeout_s)


async def _receive(consumer: Consumer, most: int, wait_s: float) -> list[Message]:
    """Return messages that are there, or come within the wait."""
    found: list[Message] = []
    with trio.move_on_after(max(wait_s, _FIRST_S)):
        found.append(await consumer.receive())
    while found and len(found) < most:
        with trio.move_on_after(_NEXT_S) as waiting:
            found.append(await consumer.receive())
        if waiting.cancelled_caught:
            break
    return found


async def ack_messages(call: ApiCall) -> Settled:
    """Acknowledge deliveries, and answer when that is durable."""
    body: AckIds = call.body
    async with call.pulls.session(call, None) as session:
        messages, unknown = _take(session, body.ack_ids)
        for message in messages:
            await message.ack()
        if session is not None and messages:
            await session.consumer.flush_acks()
    return Settled(settled=len(messages), unknown=unknown)


async def nack_messages(call: ApiCall) -> Settled:
    """Refuse deliveries."""
    body: Refusal = call.body
    async with call.pulls.session(call, None) as session:
        messages, unknown = _take(session, body.ack_ids)
        for message in messages:
            await message.nack(body.delay_s, body.reason)
    return Settled(settled=len(messages), unknown=unknown)


async def extend_messages(call: ApiCall) -> Settled:
    """Ask for more time for deliveries."""
    body: Extension = call.body
    async with call.pulls.session(call, None) as session:
        held: Mapping[str, tuple[Message, float]] = {} if session is None else session.held
        known = [each for each in dict.fromkeys(body.ack_ids) if each in held]
        for each in known:
            message, _ = held[each]
            await message.extend_lease(body.lease_s)
            if session is not None:
                session.held[each] = message, trio.current_time() + (body.lease_s or 0.0)
    return Settled(settled=len(known), unknown=[each for each in body.ack_ids if each not in known])


def _take(session: _Session | None, ack_ids: list[str]) -> tuple[list[Message], list[str]]:
    """Return the deliveries that ids name, which are then settled, and the ids that name none."""
    if session is None:
        return [], ack_ids
    found, unknown = [], []
    for each in ack_ids:
        held = session.held.pop(each, None)
        if held is None:
            unknown.append(each)
        else:
            found.append(held[0])
    return found, unknown


HANDLERS: Final[Mapping[str, Handler]] = {
    handler.__name__: handler for handler in (pull_messages, ack_messages, nack_messages, extend_messages)
}
"""By the operation of the route."""
