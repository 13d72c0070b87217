"""The intake of a topic: sessions of producers, and their batches until these have reached their durability.

An :class:`Intake` belongs to one plain topic or partition. A :class:`Sender` publishes to it: the stream of a connected
producer, or a component of the broker that publishes messages of its own. Both use the same four steps: open a session,
attach, hand in batches (``admit`` or ``try_admit``, then ``take``), detach. All of it runs in one thread, so "check the
sequence, assign the offset, submit" needs no lock, because nothing in :meth:`Intake.take` waits.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import trio

from danube.broker.intake.checks import has_size
from danube.broker.intake.effective_policies import EffectivePolicies
from danube.broker.intake.roster import Roster
from danube.broker.intake.senders import Sender, Waiter
from danube.broker.runtime.commits import Commits
from danube.broker.runtime.namespace_space import Space
from danube.broker.runtime.publish_figures import PublishFigures
from danube.broker.runtime.publish_rate import Pace
from danube.history import RemoteJournal
from danube.log import (
    Checked,
    Entry,
    EntryType,
    Journal,
    MemoryLog,
    ProducedBatch,
    ProducerSession,
    ProducerTable,
    Settling,
    StoredBatch,
    TopicLog,
    Verdict,
)
from danube.model import Durability, Limits, ProducerAccess, api
from danube.model.batch import BatchFlags, BatchHeader
from danube.model.errors import (
    DanubeError,
    DataLossError,
    DurabilityMismatchError,
    FailedPreconditionError,
    InvalidArgumentError,
    ProducerFencedError,
)
from danube.model.ids import NO_PRODUCER_EPOCH, Offset, ProducerId, TopicId
from danube.model.limits import MIB
from danube.model.policies import SchemaFraming, SchemaPayloads, SchemaValidation

if TYPE_CHECKING:
    from danube.broker.intake.schema_rule import KnownSchemas, SchemaRule

__all__ = ["Fed", "Intake"]

_EXPIRY_INTERVAL_US = 10_000_000
"""Minimum interval of the searches for idle producers."""
_READ_BYTES = 1 * MIB
"""Read at a time from the history after damage to the journal."""


class Fed(Protocol):
    """The part of a topic that its intake uses."""

    name: str
    topic_id: TopicId
    durability: Durability
    kept: TopicLog | MemoryLog

    @property
    def lossy(self) -> bool:
        """Whether it has no log."""
        ...

    @property
    def sessions_may_move(self) -> bool:
        """Whether another machine may take it over, with the sessions of its producers."""
        ...

    def check_alive(self) -> None:
        """Raise if it was deleted, or has stopped because stored data is damaged."""
        ...

    def check_not_deleted(self) -> None:
        """Raise if it was deleted."""
        ...

    def check_states(self, what: str) -> None:
        """Raise LimitExceededError if the states of topics take so much space that nothing may be added."""
        ...

    def arrived(self, batch: StoredBatch) -> None:
        """Make a batch that has reached its durability visible to the subscriptions."""
        ...


class _Ticket:
    """The owner of a journal entry of a batch: notifies the senders when it settles."""

    __slots__ = ("_intake", "waiters")

    def __init__(self, intake: Intake, sender: Waiter, token: Any) -> None:
        self._intake = intake
        self.waiters: Sequence[tuple[Waiter, Any]] = ((sender, token),)

    def settled(self, entry: Entry, error: DanubeError | None) -> None:
        """Journal: the batch has reached its durability, or never will."""
        self._intake.settled(self, entry, error)

    def stalled(self, entry: Entry, error: DanubeError) -> None:
        """Journal: the batch waits for its storage. Its sender is notified, and may send it again."""
        assert isinstance(entry.batch, StoredBatch)
        self._intake.note_refused(error, entry.batch.header.record_count)
        self.tell(entry.batch, error)

    def tell(self, batch: StoredBatch, error: DanubeError | None) -> None:
        """Notify the waiting senders, and remove them."""
        waiters, self.waiters = self.waiters, ()
        for sender, token in waiters:
            sender.in_flight -= 1
            sender.settled(token, batch, error)


class Intake:
    """Receives the batches of one topic; see the module.

    Args:
        topic: it belongs to.
        table: the known producers.
        journal: where batches and sessions are written.
        commits: notifies of commits.
        limits: ``max_producers_per_topic``, ``max_known_producers_per_topic`` and ``max_message_bytes``.
        policies: of the topic, initially.
        wall_clock_us, new_id: seams.
        held_producers: returns the ids of producers that must not be forgotten, however long they are idle.
        namespace_pace: returns the pace that the topic shares with others of its namespace; None: there is none.
        namespace_space: returns the count of stored bytes that it shares with them; None: there is none.
        figures: where all intakes of the broker count; None: they count for nothing.
        subject_schemas: returns the schemas of the topic's subject; None: it has no subject.

    Attributes:
        accepted_bytes: of batches that were accepted.
        settled_messages: messages that have reached their durability.
        refused_messages: messages that have not, by the code of the error.
        mismatched_messages: messages of batches that were taken though they name no schema of the topic's subject, or
            do not fit it.
    """

    def __init__(
        self,
        topic: Fed,
        table: ProducerTable,
        journal: Journal | RemoteJournal,
        commits: Commits,
        limits: Limits,
        policies: EffectivePolicies,
        wall_clock_us: Callable[[], int],
        new_id: Callable[[], int],
        held_producers: Callable[[], Container[ProducerId]] = frozenset,
        namespace_pace: Callable[[], Pace | None] = lambda: None,
        namespace_space: Callable[[], Space | None] = lambda: None,
        figures: PublishFigures | None = None,
        subject_schemas: Callable[[], KnownSchemas | None] = lambda: None,
    ) -> None:
        self._topic = topic
        self._table = table
        self._journal = journal
        self._commits = commits
        self._limits = limits
        self._clock_us = wall_clock_us
        self._new_id = new_id
        self._held_producers = held_producers
        self._figures = figures if figures is not None else PublishFigures(wall_clock_us)
        self._durations = None if topic.lossy else self._figures.durations_of(topic.durability)
        self.accepted_bytes = 0
        self.settled_messages = 0
        self.refused_messages: dict[str, int] = {}
        self.mismatched_messages = 0
        self._roster = Roster(topic.name, table, limits)
        self._registering: dict[str, Settling] = {}
        """Registrations that are not durable yet."""
        self._pending: dict[StoredBatch, _Ticket] = {}
        self._expired_us = 0
        self._reading = trio.Lock()
        self._policies: EffectivePolicies
        self.max_message_bytes = 0
        """Maximum size of a message, by policy and limit."""
        self._pace: Pace | None = None
        self._namespace_pace = namespace_pace
        self._shared: Pace | None = None
        """The pace of its namespace."""
        self._namespace_space = namespace_space
        self._space: Space | None = None
        """The stored bytes of its namespace."""
        self._frozen: trio.Event | None = None
        """Set when the topic takes something again, or is gone; None: it takes everything."""
        self.schema_rule: SchemaRule | None = None
        """Checks that batches name a schema of the topic's subject; None: they need not."""
        self._subject_schemas = subject_schemas
        self.apply_policies(policies)

    # --- Moves ---

    def freeze(self) -> None:
        """Take no batch and open no session from now on: they wait until :meth:`thaw`."""
        if self._frozen is None:
            self._frozen = trio.Event()

    def thaw(self) -> None:
        """Go on after :meth:`freeze`. If the topic is gone, all who wait get its error."""
        frozen, self._frozen = self._frozen, None
        if frozen is not None:
            frozen.set()

    async def _until_thawed(self) -> None:
        """Wait while the topic is frozen.

        Raises:
            DanubeError: it is gone, for example to another broker.
        """
        while (frozen := self._frozen) is not None:
            began = trio.current_time()
            await frozen.wait()
            self._figures.paused_s["move"] += trio.current_time() - began
            self._topic.check_alive()

    # --- Sessions ---

    def apply_policies(self, policies: EffectivePolicies) -> None:
        """Apply other policies, and the quota of its namespace, from now on. Attached senders remain attached."""
        self._policies = policies
        allowed = policies.values.max_message_bytes
        limit = self._limits.max_message_bytes
        self.max_message_bytes = limit if allowed is None else min(allowed, limit)
        rate = policies.values.publish_rate
        if self._pace is not None:
            self._pace.change(rate)
            if not rate:
                self._pace = None
        elif rate:
            self._pace = Pace(rate)
        self._shared = self._namespace_pace()
        self._space = self._namespace_space() if not self._topic.lossy else None
        validation, schemas = policies.values.schema_validation, self._subject_schemas()
        self.schema_rule = None
        if schemas is not None and validation is not None and validation is not SchemaValidation.NONE:
            from danube.broker.intake.schema_rule import SchemaRule  # most brokers have no schemas

            self.schema_rule = SchemaRule(
                self._topic.name,
                schemas,
                validation,
                policies.values.schema_payloads or SchemaPayloads.CLIENT,
                policies.values.schema_framing or SchemaFraming.NONE,
            )

    @property
    def is_framed(self) -> bool:
        """Whether payloads of batches without a schema in their header have Confluent's frame, as the policies say."""
        return self._policies.values.schema_framing is SchemaFraming.CONFLUENT

    def check_schema(self, header: BatchHeader) -> None:
        """Check that a batch names a schema of the topic's subject, if the policies ask for that.

        Raises:
            SchemaMismatchError: it does not.
        """
        if self.schema_rule is not None and not self.schema_rule.check(header):
            self._note_mismatch(header)

    async def examine(self, part: bytes, header: BatchHeader) -> None:
        """Do what the schema rule has to do before a batch is checked; see :meth:`SchemaRule.examine`.

        Args:
            part, header: the batch; its checksum is right. One that is too large is left to :func:`check_batch`.

        Raises:
            SchemaMismatchError: a payload is not as the policies say.
            DanubeError: the metadata do not answer, or payloads cannot be checked, and the batch must not be taken
                without that.
        """
        rule = self.schema_rule
        if rule is not None and has_size(self._limits, header, part) and not await rule.examine(part, header):
            self._note_mismatch(header)

    def _note_mismatch(self, header: BatchHeader) -> None:
        self.mismatched_messages += header.record_count
        self._figures.mismatches += header.record_count

    async def open(self, request: api.PublishOpen, *, internal: bool = False) -> ProducerSession:
        """Open or resume a producer's session; return when that is durable. Attach next, without an await in between.

        Args:
            request: as sent by the producer.
            internal: whether it belongs to the broker itself: limits on the number of producers do not apply to it.

        Raises:
            DurabilityMismatchError: the producer requires another durability than the topic has.
            ProducerFencedError: a resumed session was replaced by a newer one.
            FailedPreconditionError: the topic has an exclusive producer.
            LimitExceededError: too many producers.
            DataLossError: names of producers are lost, and this one is not known; or journal and history are damaged.
            StorageUnavailableError: the journal was damaged, and the history with the stored sequences is unavailable.
        """
        topic = self._topic
        if request.durability is not None and request.durability is not topic.durability:
            raise DurabilityMismatchError(
                f"topic {topic.name!r} has durability {topic.durability.value!r}, not {request.durability.value!r};"
                " durability is fixed when a topic is created"
            )
        await self._read_unread()
        if not internal:
            self._check_room(request.producer_name)
        exclusive = request.access is ProducerAccess.EXCLUSIVE
        if not exclusive and not request.resume_epoch:
            self._roster.check_not_held(request.producer_name)
        if internal:
            return await self._open(request, exclusive)
        self._roster.arrive(request.producer_name)
        try:
            return await self._open(request, exclusive)
        except BaseException:
            self._roster.turn_back(request.producer_name)
            raise

    def _check_room(self, name: str) -> None:
        self._expire(self._clock_us())
        self._roster.check_room(name, self._policies)
        if self._table.session_of(name) is None:
            self._topic.check_states(f"producer {name!r} of topic {self._topic.name!r}")

    async def register(self, name: str) -> ProducerId:
        """Return the id of a producer that sends its messages one at a time; return when that is durable.

        A name keeps its id. No sender is fenced: any number of connections may send under one id.

        Raises:
            FailedPreconditionError: the topic has an exclusive producer.
            LimitExceededError: too many producers.
            DanubeError: the journal accepts nothing any more.
        """
        topic, table = self._topic, self._table
        await self._read_unread()
        await self._until_thawed()
        now_us = self._clock_us()
        topic.check_alive()
        self._check_room(name)
        self._roster.check_not_held()
        session, new = table.register(name, self._new_id(), now_us=now_us)
        registered = self._roster.registered
        registered[name] = None
        registration = self._registering.get(name)
        if new and not topic.lossy:
            registration = Settling()
            payload = table.entry_of(session, now_us).encode()
            entry = Entry(EntryType.PRODUCER, topic.topic_id, topic.durability, (payload,), registration)
            try:
                self._journal.submit(entry)
            except DanubeError:
                table.forget(session.producer_id)
                del registered[name]
                raise
            self._registering[name] = registration
        if registration is not None:
            await registration.wait()
            self._registering.pop(name, None)
            registered[name] = None
        return session.producer_id

    def seen(self, producer_id: ProducerId) -> str:
        """Mark a registered producer as active, and return its name; empty if it is not known."""
        name = self._table.seen(producer_id, self._clock_us())
        if name and name not in self._roster.registered:
            self._roster.registered[name] = None  # registered before the broker was restarted
        return name

    async def _open(self, request: api.PublishOpen, exclusive: bool) -> ProducerSession:
        await self._until_thawed()  # what is opened now would be unknown to the broker that gets the topic
        topic, table, now_us = self._topic, self._table, self._clock_us()
        self._expire(now_us)
        name = request.producer_name
        known, resumed = table.session_of(name), request.resume_epoch
        if resumed and known is None and topic.lossy:
            # Nothing of a topic that stores nothing survives its owner; its sessions go on with the next one.
            resumed = NO_PRODUCER_EPOCH
            self._roster.check_not_held(name)
        if resumed:
            if known is None:
                raise ProducerFencedError(
                    f"producer {name!r} of topic {topic.name!r} was idle too long and is forgotten; open it again"
                )
            session = table.resume(known.producer_id, resumed, now_us=now_us)
            if not topic.sessions_may_move:
                return session
            # Another machine may have taken the topic over and continued this very session. A broker that has not
            # learned of that must not report the state of the session, and cannot make it durable either.
            await self._write(session, now_us)
        else:
            session = table.open(name, self._new_id(), exclusive=exclusive, anonymous=request.anonymous, now_us=now_us)
            self._fence()
            if not topic.lossy:
                await self._write(session, now_us)
        # Batches in flight of an older session count as well: the next sequence is final only after they have settled.
        senders = self._roster.senders
        while not resumed and (pending := senders.get(name)) is not None and pending.in_flight:
            await self._commits.next_commit()
        latest = table.session_of(name)
        if latest is None or latest.epoch != session.epoch:
            raise ProducerFencedError(
                f"producer {name!r} of topic {topic.name!r} was opened again while it was being opened; use one"
                " session at a time under one name"
            )
        return latest

    async def _read_unread(self) -> None:
        """Learn from the history which batches were damaged in the journal: their producers have stored them."""
        log, table = self._topic.kept, self._table
        if table.unread is None:
            return
        async with self._reading:
            while (unread := table.unread) is not None:
                assert isinstance(log, TopicLog)
                low, high = unread
                offset = max(low, log.start_offset)
                try:
                    batches = await log.read(offset, _READ_BYTES) if offset < high else []
                except DataLossError as error:
                    raise DataLossError(
                        f"topic {self._topic.name!r}: what its producers have stored at offsets [{low}, {high}) is not"
                        f" known: these were damaged in the journal, and in the history, too: {error}; restore the"
                        " history from a copy, or delete the topic"
                    ) from error
                table.apply_batches(_produced(batches, high))
                table.note_read(batches[-1].end_offset if batches else high)  # kept if the caller is cancelled

    async def _write(self, session: ProducerSession, now_us: int) -> None:
        """Write a session; return when it is durable."""
        topic, opening = self._topic, Settling()
        payload = self._table.entry_of(session, now_us).encode()
        self._journal.submit(Entry(EntryType.PRODUCER, topic.topic_id, topic.durability, (payload,), opening))
        await opening.wait()

    def _fence(self) -> None:
        """End the senders whose sessions a new one has replaced."""
        for name, sender in self._roster.fenced():
            sender.end(
                ProducerFencedError(
                    f"producer {name!r} of topic {self._topic.name!r}: a newer session has taken over; this one"
                    " has ended"
                )
            )

    def _expire(self, now_us: int) -> None:
        """Forget idle producers."""
        if now_us - self._expired_us > _EXPIRY_INTERVAL_US:
            self._expired_us = now_us
            for name in self._roster.idle(now_us):
                del self._roster.registered[name]
                self._registering.pop(name, None)
            held, here = self._held_producers(), self._roster.attached_ids()
            self._table.expire(now_us, {each for each in self._table.ids() if each in here or each in held})

    def attach(self, sender: Sender, *, internal: bool = False) -> None:
        """Register a sender. A sender left over from a broken connection of the same session is ended.

        Args:
            sender: to register.
            internal: see :meth:`open`.

        Raises:
            TopicNotFoundError: the topic was deleted in the meantime.
        """
        self._roster.turn_back(sender.session.name)
        self._topic.check_not_deleted()
        old = self._roster.attach(sender, internal=internal)
        if old is not None:
            old.end(None)

    def detach(self, sender: Sender) -> None:
        """Detach a sender. No-op if it has been replaced."""
        self._roster.detach(sender)

    def end(self, error: DanubeError) -> None:
        """End all senders."""
        for sender in list(self._roster.senders.values()):
            sender.end(error)

    @property
    def producers(self) -> int:
        """Number of attached or registered producers."""
        roster = self._roster
        return len(roster.senders.keys() | roster.registered.keys()) if roster.registered else len(roster.senders)

    def infos(self) -> list[api.ProducerInfo]:
        """Return a description of each attached or registered producer."""
        return self._roster.infos()

    # --- Batches ---

    def said_max_message_bytes(self) -> str:
        """Return the limit on the size of messages, for error messages."""
        if self._policies.values.max_message_bytes == self.max_message_bytes:
            return self._policies.said("max_message_bytes")
        return f"limit max_message_bytes = {self.max_message_bytes}"

    def check_delivery_time(self, deliver_at_us: int) -> None:
        """Refuse an invalid delivery time.

        Raises:
            FailedPreconditionError: the topic stores no messages, and so cannot deliver them later.
            InvalidArgumentError: it is too far ahead.
        """
        topic = self._topic
        if topic.lossy:
            raise FailedPreconditionError(
                f"topic {topic.name!r} has durability 'none': it stores nothing, so nothing can be delivered later"
            )
        delay_s = (deliver_at_us - self._clock_us()) / 1e6
        if delay_s > self._limits.max_delivery_delay_s:
            raise InvalidArgumentError(
                f"batch for topic {topic.name!r} is to be delivered in {delay_s:.0f} s, limit max_delivery_delay_s ="
                f" {self._limits.max_delivery_delay_s:g}"
            )

    def try_admit(self, size: int) -> bool:
        """Whether a batch of ``size`` bytes may be taken now; it must be taken without an await in between.

        Raises:
            DataLossError: the topic stopped because stored data is damaged.
            TopicNotFoundError: it was deleted.
        """
        topic = self._topic
        topic.check_alive()
        if self._frozen is not None:
            return False
        if self._pace is not None and not self._pace.is_free:
            return False
        if self._shared is not None and not self._shared.is_free:
            return False
        if self._space is not None and not self._space.has(size):
            return False
        return topic.lossy or self._journal.try_admit(size)

    async def pay(self, records: int, size: int) -> None:
        """Wait for the publish rates of topic and namespace, and count a batch that will be taken later (``paid``).

        Raises:
            TopicNotFoundError, DataLossError: as :meth:`try_admit`.
            LimitExceededError: the namespace stores as much as its quota allows.
        """
        self._topic.check_alive()
        if self._space is not None:
            self._space.check(size)
        if self._pace is not None:
            await self._pace.pay(records, size)
        if self._shared is not None:
            await self._shared.pay(records, size)

    async def admit(self, size: int, *, paid: bool = False) -> None:
        """Wait until a batch of ``size`` bytes may be taken, by the publish rates and by the journal.

        Args:
            size: in bytes.
            paid: whether :meth:`pay` has counted it before, so that the rate does not count it again.

        Raises as :meth:`pay` and :meth:`danube.log.Journal.admit`.
        """
        while True:
            await self._until_thawed()
            await self._admit(size, paid=paid)
            if self._frozen is None:
                self._topic.check_alive()  # it may have moved away, or have been deleted, while this waited
                return

    async def _admit(self, size: int, *, paid: bool) -> None:
        if not paid and self._space is not None:
            self._space.check(size)
        if paid:
            self._topic.check_alive()
            await self._admit_by_journal(size)
            return
        if self.try_admit(size):
            return
        pace = self._pace
        if pace is None:
            await self._admit_in_namespace(size)
            return
        began = trio.current_time()
        async with pace.turn():
            while True:
                await pace.until_paid()
                self._figures.paused_s["publish_rate"] += trio.current_time() - began
                await self._admit_in_namespace(size)
                began = trio.current_time()
                if pace.is_paid:  # else the rate was changed during the wait
                    return

    async def _admit_in_namespace(self, size: int) -> None:
        """Wait for the journal, and for the pace of the namespace. Raises as :meth:`admit`."""
        topic = self._topic
        while True:
            topic.check_alive()
            if not topic.lossy:
                await self._admit_by_journal(size)
            shared = self._shared
            if shared is None or shared.is_free:
                return
            # Topics of one namespace may have different journals: while it is the turn of this one, others wait only
            # for the rate, never for its journal.
            began = trio.current_time()
            async with shared.turn():
                while not shared.is_paid:
                    await shared.until_paid()
                self._figures.paused_s["namespace_rate"] += trio.current_time() - began
                topic.check_alive()
                if topic.lossy or self._journal.try_admit(size):
                    return

    async def _admit_by_journal(self, size: int) -> None:
        began = trio.current_time()
        try:
            await self._journal.admit(size)
        finally:
            self._figures.paused_s["journal"] += trio.current_time() - began

    def note_refused(self, error: DanubeError, messages: int) -> None:
        """Count messages that do not reach their durability, because of an error that their sender gets."""
        self.refused_messages[error.code] = self.refused_messages.get(error.code, 0) + messages

    def is_repeat(self, header: BatchHeader) -> bool:
        """Whether a batch was taken before; then only :meth:`take` may answer it, whatever would be refused by now.

        A producer gives the sequence of a batch that was refused for good to its next one, and that must not be
        mistaken for a repeat of the first.

        Raises:
            ProducerFencedError, DuplicateSequenceError, SequenceGapError: as :meth:`take`.
        """
        return self._table.check(header).kind is not Verdict.NEW

    def take(
        self, sender: Sender, token: Any, part: bytes, header: BatchHeader, *, paid: bool = False
    ) -> Offset | None:
        """Take a batch that was admitted.

        Args:
            sender: of the batch; notified by :meth:`Sender.settled`, perhaps before this returns.
            token: passed to that call.
            part: the producer's part; its checksum is right, and it is within the limits.
            header: its header.
            paid: whether the publish rate has counted it before, see :meth:`pay`.

        Returns:
            None; or, for a repeat of a batch that has settled before, its offset, without a notification.

        Raises:
            ProducerFencedError, DuplicateSequenceError, SequenceGapError: see :meth:`danube.log.ProducerTable.check`.
            DanubeError: the journal accepts nothing any more.
        """
        checked = self._table.check(header)
        if checked.kind is not Verdict.NEW:
            self._figures.duplicates += header.record_count
        if checked.kind is Verdict.KNOWN:
            return checked.base_offset
        sender.in_flight += 1
        try:
            if checked.kind is Verdict.NEW:
                self._append(sender, token, part, header, paid=paid)
            else:
                self._wait_for(sender, token, checked)
        except DanubeError:
            sender.in_flight -= 1
            raise
        return None

    def compose(self, waiter: Waiter, token: Any, part: bytes, header: BatchHeader) -> None:
        """Take a composite batch that was admitted: it has no sequence, and belongs to no session.

        Args:
            waiter: notified of its outcome, perhaps before this returns.
            token, part, header: as in :meth:`take`.

        Raises:
            FailedPreconditionError: the topic has an exclusive producer.
            SchemaMismatchError: it names no schema of the topic's subject.
            DanubeError: the journal accepts nothing any more.
        """
        self._roster.check_not_held()
        self.check_schema(header)
        waiter.in_flight += 1
        try:
            self._append(waiter, token, part, header)
        except DanubeError:
            waiter.in_flight -= 1
            raise

    def _append(self, sender: Waiter, token: Any, part: bytes, header: BatchHeader, *, paid: bool = False) -> None:
        if not paid:
            if self._pace is not None:
                self._pace.take(header.record_count, len(part))
            if self._shared is not None:
                self._shared.take(header.record_count, len(part))
        if self._space is not None:
            self._space.take(len(part))
        self.accepted_bytes += len(part)
        now_us = self._clock_us()
        log = self._topic.kept
        if isinstance(log, MemoryLog):
            batch = log.append(part, header, now_us)
            self._note(header, batch, now_us)
            self._table.settled(batch)
            self.settled_messages += header.record_count
            self._topic.arrived(batch)
            sender.in_flight -= 1
            sender.settled(token, batch, None)
            self._commits.flush()
            return
        ticket = _Ticket(self, sender, token)
        batch = log.append(part, header, now_us, ticket)
        self._note(header, batch, now_us)
        self._pending[batch] = ticket

    def _note(self, header: BatchHeader, batch: StoredBatch, now_us: int) -> None:
        if not header.flags & BatchFlags.COMPOSITE:
            self._table.appended(header, batch, now_us)

    def _wait_for(self, sender: Sender, token: Any, checked: Checked) -> None:
        """Let the repeat of a batch that is in flight settle with its first copy."""
        assert checked.batch is not None
        ticket = self._pending[checked.batch]
        ticket.waiters = (*ticket.waiters, (sender, token))

    def settled(self, ticket: _Ticket, entry: Entry, error: DanubeError | None) -> None:
        """Journal: a batch has reached its durability: make it visible, and acknowledge it."""
        batch = entry.batch
        assert isinstance(batch, StoredBatch)
        del self._pending[batch]
        if error is None:
            log = self._topic.kept
            assert isinstance(log, TopicLog)
            log.settled(entry)
            self._table.settled(batch)
            self.settled_messages += batch.header.record_count
            if self._durations is not None:
                taken_us = self._figures.now_us - batch.append_time_us
                self._durations.observe(taken_us / 1e6 if taken_us > 0 else 0.0)  # the clock may be set meanwhile
            self._topic.arrived(batch)
        else:
            self.note_refused(error, batch.header.record_count)
        ticket.tell(batch, error)

    @property
    def is_settled(self) -> bool:
        """Whether no batch is in flight to the journal."""
        return not self._pending

    async def wait_settled(self) -> None:
        """Wait until the batches that are in flight to the journal now have settled."""
        waiting = list(self._pending)
        while any(batch in self._pending for batch in waiting):
            await self._commits.next_commit()


def _produced(batches: Iterable[StoredBatch], end: Offset) -> dict[ProducerId, list[ProducedBatch]]:
    """Return batches below an offset by producer; composite ones have many producers, and advance no sequence."""
    found: dict[ProducerId, list[ProducedBatch]] = {}
    for batch in batches:
        header = batch.header
        if batch.base_offset < end and not header.flags & BatchFlags.COMPOSITE:
            found.setdefault(header.producer_id, []).append(
                ProducedBatch(
                    header.producer_epoch,
                    header.base_sequence,
                    header.record_count,
                    batch.base_offset,
                    batch.append_time_us,
                )
            )
    return found
