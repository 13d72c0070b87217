"""Producer sessions against a model, and through restarts."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from danube.log import ProducedBatch, ProducerSession, ProducerTable, StoredBatch, Verdict
from danube.model import BatchHeader, Limits
from danube.model.batch import encode_part, read_header
from danube.model.errors import DataLossError, DuplicateSequenceError, ProducerFencedError, SequenceGapError

NAMES = ["ann", "bob", ""]


def header_of(session: ProducerSession, sequence: int, count: int) -> BatchHeader:
    part = encode_part(
        [b""] * count,
        producer_id=session.producer_id,
        producer_epoch=session.epoch,
        base_sequence=sequence,
        publish_time_us=1,
    )
    return read_header(part)


def stored(header: BatchHeader, base: int) -> StoredBatch:
    return StoredBatch(base, base + header.record_count, b"", b"", header, 0)


class ProducerMachine(RuleBasedStateMachine):
    """The model: all batches ever taken of each producer, and the sessions by age."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ProducerTable(Limits(), "/default/t")
        self.sessions: list[ProducerSession] = []
        self.taken: dict[int, list[tuple[int, int, int]]] = {}
        self.pending: list[StoredBatch] = []
        self.entries: list[bytes] = []
        self.offset = 0
        self.next_id = 100
        self.now = 1

    def fenced(self, session: ProducerSession) -> bool:
        newer = [other for other in self.sessions if other.epoch > session.epoch]
        return any(other.exclusive or other.producer_id == session.producer_id for other in newer)

    def next_sequence(self, producer_id: int) -> int:
        taken = self.taken.get(producer_id)
        return taken[-1][0] + taken[-1][1] if taken else 0

    @rule(name=st.sampled_from(NAMES), exclusive=st.booleans())
    def open(self, name: str, exclusive: bool) -> None:
        self.next_id += 2
        anonymous = not name
        session = self.table.open(
            name or f"made-up-{self.next_id}",
            self.next_id,
            exclusive=exclusive and name == "ann",
            anonymous=anonymous,
            now_us=self.now,
        )
        assert all(session.epoch > other.epoch for other in self.sessions)
        assert session.next_sequence == self.next_sequence(session.producer_id)
        assert session.anonymous == anonymous
        self.sessions.append(session)
        self.entries.append(self.table.entry_of(session, self.now).encode())

    @rule(data=st.data(), count=st.integers(1, 3), back=st.integers(-2, 90))
    def send(self, data: st.DataObject, count: int, back: int) -> None:
        if not self.sessions:
            return
        session = data.draw(st.sampled_from(self.sessions[-4:]))
        taken = self.taken.setdefault(session.producer_id, [])
        expected = self.next_sequence(session.producer_id)
        repeat = taken[-back] if 0 < back <= len(taken) else None
        sequence = expected - min(back, 0) if repeat is None else repeat[0]
        header = header_of(session, sequence, count if repeat is None else repeat[1])
        if self.fenced(session):
            with pytest.raises(ProducerFencedError):
                self.table.check(header)
        elif repeat is not None:
            waiting = [batch for batch in self.pending if batch.base_offset == repeat[2]]
            if back > 64 and not waiting:
                with pytest.raises(DuplicateSequenceError):
                    self.table.check(header)
                return
            verdict = self.table.check(header)
            assert verdict.base_offset == repeat[2]
            assert verdict.kind is (Verdict.PENDING if waiting else Verdict.KNOWN)
            assert verdict.batch is (waiting[0] if waiting else None)
        elif sequence > expected:
            with pytest.raises(SequenceGapError):
                self.table.check(header)
        else:
            for _ in range(data.draw(st.sampled_from([1, 1, 30]))):
                header = header_of(session, self.next_sequence(session.producer_id), count)
                assert self.table.check(header).kind is Verdict.NEW
                batch = stored(header, self.offset)
                self.table.appended(header, batch, self.now)
                taken.append((header.base_sequence, count, self.offset))
                self.pending.append(batch)
                self.offset += count

    @rule(share=st.integers(1, 40))
    def settle(self, share: int) -> None:
        done, self.pending = self.pending[:share], self.pending[share:]
        for batch in done:
            self.table.settled(batch)

    @rule(from_snapshot=st.booleans())
    def restart(self, from_snapshot: bool) -> None:
        """Everything settles, and the table is rebuilt from a snapshot, or from entries and batches."""
        self.settle(len(self.pending))
        snapshot = self.table.snapshot()
        self.table = ProducerTable(Limits(), "/default/t")
        if from_snapshot:
            self.table.restore(snapshot)
        for entry in self.entries:
            self.table.apply_entry(entry)
        epochs = {session.producer_id: session.epoch for session in self.sessions}
        self.table.apply_batches(
            {
                producer_id: [ProducedBatch(epochs[producer_id], *item, self.now) for item in taken[-64:]]
                for producer_id, taken in self.taken.items()
            }
        )

    @invariant()
    def sessions_agree(self) -> None:
        for session in self.sessions[-4:]:
            assert self.table.is_fenced(session) == self.fenced(session)
            assert self.table.name_of(session.producer_id) == session.name


ProducerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestProducers = ProducerMachine.TestCase


