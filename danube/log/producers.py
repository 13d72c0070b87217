"""Idempotent producers of one topic: sessions, epochs, sequences, and detection of duplicates. Pure.

* A *sequence* counts records. A batch names the sequence of its first record; the next one begins where it ended.
* An *epoch* is a number from one counter of the topic. Every open gets a new, higher one, and fences the sessions it
  replaces: the older session of the same name, and, if the new one is exclusive, every older session of the topic.
  Sequences continue across epochs, because they belong to the name.
* The last 64 batches of a producer are remembered. A repeat of one of them is answered with its offset; if it is
  not durable yet, the answer waits; an older one is refused as a duplicate; a gap is refused.

The state that must survive a restart is in the journal: a PRODUCER entry per open, and the batch headers themselves.

* The lowest bit of a producer's id is 1 if its name was generated for one session. So if a damaged journal has batches
  of a producer without a name, the bit tells whether that name may be used again. Until its state would have expired,
  an unknown name is then refused: it may be the lost one, and answering that it has stored nothing would make its
  producer store everything again. This is part of the snapshot, because the damage is removed with its file.
* Batches may be damaged in the journal and sealed, so that their topic is served. Their offsets are *unread* until the
  batches have been read from the history: a producer whose last batch is among them has stored more than the journal
  says. This is part of the snapshot for the same reason.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Container, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from danube.log.cache import StoredBatch
from danube.log.recovered import WINDOW_BATCHES, ProducedBatch
from danube.model.batch import BatchHeader
from danube.model.errors import DataLossError, DuplicateSequenceError, ProducerFencedError, SequenceGapError
from danube.model.ids import NO_PRODUCER_EPOCH, Offset, ProducerEpoch, ProducerId
from danube.model.limits import Limits

__all__ = ["Checked", "ProducerEntry", "ProducerSession", "ProducerTable", "Verdict"]

_US: Final = 1_000_000
_NO_OFFSET: Final = Offset(-1)


class Verdict(enum.Enum):
    """Result of checking a batch against its producer's sequence."""

    NEW = "new"
    """The next one: append it."""
    KNOWN = "known"
    """Stored before, at a known offset."""
    PENDING = "pending"
    """Appended before, and not settled yet."""


class Checked(NamedTuple):
    """A verdict and the batch it refers to."""

    kind: Verdict
    base_offset: Offset = _NO_OFFSET
    """Base offset of the first copy, for KNOWN and PENDING."""
    batch: StoredBatch | None = None
    """The first copy, for PENDING."""


_NEW: Final = Checked(Verdict.NEW)


class ProducerSession(NamedTuple):
    """The session that an open returns to a producer."""

    producer_id: ProducerId
    name: str
    epoch: ProducerEpoch
    next_sequence: int
    exclusive: bool
    anonymous: bool


class ProducerEntry(msgspec.Struct, array_like=True, frozen=True):
    """Payload of a PRODUCER journal entry (msgpack): one open."""

    producer_id: ProducerId
    name: str
    epoch: ProducerEpoch
    next_sequence: int
    exclusive: bool
    anonymous: bool
    time_us: int

    def encode(self) -> bytes:
        """Return the payload."""
        return _ENCODER.encode(self)


class _Known(msgspec.Struct, array_like=True):
    """A batch in a producer's window."""

    base_sequence: int
    record_count: int
    base_offset: Offset


class _Saved(msgspec.Struct, array_like=True):
    """A producer in a snapshot."""

    entry: ProducerEntry
    window: list[_Known]


class _Snapshot(msgspec.Struct, array_like=True):
    epoch: ProducerEpoch
    exclusive_epoch: ProducerEpoch
    producers: list[_Saved]
    names_lost_until_us: int = 0
    unread: list[tuple[Offset, Offset]] = []


_ENCODER: Final = msgspec.msgpack.Encoder()
_ENTRY: Final = msgspec.msgpack.Decoder(ProducerEntry)
_SNAPSHOT: Final = msgspec.msgpack.Decoder(_Snapshot)


class _Producer:
    """The state of one producer."""

    __slots__ = ("anonymous", "epoch", "exclusive", "name", "next_sequence", "producer_id", "used_us", "window")

    def __init__(self, producer_id: ProducerId, name: str, *, anonymous: bool) -> None:
        self.producer_id = producer_id
        self.name = name
        self.anonymous = anonymous
        self.epoch = NO_PRODUCER_EPOCH
        self.exclusive = False
        self.next_sequence = 0
        self.used_us = 0
        # Base sequence, record count, base offset, and the batch until it is settled.
        self.window: deque[tuple[int, int, Offset, StoredBatch | None]] = deque()

    def session(self) -> ProducerSession:
        return ProducerSession(
            self.producer_id, self.name, self.epoch, self.next_sequence, self.exclusive, self.anonymous
        )

    def entry(self) -> ProducerEntry:
        return ProducerEntry(
            self.producer_id,
            self.name,
            self.epoch,
            self.next_sequence,
            self.exclusive,
            self.anonymous,
            self.used_us,
        )

    def trim(self) -> None:
        window = self.window
        while len(window) > WINDOW_BATCHES and window[0][3] is None:
            window.popleft()


