"""Moves topics of this broker to others: carries out the orders that the metadata have for it.

Each order is carried out by a task of its own, at most ``max_moves`` at a time. What it does next is decided by
:class:`danube.cluster.moves.Departure`. The topic ends here when this broker's view shows its new owner
(:mod:`danube.broker.directory.following`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.cluster.moves import (
    Complete,
    Copy,
    Departure,
    Done,
    Doubt,
    Event,
    Freeze,
    Left,
    Look,
    Refused,
    Reserve,
    Seen,
    Stayed,
    Switch,
    Withdraw,
    Withdrawn,
)
from danube.cluster.moving_calls import CHANNEL, Append, Call, Finish, Open, State, Taken, decode_answer, encode
from danube.cluster.ordering import withdraw_move
from danube.cluster.records import ASSIGNMENTS, MOVES, SESSIONS, Assignment, Reason, broker_name, topic_key
from danube.metadata import Condition, Delete, Put
from danube.metadata.table import decode_record
from danube.model.batch import STAMP_SIZE
from danube.model.errors import (
    CallRefusedError,
    DanubeError,
    FailedPreconditionError,
    InvalidArgumentError,
    MetadataConflictError,
    NotFoundError,
    UnavailableError,
)
from danube.model.ids import FIRST_OFFSET, OwnerEpoch, TopicId
from danube.model.limits import KIB, MIB
from danube.model.log_events import log_event
from danube.model.names import split_partition

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.moving import MoveFigures
    from danube.broker.topic.topic import Topic
    from danube.cluster.records import MoveRecord
    from danube.metadata import RowChange
    from danube.model.ids import Offset
    from danube.peers import Peers

__all__ = ["Departures"]

_log = logging.getLogger("danube.broker")

_LOOK_S: Final = 1.0
"""How often the orders are looked at although none has changed: one may wait for something else."""
_RETRY_S: Final = 0.25
"""Pause before a question to the metadata is repeated."""
_VIEW_S: Final = 0.25
"""How long the change of the owner may take to be reported here before it is read."""
_SEAL_FROM_BYTES: Final = 8 * MIB
"""A topic with as much in the journal is sealed before it is copied, if its storage is shared."""
_SEAL_S: Final = 10.0
"""How long that may take: a slow storage delays no move for longer."""
_OVERTAKEN: Final = "the topic has got another owner, or was deleted, since the move was ordered"
_CALL_BATCHES: Final = 256
"""About how many batches are in one call. Both brokers handle them in one turn of their loops, in which nothing else
gets its turn: 256 take some 3 ms, and 1 MiB of batches of one small message took 30."""
_FIRST_BYTES: Final = 64 * KIB
"""What is read first, when the size of batches is not known."""
_NOT_DONE: Final = (MetadataConflictError, InvalidArgumentError, NotFoundError, CallRefusedError)
_ASSIGNMENT: Final = msgspec.msgpack.Decoder(Assignment)
_encode = msgspec.msgpack.encode


class Departures:
    """The topics that move away from this broker; see the module.

    Args:
        directory: of the topics.
        peers: links to the other brokers.
        is_staged: whether batches are staged for a topic, which cannot move with it.
        figures: counts how the moves end.
    """

    def __init__(
        self, directory: Directory, peers: Peers, is_staged: Callable[[TopicId], bool], figures: MoveFigures
    ) -> None:
        self.figures = figures
        self.directory = directory
        self.membership = directory.membership
        self.peers = peers
        self.is_staged = is_staged
        self.limits = directory.runtime.limits
        self._wake = trio.Event()
        self._moving: set[TopicId] = set()
        self._ended: dict[TopicId, int] = {}
        """The revisions of orders that were carried out or withdrawn, as long as this broker has not heard of that."""
        self._slots = trio.Semaphore(self.limits.max_moves)
        self.membership.on_move.append(self._changed)

    def _changed(self, change: RowChange[MoveRecord]) -> None:
        self._ended.pop(TopicId(int(change.name, 16)), None)
        self._wake.set()

    async def run(self) -> None:
        """Task: carry out the orders, until cancelled. A topic whose move is interrupted stays, or has moved."""
        async with trio.open_nursery() as nursery:
            while True:
                self._wake = trio.Event()
                for key, order in list(self.membership.moves.values.items()):
                    topic_id = TopicId(int(key, 16))
                    if topic_id in self._moving or self.membership.assignments.revision(key) != order.assignment:
                        continue  # one of an earlier assignment was carried out, or the coordinator withdraws it
                    revision = self.membership.moves.revision(key)
                    if self.membership.owns(topic_id) and self._ended.get(topic_id) != revision:
                        self._moving.add(topic_id)
                        nursery.start_soon(self._carry_out, topic_id, order, revision)
                with trio.move_on_after(_LOOK_S):
                    await self._wake.wait()

    async def _carry_out(self, topic_id: TopicId, order: MoveRecord, revision: int) -> None:
        try:
            async with self._slots:
                if self.membership.moves.revision(topic_key(topic_id)) == revision:
                    await _Move(self, topic_id, order, revision).run()
                if self.membership.moves.revision(topic_key(topic_id)) == revision:
                    self._ended[topic_id] = revision
        finally:
            self._moving.discard(topic_id)
            self._wake.set()


class _Move:
    """One move of one topic."""

    def __init__(self, departures: Departures, topic_id: TopicId, order: MoveRecord, revision: int) -> None:
        self._departures = departures
        self._directory = departures.directory
        self._membership = departures.membership
        self._peers = departures.peers
        self._limits = departures.limits
        self._topic_id = topic_id
        self._key = topic_key(topic_id)
        self._order = order
        self._revision = revision
        self._topic: Topic | None = None
        self._position: Offset = FIRST_OFFSET
        """Behind the last batch that was sent."""
        self._read_bytes = min(_FIRST_BYTES, self._limits.move_chunk_bytes)
        """How much the next call should contain."""
        self._frozen = AsyncExitStack()
        self._is_paused = False
        """Whether its history is not sealed now."""
        self._switched_at = 0
        """The revision of the switch; 0: it was not answered."""
        self._wal = ""
        """Durability ``remote``: the wal of the target that has the state."""

    async def run(self) -> None:
        """Carry it out to its end."""
        topic = self._topic = self._directory.served(self._topic_id)
        stored = topic is None or not topic.lossy
        departure = Departure(self._order.move, self._limits.move_chunk_bytes, stored=stored)
        action = departure.action
        begun = trio.current_time()
        frozen_at = 0.0
        async with self._frozen:
            with self._staying_frozen(departure):
                while not isinstance(action, Left | Stayed):
                    if isinstance(action, Freeze):
                        frozen_at = trio.current_time()
                    action = departure.next(await self._do(action))
                target = broker_name(self._order.target)
                name = topic.name if topic is not None else self._key
                if isinstance(action, Left):
                    await self._leave()
                    now = trio.current_time()
                    self._departures.figures.left(self._topic_id, now - frozen_at if frozen_at else 0.0)
                    _log.info(
                        "topic %r has moved to broker %s in %.3f s; it was frozen for %.0f ms",
                        name,
                        target,
                        now - begun,
                        1000 * (now - frozen_at) if frozen_at else 0.0,
                    )
                    return
                self._departures.figures.failed(self._topic_id, action.reason)
                _log.warning(
                    "topic %r stays, and is not moved to broker %s: %s",
                    name,
                    target,
                    action.reason,
                    extra=log_event("topic.not_moved", topic=name, target=target),
                )
        self._resume()

    @contextmanager
    def _staying_frozen(self, departure: Departure) -> Iterator[None]:
        """If this is cancelled, the broker ends: then what may have another owner accepts nothing any more."""
        try:
            yield
        except BaseException:
            if departure.may_have_left and self._topic is not None:
                self._topic.stay_frozen()
            raise

    def _resume(self) -> None:
        topic = self._topic
        if topic is not None and topic.commits_to_storage and self._directory.served(self._topic_id) is topic:
            self._directory.levels.bucket.handover.stays(topic)
        if self._is_paused and topic is not None and self._directory.served(self._topic_id) is topic:
            self._directory.history.add_topic(topic)
        self._is_paused = False

    async def _do(self, action: object) -> Event:
        """Carry out one action."""
        if isinstance(action, Withdraw):
            if action.thaw:
                await self._frozen.aclose()
                self._resume()
            return await self._withdraw()
        if isinstance(action, Look):
            return await self._look()
        try:
            if isinstance(action, Switch):
                return await self._switch()
            if isinstance(action, Reserve):
                return await self._reserve()
            if isinstance(action, Copy):
                return Done(await self._copy())
            if isinstance(action, Freeze):
                return await self._freeze()
            assert isinstance(action, Complete)
            limit_s = self._limits.move_complete_s
            with trio.move_on_after(limit_s):
                return await self._complete()
            return Refused(f"the other broker has not taken the rest of it within move_complete_s = {limit_s:g}")
        except (DanubeError, OSError) as error:
            return Refused(str(error))

    # --- Before the switch ---

    async def _reserve(self) -> Event:
        topic, order = self._topic, self._order
        self._membership.check_moves()
        if self._is_overtaken():
            return Refused(_OVERTAKEN)
        if topic is None:
            return Refused("it is not served here")
        topic.check_alive()
        self._check_kept(topic)
        history = self._directory.history
        is_remote = topic.commits_to_storage
        may_seal = not is_remote and self._is_shared(topic) and history.can_seal(topic.storage)
        if may_seal and topic.log.unsealed_bytes >= _SEAL_FROM_BYTES:
            with trio.move_on_after(_SEAL_S):
                try:
                    await history.seal_now([topic])
                except DanubeError as error:
                    _log.info("topic %r is moved with all that is not sealed: %s", topic.name, error)
            topic.check_alive()
        self._position = topic.end_offset if is_remote else topic.log.journal_start
        if self._is_overtaken():  # sealing takes a while
            return Refused(_OVERTAKEN)
        record = self._membership.assignments.values[self._key]
        await self._call(
            Open(
                self._topic_id,
                order.move,
                topic.name,
                OwnerEpoch(record.epoch + 1),
                self._position,
                0 if is_remote else topic.log.unsealed_bytes,
            )
        )
        return Done()

    def _is_overtaken(self) -> bool:
        """Return whether the assignment is not the one that the order is about: changed, or deleted with the topic."""
        return self._membership.assignments.revision(self._key) != self._order.assignment

    def _is_shared(self, topic: Topic) -> bool:
        storage = self._directory.history.storages.get(topic.storage)
        return storage is not None and storage.capabilities.shared

    def _check_kept(self, topic: Topic) -> None:
        """Check that nothing of the topic is where only this broker reaches it.

        Raises:
            FailedPreconditionError: something is.
        """
        found = self._directory.history.catalogue.find(self._topic_id)
        if topic.commits_to_storage and not self._is_shared(topic):
            raise FailedPreconditionError(
                f"its commits are in storage {topic.storage!r} of broker {self._membership.broker}, which other brokers"
                " cannot reach; keep it in a storage that all brokers share"
            )
        if found is not None and found.parts and not self._is_shared(topic):
            raise FailedPreconditionError(
                f"its history is in storage {topic.storage!r} of broker {self._membership.broker}, which other brokers"
                " cannot reach; keep it in a storage that all brokers share"
            )
        if self._departures.is_staged(self._topic_id):
            raise FailedPreconditionError(
                "batches are staged for it, from before the cluster had other brokers; try again in a minute"
            )

    async def _copy(self) -> int:
        """Send what has become visible up to now; return its bytes."""
        topic = self._topic
        assert topic is not None
        if topic.commits_to_storage:
            return await self._seal_ahead(topic)
        end, sent = topic.log.end_offset, 0
        while self._position < end and (batches := await self._next(topic)):
            await self._call(Append(self._topic_id, self._order.move, batches))
            sent += sum(STAMP_SIZE + len(part) for _, part in batches)
        return sent

    async def _seal_ahead(self, topic: Topic) -> int:
        """Seal what a topic of durability ``remote`` has in commits only; return the bytes that were unsealed."""
        history = self._directory.history
        unsealed = history.unsealed_bytes(self._topic_id)
        if unsealed > self._limits.move_chunk_bytes:  # what is less is sealed once it is frozen
            await history.seal_now([topic])
        return unsealed

    async def _next(self, topic: Topic) -> list[tuple[bytes, bytes]]:
        """Read the next batches to be sent: about :data:`_CALL_BATCHES`, and a chunk at most."""
        topic.check_alive()
        batches = await topic.log.read(self._position, self._read_bytes)
        if not batches:
            return []
        self._position = batches[-1].end_offset
        found = [(bytes(each.stamp), bytes(each.part)) for each in batches]
        average = sum(STAMP_SIZE + len(part) for _, part in found) // len(found)
        self._read_bytes = min(self._limits.move_chunk_bytes, _CALL_BATCHES * average)
        return found

    async def _freeze(self) -> Event:
        topic = self._topic
        assert topic is not None
        with trio.move_on_after(self._limits.move_freeze_s) as scope:
            if not topic.lossy:  # others have no history
                self._is_paused = True
                await self._directory.history.pause_topic(self._topic_id)
            await self._frozen.enter_async_context(topic.frozen())
        if scope.cancelled_caught:
            return Refused(
                f"what was on its way to it has not settled within move_freeze_s = {self._limits.move_freeze_s:g}"
            )
        if not topic.lossy:
            self._check_kept(topic)
        return Done()

    async def _complete(self) -> Event:
        topic, order = self._topic, self._order
        assert topic is not None
        if topic.commits_to_storage:
            return await self._complete_remote(topic)
        state, chunk = topic.whole_snapshot(moves=True), self._limits.move_chunk_bytes
        while len(state) > chunk:
            await self._call(State(self._topic_id, order.move, state[:chunk]))
            state = state[chunk:]
        self._read_bytes = chunk  # few calls matter more now than short turns
        last = await self._next(topic)
        while self._position < topic.end_offset and last:
            await self._call(Append(self._topic_id, order.move, last))
            last = await self._next(topic)
        # In one call, because nobody publishes meanwhile.
        await self._call(Finish(self._topic_id, order.move, topic.end_offset, last, state))
        topic.check_alive()
        return Done()

    async def _complete_remote(self, topic: Topic) -> Event:
        """Seal the rest, and send the state, at the same time; both are durable before the switch."""
        handover, move = self._directory.levels.bucket.handover, self._order.move
        failures: list[DanubeError | OSError] = []

        async def part(work: Callable[[], Awaitable[None]]) -> None:
            try:
                await work()
            except (DanubeError, OSError) as error:
                failures.append(error)

        async def send() -> None:
            state, chunk = handover.state_of(topic, move), self._limits.move_chunk_bytes
            while len(state) > chunk:
                await self._call(State(self._topic_id, move, state[:chunk]))
                state = state[chunk:]
            self._wal = (await self._call(Finish(self._topic_id, move, topic.end_offset, [], state))).wal

        async with trio.open_nursery() as nursery:
            for work in (send, partial(handover.seal, topic), partial(handover.announce, topic)):
                nursery.start_soon(part, work)
        if failures:
            raise failures[0]
        topic.check_alive()
        return Done()

    async def _call(self, call: Call) -> Taken:
        """Call the target, and return its answer; raise why it does not take the topic."""
        name = broker_name(self._order.target)
        session = self._membership.sessions.values.get(name)
        if session is None or self._membership.sessions.revision(name) != self._order.target_session:
            raise UnavailableError(f"broker {name} has ended, or was started again")
        answer = await self._peers.call(session.address, CHANNEL, encode(call), self._limits.move_timeout_s)
        return decode_answer(answer)

    # --- The switch ---

    async def _switch(self) -> Event:
        """Change the owner."""
        order, membership = self._order, self._membership
        present = membership.assignments.values.get(self._key)
        if present is None or membership.assignments.revision(self._key) != order.assignment:
            return Refused("the topic has got another owner since the move was ordered")
        conditions = [
            Condition(MOVES + self._key, self._revision),
            Condition(ASSIGNMENTS + self._key, order.assignment),
            Condition(SESSIONS + broker_name(order.target), order.target_session),
            membership.session_condition,
            self._record_condition(),
        ]
        wal = "" if self._wal == broker_name(order.target) else self._wal
        moved = Assignment(order.target, OwnerEpoch(present.epoch + 1), Reason.MOVED, order.move, wal)
        operations: list[Put | Delete] = [Put(ASSIGNMENTS + self._key, _encode(moved)), Delete(MOVES + self._key)]
        try:
            self._switched_at = (await self._directory.catalogue.store.transact(conditions, operations)).revision
        except _NOT_DONE as error:
            return Refused(str(error))
        except DanubeError as error:
            return Doubt(str(error))
        return Done()

    def _record_condition(self) -> Condition:
        """Return the condition that the topic exists, as this broker knows it."""
        topics, topic = self._directory.catalogue.tables.topics, self._topic
        if topic is None:
            raise UnavailableError("it is not served here")
        split = split_partition(topic.name)
        base = split[0] if split and self._directory.catalogue.find(topic.name) is None else topic.name
        return Condition("/topics" + base, topics.revision(base))

    async def _withdraw(self) -> Event:
        try:
            return Withdrawn(await withdraw_move(self._directory.catalogue.store, self._topic_id, self._revision))
        except DanubeError as error:
            await trio.sleep(_RETRY_S)
            return Doubt(str(error))

    async def _look(self) -> Event:
        try:
            item = await self._directory.catalogue.store.get(ASSIGNMENTS + self._key)
        except DanubeError as error:
            await trio.sleep(_RETRY_S)
            return Doubt(str(error))
        return Seen(decode_record(item, _ASSIGNMENT.decode).move if item is not None else 0)

    async def _leave(self) -> None:
        """Wait until this broker's view shows the new owner, which ends the topic."""
        if self._switched_at:
            with trio.move_on_after(_VIEW_S):  # the change is about to be reported, and reading it costs a round trip
                await self._membership.assignments.reached(self._switched_at)
        while self._topic is not None and self._directory.served(self._topic_id) is self._topic:
            try:
                await self._membership.assignments.refresh(self._key)
            except DanubeError as error:
                _log.info("topic %r waits for the assignment that it has got: %s", self._topic.name, error)
                await trio.sleep(_RETRY_S)
            else:
                await trio.lowlevel.checkpoint()
