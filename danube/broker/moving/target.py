"""Takes topics that move to this broker: copies their batches and their state into its journal, and serves them.

A copy is *pending* until the assignment names this broker and the move (:func:`danube.cluster.moves.fate_of_copy`).
Its entries are behind a TAKEOVER entry with the id of the move. When the order has vanished and the assignment does not
name it, they are buried.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.broker.runtime.named_locks import NamedLocks
from danube.broker.topic.recovered import RecoveryVisitor, TopicSnapshot
from danube.cluster.moves import Fate, fate_of_copy
from danube.cluster.moving_calls import CHANNEL, Append, Call, Finish, Open, State, Taken, decode_call, encode
from danube.cluster.ordering import withdraw_move
from danube.cluster.records import ASSIGNMENTS, MOVES, Assignment, MoveRecord, broker_name, topic_key
from danube.log import Entry, EntryType, Location, RecoveredTopic
from danube.log.format import TAKEOVER_ENTRY
from danube.metadata.table import decode_record
from danube.model import Durability
from danube.model.batch import STAMP_SIZE, BatchHeader, Stamp, check_part, read_stamp
from danube.model.errors import (
    DanubeError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    LimitExceededError,
    UnavailableError,
)
from danube.model.ids import TopicId
from danube.model.log_events import log_event

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.durability.handover import Handover
    from danube.dispatch import PastDelivery
    from danube.metadata import KeyValue, RowChange
    from danube.model.ids import Offset
    from danube.model.records import SubscriptionRecord, TopicRecord
    from danube.peers import Peer, Peers

__all__ = ["Arrivals"]

_log = logging.getLogger("danube.broker")

_RETRY_S: Final = 0.25
_FULL: Final = 0.9
"""Share of ``journal_max_bytes`` that may be in use after a topic was taken."""
_ASSIGNMENT: Final = msgspec.msgpack.Decoder(Assignment)
_ORDER: Final = msgspec.msgpack.Decoder(MoveRecord)
_SNAPSHOT: Final = msgspec.msgpack.Decoder(TopicSnapshot)


class _Landing:
    """The owner of one entry of a copy on its way to the journal."""

    __slots__ = ("copy", "header", "stamp")

    def __init__(self, copy: _Copy, stamp: Stamp | None, header: BatchHeader | None) -> None:
        self.copy = copy
        self.stamp = stamp
        self.header = header

    def settled(self, entry: Entry, error: DanubeError | None) -> None:
        """Journal: the entry is durable, or never will be."""
        self.copy.settled(self, entry, error)

    def stalled(self, entry: Entry, error: DanubeError) -> None:
        """Never called: the copy is in the journal of the broker."""


class _Copy:
    """A topic that is being copied to this broker."""

    def __init__(self, call: Open, record: TopicRecord, *, is_remote: bool) -> None:
        self.topic_id = call.topic_id
        self.move = call.move
        self.name = call.topic
        self.epoch = call.epoch
        self.durability: Durability = record.durability
        self.is_remote = is_remote
        """Whether its state is in a wal, and its batches are in the storage."""
        self.wal = ""
        """The wal that has the state."""
        self.recovered: RecoveredTopic | None = None
        """The batches that are in the journal."""
        self.end_offset: Offset = call.first_offset
        self.pieces: list[bytes] = []
        self.rows: Mapping[str, SubscriptionRecord] = {}
        self.deliveries: Mapping[int, Sequence[PastDelivery]] = {}
        """What is known of messages that were delivered before, by the ids of the subscriptions."""
        self.life = 0
        """What distinguishes its offsets from those before a power loss at an earlier owner."""
        self.visitor: RecoveryVisitor | None = None
        """Holds the state, once the copy is complete."""
        self.heard_at = trio.current_time()
        self.error: DanubeError | None = None
        self._in_flight = 0
        self._idle = trio.Event()

    def begin(self) -> None:
        """An entry is about to be submitted."""
        if not self._in_flight:
            self._idle = trio.Event()
        self._in_flight += 1

    def settled(self, landing: _Landing, entry: Entry, error: DanubeError | None) -> None:
        """Note an entry that has settled."""
        self._in_flight -= 1
        if error is not None:
            self.error = error
        elif landing.stamp is not None and landing.header is not None:
            if self.recovered is None:
                self.recovered = RecoveredTopic(self.topic_id, landing.stamp.base_offset)
            location = Location(entry.file, entry.position)
            self.end_offset = self.recovered.add(landing.stamp, landing.header, location)
        if not self._in_flight:
            self._idle.set()

    async def settle(self) -> None:
        """Wait until all entries have settled, durably or not."""
        while self._in_flight:
            await self._idle.wait()

    async def until_idle(self) -> None:
        """Wait until all entries have settled; raise if one never will."""
        await self.settle()
        if self.error is not None:
            raise self.error


class Arrivals:
    """The topics that move to this broker; see the module.

    Args:
        directory: of the topics.
        peers: links to the other brokers.
    """

    def __init__(self, directory: Directory, peers: Peers) -> None:
        self._directory = directory
        self._membership = directory.membership
        self._runtime = directory.runtime
        self._store = directory.catalogue.store
        self._copies: dict[TopicId, _Copy] = {}
        self._silent: set[_Copy] = set()
        """Those whose owner was not heard of for long, while it is found out what becomes of them."""
        self._locks = NamedLocks()
        self._membership.on_move.append(self._order_changed)
        self._peers = peers
        directory.following.on_given = self._given

    # --- Calls of the owner ---

    async def answer(self, peer: Peer, payload: bytes) -> bytes:
        """Answer one call; see :mod:`danube.cluster.moving_calls`.

        Raises:
            DanubeError: this broker cannot take the topic; the move is given up.
        """
        call = decode_call(payload)
        async with self._locks.hold(topic_key(call.topic_id)):
            if isinstance(call, Open):
                copy = await self._open(call)
            else:
                copy = self._copy_of(call)
                copy.heard_at = trio.current_time()
                if isinstance(call, Append):
                    await self._append(copy, call.batches)
                elif isinstance(call, State):
                    copy.pieces.append(call.piece)
                else:
                    await self._finish(copy, call)
            copy.heard_at = trio.current_time()
            return encode(Taken(copy.end_offset, copy.wal))

    def _copy_of(self, call: Call) -> _Copy:
        copy = self._copies.get(call.topic_id)
        if copy is None or copy.move != call.move:
            raise FailedPreconditionError(
                f"broker {self._membership.broker} has no copy of topic {topic_key(call.topic_id)} for this move: it"
                " was started again, or the move was given up"
            )
        return copy

    async def _open(self, call: Open) -> _Copy:
        topic_id, me, journal = call.topic_id, self._membership.broker, self._runtime.journal
        await self._check_ordered(call)
        directory = self._directory
        if directory.served(topic_id) is not None or topic_id in directory.following.leaving:
            raise UnavailableError(f"broker {me} has not let go of topic {call.topic!r} yet")
        await directory.catalogue.refresh(call.topic)
        record, known = directory.catalogue.locate(call.topic)
        if known != topic_id:
            raise FailedPreconditionError(f"topic {call.topic!r} was deleted, and created again")
        level = directory.level(record)
        if not level.keeps:
            raise FailedPreconditionError(f"topic {call.topic!r} stores nothing, so nothing of it is copied")
        if level.commits_to_storage:
            return await self._open_remote(call, record)
        if record.storage not in directory.history.storages:
            raise FailedPreconditionError(f"broker {me} has no storage {record.storage!r}, which the topic needs")
        level.check_states(f"topic {call.topic!r}", 1)
        most = _FULL * self._runtime.limits.journal_max_bytes
        if journal.used_bytes + call.journal_bytes > most:
            raise LimitExceededError(
                f"the journal of broker {me} has no room for {call.journal_bytes} bytes of the topic: it uses"
                f" {journal.used_bytes} bytes of journal_max_bytes = {self._runtime.limits.journal_max_bytes}"
            )
        former = self._copies.get(topic_id)
        if topic_id in directory.kept and topic_id in journal.topic_ids():
            raise FailedPreconditionError(
                f"topic {call.topic!r} cannot move to broker {me}: its journal has messages of the topic from an"
                " earlier move, which the metadata are too old to know, and a copy would remove them. Start the brokers"
                " with metadata that know that move, such as a newer backup, or delete the topic to give it up"
            )
        if former is not None or topic_id in journal.topic_ids():
            await self._bury(topic_id, former)
        copy = _Copy(call, record, is_remote=False)
        self._copies[topic_id] = copy
        directory.expected.add(topic_id)
        payload = TAKEOVER_ENTRY.pack(call.move, call.first_offset, call.epoch)
        copy.begin()
        self._submit(Entry(EntryType.TAKEOVER, topic_id, record.durability, (payload,), _Landing(copy, None, None)))
        await copy.until_idle()
        return copy

    async def _open_remote(self, call: Open, record: TopicRecord) -> _Copy:
        """Begin the copy of a topic of durability ``remote``: only its state is sent."""
        directory, handover, former = self._directory, self._handover, self._copies.get(call.topic_id)
        await handover.reserve(call.topic, record)
        if former is not None or handover.has_copy(call.topic_id):
            await self._bury(call.topic_id, former)
        copy = self._copies[call.topic_id] = _Copy(call, record, is_remote=True)
        directory.expected.add(call.topic_id)
        return copy

    @property
    def _handover(self) -> Handover:
        return self._directory.levels.bucket.handover

    async def _check_ordered(self, call: Open) -> None:
        """Check that the metadata order this move, to this start of this broker."""
        moves, key = self._membership.moves, topic_key(call.topic_id)
        order = moves.values.get(key)
        if order is None or order.move != call.move:
            await moves.refresh(key)
            order = moves.values.get(key)
        if order is None or order.move != call.move or order.target != self._membership.me:
            raise FailedPreconditionError(f"the move of topic {call.topic!r} is not ordered any more")
        if order.target_session != self._membership.session_revision:
            raise FailedPreconditionError(
                f"the move of topic {call.topic!r} was ordered before broker {self._membership.broker} was started"
                " again"
            )

    def _submit(self, entry: Entry) -> None:
        landing = entry.owner
        assert isinstance(landing, _Landing)
        try:
            self._runtime.journal.submit(entry)
        except DanubeError as error:
            landing.settled(entry, error)
            raise

    async def _append(self, copy: _Copy, batches: Sequence[tuple[bytes, bytes]]) -> None:
        journal = self._runtime.journal
        for head, part in batches:
            stamp, header = read_stamp(head), check_part(part)
            size = STAMP_SIZE + len(part)
            if stamp.topic_id != copy.topic_id or stamp.total_size != size or len(head) != STAMP_SIZE:
                raise InvalidArgumentError(f"a batch for topic {copy.name!r} contradicts its stamp")
            await journal.admit(size)
            copy.begin()
            self._submit(
                Entry(
                    EntryType.BATCH,
                    copy.topic_id,
                    copy.durability,
                    (head, part),
                    _Landing(copy, stamp, header),
                    end_offset=stamp.base_offset + header.record_count,
                    size=size,
                )
            )
        await copy.until_idle()

    async def _finish(self, copy: _Copy, call: Finish) -> None:
        """Make the copy complete, and sync all of it."""
        if copy.is_remote:
            await self._finish_remote(copy, call)
            return
        journal = self._runtime.journal
        snapshot = _SNAPSHOT.decode(b"".join((*copy.pieces, call.piece)))
        snapshot.move, snapshot.epoch, snapshot.pending = copy.move, copy.epoch, True
        copy.deliveries, snapshot.deliveries = snapshot.deliveries, {}  # a restart forgets them, as ever
        copy.life, snapshot.life = snapshot.life, 0
        marked = msgspec.msgpack.encode(snapshot)
        copy.pieces = []
        failures: list[DanubeError] = []

        async def part(work: Callable[[], Awaitable[None]]) -> None:
            try:
                await work()
            except DanubeError as error:
                failures.append(error)

        async def read() -> None:
            copy.rows = await self._directory.catalogue.subscriptions.of_topic(copy.topic_id)

        async with trio.open_nursery() as nursery:  # at once, because nobody publishes meanwhile
            nursery.start_soon(part, partial(self._append, copy, call.batches))
            nursery.start_soon(part, partial(journal.save, {copy.topic_id: marked}))
            nursery.start_soon(part, read)
        if failures:
            raise failures[0]
        await journal.sync(journal.sequence)
        if copy.recovered is not None and copy.end_offset != call.end_offset:
            raise DataLossError(
                f"topic {copy.name!r} ends at {call.end_offset}, and its copy at {copy.end_offset}; nothing has moved"
            )
        visitor = RecoveryVisitor({copy.topic_id: copy.name}, {copy.topic_id: copy.rows}, self._runtime.limits)
        visitor.snapshot(copy.topic_id, marked)
        copy.visitor, copy.end_offset = visitor, call.end_offset

    async def _finish_remote(self, copy: _Copy, call: Finish) -> None:
        """Write the state to the wal, durably."""
        state = b"".join((*copy.pieces, call.piece))
        copy.pieces = []
        record, _ = self._directory.catalogue.locate(copy.name)
        copy.wal, end = await self._handover.take(copy.name, record, copy.topic_id, copy.move, state)
        if end != call.end_offset:
            raise DataLossError(f"topic {copy.name!r} ends at {call.end_offset}, and its state says {end}")
        copy.end_offset = call.end_offset

    # --- What becomes of a copy ---

    def _order_changed(self, change: RowChange[MoveRecord]) -> None:
        copy = self._copies.get(TopicId(int(change.name, 16)))
        if copy is not None and (change.after is None or change.after.move != copy.move):
            self._runtime.start(self._judge, copy)

    def _given(self, topic_id: TopicId) -> bool:
        copy = self._copies.get(topic_id)
        assignment = self._membership.assignments.values[topic_key(topic_id)]
        if copy is None or assignment.move != copy.move:
            return False
        if topic_id not in self._directory.arriving:
            self._directory.arriving[topic_id] = trio.Event()
            self._runtime.start(self._judge, copy)
        return True

    async def run(self) -> None:
        """Task: take topics, once the journal runs, and give up copies whose owners are silent; until cancelled."""
        self._peers.on_call(CHANNEL, self.answer)
        timeout_s = self._runtime.limits.move_timeout_s
        while True:
            await trio.sleep(timeout_s / 4)
            for copy in list(self._copies.values()):
                if trio.current_time() > copy.heard_at + 2 * timeout_s and copy not in self._silent:
                    self._silent.add(copy)
                    self._runtime.start(self._give_up, copy)  # one that has to wait for its storage delays no other

    async def void(self, topic_id: TopicId) -> None:
        """Forget the copy of a topic, if there is one: this broker has got the topic in another way, and buries it.

        Otherwise it would be buried when its order is withdrawn, and what the topic has by then with it.
        """
        async with self._locks.hold(topic_key(topic_id)):
            copy = self._copies.pop(topic_id, None)
            if copy is not None:
                await copy.settle()

    async def _give_up(self, copy: _Copy) -> None:
        try:
            await self._judge(copy)
        finally:
            self._silent.discard(copy)

    async def _judge(self, copy: _Copy) -> None:
        """Serve a copy, or bury it, as soon as it is certain what has become of its move."""
        while self._copies.get(copy.topic_id) is copy:
            try:
                async with self._locks.hold(topic_key(copy.topic_id)):
                    if self._copies.get(copy.topic_id) is not copy or not await self._decide(copy):
                        return
            except (DanubeError, OSError) as error:
                _log.info("what becomes of the copy of topic %r is decided later: %s", copy.name, error)
                await trio.sleep(_RETRY_S)

    async def _decide(self, copy: _Copy) -> bool:
        """Decide what becomes of a copy; return whether to decide again."""
        key, me, table = topic_key(copy.topic_id), self._membership.me, self._membership.assignments
        assignment = table.values.get(key)
        if assignment is not None and assignment.owner == me and assignment.move == copy.move:
            await self._serve(copy)
            return False
        row = await self._store.get(MOVES + key)
        order = decode_record(row, _ORDER.decode) if row is not None else None
        found: KeyValue | None = await self._store.get(ASSIGNMENTS + key)
        assigned = decode_record(found, _ASSIGNMENT.decode) if found is not None else None
        fate = fate_of_copy(me, copy.move, order.move if order is not None else None, assigned)
        if fate is Fate.SERVE:
            await table.refresh(key)
            return True
        if fate is Fate.WAIT:
            if trio.current_time() <= copy.heard_at + 2 * self._runtime.limits.move_timeout_s:
                return False  # its row was replaced in this broker's view, and is the same again
            assert row is not None
            await withdraw_move(self._store, copy.topic_id, row.mod_revision)
            return True
        await self._bury(copy.topic_id, copy)
        _log.info("the move of topic %r to this broker was given up, and its copy is removed", copy.name)
        return False

    async def _bury(self, topic_id: TopicId, copy: _Copy | None) -> None:
        """Remove a copy, or what is left of an earlier one."""
        if self._handover.has_copy(topic_id) or (copy is not None and copy.is_remote):
            await self._handover.drop(topic_id)
            self._forget(topic_id)
            return
        if copy is not None:
            await copy.settle()
        await self._runtime.journal.bury([topic_id])
        self._forget(topic_id)

    def _forget(self, topic_id: TopicId) -> None:
        self._copies.pop(topic_id, None)
        self._directory.expected.discard(topic_id)
        arrival = self._directory.arriving.pop(topic_id, None)
        if arrival is not None:
            arrival.set()

    async def _serve(self, copy: _Copy) -> None:
        """Serve the topic: this broker is its owner."""
        directory, topic_id = self._directory, copy.topic_id
        visitor = copy.visitor
        if copy.is_remote:
            await self._serve_remote(copy)
            return
        assert visitor is not None, f"topic {copy.name!r} was given to this broker before its copy was complete"
        await directory.history.adopt_topic(topic_id)
        try:
            record, known = directory.catalogue.locate(copy.name)
        except DanubeError:
            known = TopicId(0)
        if known != topic_id:  # it was deleted in the meantime
            await directory.history.drop_topic(topic_id, copy.name)
            await self._bury(topic_id, copy)
            return
        state = visitor.topics[topic_id]
        topic = directory.level(record).build(copy.name, topic_id, record, copy.recovered, state)
        start = topic.start_offset
        damaged = copy.recovered.damaged if copy.recovered is not None else ()
        lost = [(low, high) for low, high in damaged if high > start]
        topic.life = copy.life or topic.life
        failure = topic.failure or (
            DataLossError(f"topic {copy.name!r}: offsets {lost} are missing in its copy") if lost else None
        )
        if failure is not None:
            topic.stop(failure)
            _log.error("topic %r stops: %s", copy.name, failure, extra=log_event("topic.stopped", topic=copy.name))
        for name, row in copy.rows.items():
            topic.restore_subscription(name, row, visitor.cursors[row.subscription_id])
        topic.recall(copy.deliveries)
        directory.adopt(topic)
        self._forget(topic_id)
        _log.info("topic %r has moved to broker %s", copy.name, broker_name(self._membership.me))
        # The snapshot says that the move was confirmed: from now on nothing but the assignment can void the copy.
        await self._runtime.journal.save({topic_id: topic.whole_snapshot()})

    async def _serve_remote(self, copy: _Copy) -> None:
        """Serve a topic of durability ``remote``, unless the wal with its state was lost, or recovered, meanwhile."""
        directory, topic_id = self._directory, copy.topic_id
        await directory.history.adopt_topic(topic_id)
        try:
            record, known = directory.catalogue.locate(copy.name)
        except DanubeError:
            known = TopicId(0)
        if known != topic_id:  # it was deleted in the meantime
            await directory.history.drop_topic(topic_id, copy.name)
            await self._bury(topic_id, copy)
            return
        if directory.served(topic_id) is None and self._handover.serve(copy.name, record, topic_id):
            _log.info("topic %r has moved to broker %s", copy.name, broker_name(self._membership.me))
        self._forget(topic_id)