def _id_of_kind(new_id: int, *, anonymous: bool) -> ProducerId:
    """Return an id whose lowest bit says whether its producer is anonymous; 0 is not a valid id."""
    return ProducerId(new_id | 1 if anonymous else new_id & ~1 or 2)


class ProducerTable:
    """The producers of one topic. Times are microseconds since the epoch.

    Args:
        limits: ``producer_state_expiry_s`` and ``anonymous_producer_expiry_s`` are used.
        topic: its name, for error messages.
    """

    def __init__(self, limits: Limits, topic: str = "") -> None:
        self._limits = limits
        self._topic = topic
        self._by_id: dict[ProducerId, _Producer] = {}
        self._by_name: dict[str, _Producer] = {}
        self._epoch = self._exclusive_epoch = NO_PRODUCER_EPOCH
        self._names_lost_until_us = 0
        self._unread: list[tuple[Offset, Offset]] = []

    def __len__(self) -> int:
        return len(self._by_id)

    # --- Sessions ---

    def open(
        self, name: str, new_id: int, *, exclusive: bool = False, anonymous: bool = False, now_us: int
    ) -> ProducerSession:
        """Open a session; journal its :meth:`entry_of` before answering the producer.

        Args:
            name: of the producer.
            new_id: the producer id if the name is new, except for its lowest bit.
            exclusive: fence every other session of the topic.
            anonymous: the name was generated for this session, so its state expires soon.
            now_us: the time.

        Raises:
            DataLossError: the name is not known, and names were lost by damage.
        """
        producer = self._by_name.get(name)
        if producer is None:
            if now_us < self._names_lost_until_us and not anonymous:
                raise DataLossError(
                    f"whether producer {name!r} has stored anything in topic {self._topic!r} is not known: names of"
                    " producers were in a part of the journal that is damaged; restore it from a copy, send without a"
                    " producer name, or delete the topic"
                )
            producer = self._add(_id_of_kind(new_id, anonymous=anonymous), name, anonymous=anonymous)
        self._epoch = producer.epoch = ProducerEpoch(self._epoch + 1)
        producer.exclusive = exclusive
        producer.used_us = now_us
        if exclusive:
            self._exclusive_epoch = self._epoch
        return producer.session()

    def resume(self, producer_id: ProducerId, epoch: ProducerEpoch, *, now_us: int) -> ProducerSession:
        """Continue a session, for example after a lost connection.

        Raises:
            ProducerFencedError: it was replaced, or it expired.
        """
        producer = self._live(producer_id, epoch)
        producer.used_us = now_us
        return producer.session()

    def register(self, name: str, new_id: int, *, now_us: int) -> tuple[ProducerSession, bool]:
        """Return the latest session of a name, and whether it is new; a new one has epoch 0 and fences no other one.

        For producers without sequences. A new one must be journalled like one that was opened.
        """
        producer = self._by_name.get(name)
        new = producer is None
        if producer is None:
            producer = self._add(_id_of_kind(new_id, anonymous=False), name, anonymous=False)
        producer.used_us = now_us
        return producer.session(), new

    def seen(self, producer_id: ProducerId, now_us: int) -> str:
        """Note that a producer is in use, and return its name; empty if its state has expired."""
        producer = self._by_id.get(producer_id)
        if producer is None:
            return ""
        producer.used_us = now_us
        return producer.name

    def forget(self, producer_id: ProducerId) -> None:
        """Remove a producer whose registration has failed."""
        producer = self._by_id.pop(producer_id, None)
        if producer is not None:
            self._by_name.pop(producer.name, None)

    def used_us(self, name: str) -> int:
        """Return when a producer was last in use; 0 if its state has expired."""
        producer = self._by_name.get(name)
        return producer.used_us if producer is not None else 0

    def ids(self) -> Iterable[ProducerId]:
        """Return the ids of all known producers."""
        return self._by_id

    def entry_of(self, session: ProducerSession, now_us: int) -> ProducerEntry:
        """Return the PRODUCER entry that makes a session durable."""
        return ProducerEntry(*session[:3], session.next_sequence, session.exclusive, session.anonymous, now_us)

    def session_of(self, name: str) -> ProducerSession | None:
        """Return the latest session of a name."""
        producer = self._by_name.get(name)
        return producer.session() if producer is not None else None

    def name_of(self, producer_id: ProducerId) -> str:
        """Return the name of a producer; empty if its state has expired."""
        producer = self._by_id.get(producer_id)
        return producer.name if producer is not None else ""

    def is_fenced(self, session: ProducerSession) -> bool:
        """Return whether a newer session has taken over."""
        producer = self._by_id.get(session.producer_id)
        return producer is None or producer.epoch != session.epoch or session.epoch < self._exclusive_epoch

    # --- Batches ---

    def check(self, header: BatchHeader) -> Checked:
        """Classify a batch. A NEW one must be appended, and passed to :meth:`appended`, before the next call.

        Raises:
            ProducerFencedError: its session was replaced.
            DuplicateSequenceError: stored before, and no longer (or never in this form) remembered.
            SequenceGapError: batches before it are missing.
        """
        producer = self._live(header.producer_id, header.producer_epoch)
        sequence = header.base_sequence
        if sequence == producer.next_sequence:
            return _NEW
        if sequence > producer.next_sequence:
            raise SequenceGapError(
                f"producer {self._shown(producer)}: batch at sequence {sequence}, but the next is "
                f"{producer.next_sequence}; send what is missing first"
            )
        for base_sequence, count, base_offset, batch in reversed(producer.window):
            if base_sequence == sequence and count == header.record_count:
                return Checked(Verdict.PENDING if batch is not None else Verdict.KNOWN, base_offset, batch)
        raise DuplicateSequenceError(
            f"producer {self._shown(producer)}: sequence {sequence} was stored before (the next is "
            f"{producer.next_sequence}), and its offset is no longer known; do not send it again"
        )

    def appended(self, header: BatchHeader, batch: StoredBatch, now_us: int) -> None:
        """Add a new batch that is on its way to the journal."""
        producer = self._by_id[header.producer_id]
        assert header.base_sequence == producer.next_sequence
        producer.next_sequence += header.record_count
        producer.used_us = now_us
        producer.window.append((header.base_sequence, header.record_count, batch.base_offset, batch))
        if len(producer.window) > WINDOW_BATCHES:
            producer.trim()

    def settled(self, batch: StoredBatch) -> None:
        """Note that a batch has reached its durability."""
        producer = self._by_id.get(batch.header.producer_id)
        if producer is None:
            return
        window = producer.window
        for index in range(len(window) - 1, -1, -1):  # unsettled batches are at the end
            base_sequence, count, base_offset, pending = window[index]
            if pending is batch:
                window[index] = (base_sequence, count, base_offset, None)
                break
        producer.trim()

    # --- Expiry ---

    def expire(self, now_us: int, connected: Container[ProducerId] = ()) -> list[ProducerId]:
        """Remove producers that were idle too long, except connected ones; return their ids."""
        gone = []
        for producer in list(self._by_id.values()):
            limits = self._limits
            expiry_s = limits.anonymous_producer_expiry_s if producer.anonymous else limits.producer_state_expiry_s
            idle = now_us - producer.used_us > expiry_s * _US
            if idle and producer.producer_id not in connected and not any(item[3] for item in producer.window):
                del self._by_id[producer.producer_id]
                if self._by_name.get(producer.name) is producer:
                    del self._by_name[producer.name]
                gone.append(producer.producer_id)
        return gone

    # --- Restart ---

    def snapshot(self) -> bytes:
        """Return the settled state, for :meth:`restore`."""
        saved = []
        for producer in self._by_id.values():
            settled = [_Known(*item[:3]) for item in producer.window if item[3] is None]
            entry = producer.entry()
            pending = next((item for item in producer.window if item[3] is not None), None)
            if pending is not None:
                entry = msgspec.structs.replace(entry, next_sequence=pending[0])
            saved.append(_Saved(entry, settled))
        return _ENCODER.encode(
            _Snapshot(self._epoch, self._exclusive_epoch, saved, self._names_lost_until_us, self._unread)
        )

    def restore(self, snapshot: bytes) -> None:
        """Apply a snapshot; later entries and batches of the journal are applied after it. Idempotent."""
        data = _SNAPSHOT.decode(snapshot)
        self._epoch = max(self._epoch, data.epoch)
        self._exclusive_epoch = max(self._exclusive_epoch, data.exclusive_epoch)
        self._names_lost_until_us = max(self._names_lost_until_us, data.names_lost_until_us)
        for low, high in data.unread:
            self.note_unread(low, high)
        for saved in data.producers:
            self._take(saved.entry)
            producer = self._by_id[saved.entry.producer_id]
            known = {item[2] for item in producer.window}  # of an older snapshot
            producer.window.extend(
                (item.base_sequence, item.record_count, item.base_offset, None)
                for item in saved.window
                if item.base_offset not in known
            )
            if known:
                producer.window = deque(sorted(producer.window, key=lambda item: item[2]))
                producer.trim()

    def apply_entry(self, payload: bytes) -> None:
        """Apply a PRODUCER entry found by recovery."""
        self._take(_ENTRY.decode(payload))

    def apply_batches(self, producers: Mapping[ProducerId, Iterable[ProducedBatch]]) -> None:
        """Apply the batches found by recovery (``RecoveredTopic.producers``), after all entries."""
        for producer_id, batches in producers.items():
            producer = self._by_id.get(producer_id)
            if producer is None:
                # Its open has expired: an old anonymous producer. It may still retry its last batches.
                producer = self._add(producer_id, "", anonymous=True)
            for batch in batches:
                self._epoch = max(self._epoch, batch.producer_epoch)
                producer.epoch = max(producer.epoch, batch.producer_epoch)
                producer.used_us = max(producer.used_us, batch.append_time_us)
                known = any(item[2] == batch.base_offset for item in producer.window)
                if not known:
                    producer.window.append((batch.base_sequence, batch.record_count, batch.base_offset, None))
                producer.next_sequence = max(producer.next_sequence, batch.base_sequence + batch.record_count)
            producer.window = deque(sorted(producer.window, key=lambda item: item[2]))
            producer.trim()

    @property
    def unread(self) -> tuple[Offset, Offset] | None:
        """``[from, to)`` offsets to be read from the history before sessions are opened; None if there are none."""
        return self._unread[0] if self._unread else None

    def note_unread(self, low: Offset, high: Offset) -> None:
        """Note offsets whose batches are damaged in the journal and sealed; see :attr:`unread`."""
        if not any(start <= low and high <= end for start, end in self._unread):
            self._unread.append((low, high))

    def note_read(self, end: Offset) -> None:
        """Remove the offsets of :attr:`unread` below ``end``: :meth:`apply_batches` was called with their batches."""
        low, high = self._unread[0]
        if end < high:
            self._unread[0] = (max(low, end), high)
        else:
            del self._unread[0]
            self.note_lost_names()

    def note_lost_names(self) -> int:
        """After damage to the journal before its end, determine whether producer names were lost, and how many.

        To be called after :meth:`apply_batches`. A name is remembered for ``producer_state_expiry_s``
        after its last batch; a producer without one was anonymous, or idle for longer, or its name is lost.
        """
        lost = [each.used_us for each in self._by_id.values() if not each.name and not each.producer_id & 1]
        if lost:
            until_us = max(lost) + int(self._limits.producer_state_expiry_s * _US)
            self._names_lost_until_us = max(self._names_lost_until_us, until_us)
        return len(lost)

    def _take(self, entry: ProducerEntry) -> None:
        producer = self._by_id.get(entry.producer_id)
        if producer is None:
            producer = self._add(entry.producer_id, entry.name, anonymous=entry.anonymous)
        self._epoch = max(self._epoch, entry.epoch)
        if entry.exclusive:
            self._exclusive_epoch = max(self._exclusive_epoch, entry.epoch)
        if entry.epoch >= producer.epoch:
            producer.epoch = entry.epoch
            producer.exclusive = entry.exclusive
        producer.next_sequence = max(producer.next_sequence, entry.next_sequence)
        producer.used_us = max(producer.used_us, entry.time_us)

    # --- Internal ---

    def _add(self, producer_id: ProducerId, name: str, *, anonymous: bool) -> _Producer:
        producer = self._by_id[producer_id] = _Producer(producer_id, name, anonymous=anonymous)
        if name:
            self._by_name[name] = producer
        return producer

    def _live(self, producer_id: ProducerId, epoch: ProducerEpoch) -> _Producer:
        producer = self._by_id.get(producer_id)
        if producer is None:
            raise ProducerFencedError(
                f"producer {producer_id:016x} of topic {self._topic!r} is unknown or was idle too long; open it again"
            )
        if producer.epoch != epoch:
            raise ProducerFencedError(
                f"producer {self._shown(producer)}: epoch {epoch} was replaced by epoch {producer.epoch}; another"
                " session of this name has taken over"
            )
        if epoch < self._exclusive_epoch:
            raise ProducerFencedError(
                f"producer {self._shown(producer)}: an exclusive producer has taken over topic {self._topic!r}; open"
                " again when it has gone"
            )
        return producer

    def _shown(self, producer: _Producer) -> str:
        return f"{producer.name or format(producer.producer_id, '016x')!r} of topic {self._topic!r}"