def test_resume_continues_a_session_that_is_still_the_latest() -> None:
    table = ProducerTable(Limits())
    first = table.open("ann", 4, now_us=0)
    assert table.resume(4, first.epoch, now_us=5) == first
    second = table.open("ann", 2, now_us=6)
    assert second.producer_id == 4
    with pytest.raises(ProducerFencedError, match="replaced"):
        table.resume(4, first.epoch, now_us=7)
    with pytest.raises(ProducerFencedError, match="unknown"):
        table.resume(99, 1, now_us=7)


def test_idle_producers_expire_by_their_kind_unless_connected() -> None:
    limits = Limits(producer_state_expiry_s=100.0, anonymous_producer_expiry_s=10.0)
    table = ProducerTable(limits)
    named = table.open("ann", 4, now_us=0)
    table.open("made-up-5", 5, anonymous=True, now_us=0)
    table.open("made-up-7", 7, anonymous=True, now_us=0)
    assert table.expire(11_000_000, connected={7}) == [5]
    assert table.session_of("ann") == named
    assert sorted(table.expire(101_000_000)) == [4, 7]
    assert table.session_of("ann") is None
    assert table.open("ann", 8, now_us=0).epoch > named.epoch


def test_a_pending_batch_is_not_in_the_snapshot() -> None:
    table = ProducerTable(Limits())
    session = table.open("ann", 1, now_us=0)
    first, second = header_of(session, 0, 2), header_of(session, 2, 3)
    settled = stored(first, 0)
    table.appended(first, settled, 0)
    table.settled(settled)
    table.appended(second, stored(second, 2), 0)
    restored = ProducerTable(Limits())
    restored.restore(table.snapshot())
    assert restored.check(first).kind is Verdict.KNOWN
    assert restored.check(second).kind is Verdict.NEW


def test_registering_assigns_an_id_to_a_name_and_fences_no_session() -> None:
    table = ProducerTable(Limits())
    session, new = table.register("a", 50, now_us=1)
    assert (session.producer_id, session.epoch, new) == (50, 0, True)
    again, new = table.register("a", 60, now_us=2)
    assert (again.producer_id, new) == (50, False)
    opened = table.open("b", 70, now_us=3)
    registered, new = table.register("b", 80, now_us=4)
    assert (registered, new) == (opened, False)
    assert not table.is_fenced(opened)
    assert list(table.ids()) == [50, 70]


def test_a_registered_producer_outlives_a_restart_and_may_be_opened_later() -> None:
    table = ProducerTable(Limits())
    session, _ = table.register("a", 50, now_us=1)
    entry = table.entry_of(session, 1).encode()
    for restored in (ProducerTable(Limits()), ProducerTable(Limits())):
        restored.apply_entry(entry)
        assert restored.seen(50, 2) == "a"
        opened = restored.open("a", 90, now_us=3)
        assert (opened.producer_id, opened.epoch, opened.next_sequence) == (50, 1, 0)
    copy = ProducerTable(Limits())
    copy.restore(table.snapshot())
    assert copy.register("a", 60, now_us=4) == (session, False)


def test_signs_of_life_keep_a_producer_from_being_forgotten() -> None:
    table = ProducerTable(Limits(producer_state_expiry_s=1.0))
    table.register("a", 50, now_us=0)
    table.register("b", 60, now_us=0)
    assert table.seen(50, 900_000) == "a"
    assert table.expire(1_500_000) == [60]
    assert (table.seen(60, 1_500_000), table.used_us("b"), table.used_us("a")) == ("", 0, 900_000)
    table.forget(50)
    assert table.expire(10**9) == []
    assert table.seen(50, 10**9) == ""


def test_names_that_were_lost_with_damage_are_not_taken_for_new() -> None:
    """A producer was told that it had stored nothing, and stored everything again."""
    limits = Limits(producer_state_expiry_s=100.0)
    table = ProducerTable(limits, "/default/t")
    known, lost = table.open("bob", 1000, now_us=1), table.open("ann", 1010, now_us=1)
    made_up = table.open("made-up", 1020, anonymous=True, now_us=1)
    second_us = 1_000_000
    batches = {each.producer_id: [ProducedBatch(1, 0, 5, 0, second_us)] for each in (known, lost, made_up)}

    def recover(*entries: bytes) -> ProducerTable:
        recovered = ProducerTable(limits, "/default/t")
        for entry in entries:
            recovered.apply_entry(entry)
        recovered.apply_batches(batches)
        return recovered

    forgotten = recover(table.entry_of(known, 1).encode(), table.entry_of(lost, 1).encode())
    assert forgotten.note_lost_names() == 0  # a name that was made up does not come back
    forgotten.open("carl", 1030, now_us=2 * second_us)
    damaged = recover(table.entry_of(known, 1).encode(), table.entry_of(made_up, 1).encode())
    assert damaged.note_lost_names() == 1
    later = ProducerTable(limits, "/default/t")
    later.restore(damaged.snapshot())  # the file with the damage may be gone by then
    for each in (damaged, later):
        for name in ("ann", "carl"):
            with pytest.raises(DataLossError, match="has stored anything in topic"):
                each.open(name, 1030, now_us=2 * second_us)
        assert each.open("bob", 1030, now_us=2 * second_us).next_sequence == 5
        each.open("made-up-again", 1040, anonymous=True, now_us=2 * second_us)
        each.open("ann", 1050, now_us=102 * second_us)  # it would be unknown otherwise
