"""The batch and sequence state machine, alone and against a model of the broker."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from danube.client._outbox import RECORD_OVERHEAD, Budget, OutBatch, Outbox, Verdict, record_size
from danube.model import api
from danube.model.batch import PART_OVERHEAD, Codec, Record, check_part, encode_records, open_records, read_header
from danube.model.errors import (
    DanubeError,
    DuplicateSequenceError,
    InvalidArgumentError,
    JournalFullError,
    MessageTooLargeError,
    OwnerFencedError,
    ProducerFencedError,
    ProtocolError,
    SequenceGapError,
)
from danube.model.policies import Durability

MAX_BATCH = 4_000


def opened(producer_id: int = 7, epoch: int = 1, next_sequence: int = 0) -> api.PublishOpened:
    return api.PublishOpened(1, producer_id, epoch, next_sequence, Durability.DISK, MAX_BATCH, 3_000)


def make(**options: int) -> Outbox:
    defaults = {"batch_max_bytes": 1_000, "batch_max_messages": 10, "max_in_flight": 3}
    return Outbox(Budget(100_000), **defaults | options)


def parts(outbox: Outbox) -> list[bytes]:
    found = []
    while (part := outbox.next_part(5)) is not None:
        found.append(part)
    return found


def payloads(part: bytes) -> list[bytes]:
    return [r.payload if isinstance(r, Record) else r for r in open_records(part, check_part(part), 2**20)]


def ack(batch: OutBatch, base_offset: int) -> api.AckedSequence:
    return api.AckedSequence(batch.base_sequence, base_offset, batch.count)


def test_first_message_leaves_at_once_and_the_rest_gathers() -> None:
    outbox = make(max_in_flight=1)
    outbox.opened(opened())
    outbox.add(b"a", 9)
    assert [payloads(p) for p in parts(outbox)] == [[b"a"]]
    for text in (b"b", b"c", b"d"):
        outbox.add(text, 9)
    assert parts(outbox) == []
    assert outbox.acked([ack(outbox.flight[0], 40)]) is Verdict.GO_ON
    assert [payloads(p) for p in parts(outbox)] == [[b"b", b"c", b"d"]]
    assert outbox.flight[0].base_sequence == 1


def test_batches_are_cut_by_bytes_and_by_messages() -> None:
    outbox = make(max_in_flight=100)
    outbox.opened(opened())
    for _ in range(12):
        outbox.add(b"x", 9)
    for _ in range(3):
        outbox.add(b"y" * 392, 400)
    assert [len(payloads(p)) for p in parts(outbox)] == [10, 4, 1]


def test_mixed_kinds_share_a_batch() -> None:
    outbox = make()
    outbox.opened(opened())
    outbox.add(b"plain", 20)
    outbox.add(Record(b"keyed", b"k", {"a": "1"}), 40)
    (part,) = parts(outbox)
    assert open_records(part, check_part(part), 2**20) == [Record(b"plain"), Record(b"keyed", b"k", {"a": "1"})]


def test_encoded_batches_keep_their_place() -> None:
    outbox = make(max_in_flight=5)
    outbox.opened(opened())
    outbox.add(b"first", 20)
    outbox.add_encoded(b"\x92\xc4\x01a\xc4\x01b", 2)
    outbox.add(b"last", 20)
    found = parts(outbox)
    assert [payloads(p) for p in found] == [[b"first"], [b"a", b"b"], [b"last"]]
    assert [read_header(p).deliver_at_us for p in found] == [0, 0, 0]
    assert outbox.next_sequence == 4


def test_a_new_stream_sends_identical_bytes_again() -> None:
    outbox = make()
    outbox.opened(opened())
    outbox.add(b"a", 9)
    outbox.add_encoded(b"\x91\xc4\x01b", 1)
    first = parts(outbox)
    outbox.lost()
    outbox.add(b"c", 9)
    assert parts(outbox) == []
    outbox.opened(opened(next_sequence=2))
    assert parts(outbox)[:2] == first


def test_a_broker_that_remembers_less_gets_lower_sequences() -> None:
    outbox = make()
    outbox.opened(opened(next_sequence=100))
    outbox.add(b"a", 9)
    (first,) = parts(outbox)
    assert check_part(first).base_sequence == 100
    outbox.lost()
    outbox.opened(opened(producer_id=9, epoch=4, next_sequence=0))
    (again,) = parts(outbox)
    header = check_part(again)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 4, 0)
    assert payloads(again) == [b"a"]


def test_a_batch_refused_for_good_fails_alone() -> None:
    outbox = make()
    outbox.opened(opened())
    batches = [outbox.add_encoded(b"\x91\xc4\x01" + name, 1) for name in (b"a", b"b", b"c")]
    parts(outbox)
    assert outbox.refused(1, InvalidArgumentError("no")) is Verdict.GO_ON
    assert outbox.refused(2, SequenceGapError("gap")) is Verdict.GO_ON
    assert parts(outbox) == []
    outbox.acked([ack(batches[0], 50)])
    assert isinstance(batches[1].error, InvalidArgumentError)
    assert isinstance(outbox.unreported, InvalidArgumentError)
    (again,) = parts(outbox)
    assert check_part(again).base_sequence == 1
    assert payloads(again) == [b"c"]
    outbox.acked([ack(batches[2], 51)])
    assert (batches[2].base_offset, batches[2].error) == (51, None)


def test_a_batch_refused_for_the_time_being_is_sent_again() -> None:
    outbox = make()
    outbox.opened(opened())
    outbox.add_encoded(b"\x91\xc4\x01a", 1)
    outbox.add_encoded(b"\x91\xc4\x01b", 1)
    first = parts(outbox)
    assert outbox.refused(0, JournalFullError("full")) is Verdict.GO_ON
    assert outbox.refused(1, SequenceGapError("gap")) is Verdict.RETRY_LATER
    assert parts(outbox) == []
    outbox.resume()
    assert parts(outbox) == first


def test_verdicts_of_other_refusals() -> None:
    outbox = make()
    outbox.opened(opened())
    outbox.add_encoded(b"\x91\xc4\x01a", 1)
    parts(outbox)
    assert outbox.refused(0, SequenceGapError("gap")) is Verdict.REOPEN
    outbox.opened(opened())
    parts(outbox)
    assert outbox.refused(0, ProducerFencedError("gone")) is Verdict.FENCED
    assert outbox.refused(0, DuplicateSequenceError("old")) is Verdict.GO_ON
    assert outbox.idle
    assert outbox.budget.used == 0


def test_answers_to_batches_that_were_not_sent_are_protocol_errors() -> None:
    outbox = make()
    outbox.opened(opened())
    with pytest.raises(ProtocolError, match="not in flight"):
        outbox.acked([api.AckedSequence(0, 0, 1)])
    outbox.add(b"a", 9)
    parts(outbox)
    with pytest.raises(ProtocolError, match="2 records"):
        outbox.acked([api.AckedSequence(0, 0, 2)])


def test_a_part_beyond_the_brokers_limit_fails_alone() -> None:
    outbox = make(batch_max_bytes=3_500)
    outbox.opened(opened())
    batch, _ = outbox.add(Record(b"x", "é".encode() * 3_000), 10)
    outbox.add_encoded(b"\x91\xc4\x01b", 1)
    assert [payloads(p) for p in parts(outbox)] == [[b"b"]]
    assert isinstance(batch.error, MessageTooLargeError)
    assert outbox.next_sequence == 1


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compressed_batches_survive_renumbering(codec: Codec) -> None:
    outbox = Outbox(Budget(10**6), codec=codec, batch_max_bytes=3_000, batch_max_messages=10, max_in_flight=2)
    outbox.opened(opened())
    outbox.add(b"a" * 2_000, 2_010)
    (part,) = parts(outbox)
    assert len(part) < 500
    outbox.lost()
    outbox.opened(opened(epoch=2, next_sequence=0))
    (again,) = parts(outbox)
    assert payloads(again) == [b"a" * 2_000]
    assert check_part(again).producer_epoch == 2


class ModelBroker:
    """Stores what continues the sequence; answers late, refuses at times, loses streams."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.offsets: dict[int, tuple[int, int, bytes]] = {}
        self.next_sequence = 0
        self.inbox: deque[bytes] = deque()
        self.answers: deque[api.AckedSequence | tuple[int, DanubeError]] = deque()

    def handle(self, part: bytes, refusal: DanubeError | None) -> None:
        header = check_part(part)
        base = header.base_sequence
        if isinstance(refusal, OwnerFencedError):
            if base == self.next_sequence:
                self._store(part)  # the outcome is not known there, and this is the bad one
            self.answers.append((base, refusal))
        elif base in self.offsets:
            offset, count, first = self.offsets[base]
            assert first == part, "a retry must carry identical bytes"
            self.answers.append(api.AckedSequence(base, offset, count))
        elif base != self.next_sequence:
            self.answers.append((base, SequenceGapError("gap")))
        elif refusal is not None:
            self.answers.append((base, refusal))
        else:
            self.answers.append(api.AckedSequence(base, len(self.stored), header.record_count))
            self._store(part)

    def _store(self, part: bytes) -> None:
        header = check_part(part)
        self.offsets[header.base_sequence] = (len(self.stored), header.record_count, part)
        self.stored.extend(payloads(part))
        self.next_sequence += header.record_count


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5)),
        st.tuples(st.just("encoded"), st.integers(1, 5)),
        st.tuples(st.sampled_from(["pump", "store", "answer", "cut"]), st.just(0)),
        st.tuples(st.sampled_from(["full", "invalid", "fenced"]), st.just(0)),
    ),
    max_size=80,
)

REFUSALS = {
    "full": JournalFullError("full"),
    "invalid": InvalidArgumentError("no"),
    "fenced": OwnerFencedError("another broker has taken over"),
}


@settings(deadline=None, max_examples=300)
@given(STEPS)
def test_every_message_is_stored_once_in_order_or_fails(steps: list[tuple[str, int]]) -> None:
    outbox = make(max_in_flight=3, batch_max_messages=4)
    broker = ModelBroker()
    outbox.opened(opened())
    accepted: list[tuple[OutBatch, int, bytes]] = []
    paused = False

    def add(count: int) -> None:
        for _ in range(count):
            payload = b"%d" % len(accepted)
            accepted.append((*outbox.add(payload, 10), payload))

    def add_encoded(count: int) -> None:
        names = [b"%d" % (len(accepted) + index) for index in range(count)]
        batch = outbox.add_encoded(
            bytes([0x90 + count]) + b"".join(b"\xc4" + bytes([len(n)]) + n for n in names), count
        )
        accepted.extend((batch, index, name) for index, name in enumerate(names))

    def pump() -> None:
        broker.inbox.extend(parts(outbox))

    def answer() -> None:
        nonlocal paused
        if not broker.answers:
            return
        reply = broker.answers.popleft()
        verdict = outbox.refused(*reply) if isinstance(reply, tuple) else outbox.acked([reply])
        assert verdict in (Verdict.GO_ON, Verdict.RETRY_LATER)
        if verdict is Verdict.RETRY_LATER:
            paused = True

    def cut() -> None:
        nonlocal paused
        broker.inbox.clear()
        broker.answers.clear()
        outbox.lost()
        outbox.opened(opened(next_sequence=broker.next_sequence))
        paused = False

    def store(refusal: DanubeError | None) -> None:
        if broker.inbox:
            broker.handle(broker.inbox.popleft(), refusal)

    for step, count in steps:
        if step == "add":
            add(count)
        elif step == "encoded":
            add_encoded(count)
        elif step == "pump":
            pump()
        elif step == "answer":
            answer()
        elif step == "cut":
            cut()
        else:
            store(REFUSALS.get(step))
        if paused and not broker.answers:
            outbox.resume()
            paused = False
        assert len(outbox.flight) <= 3

    for _ in range(1_000):
        if not outbox.unsettled():
            break
        pump()
        store(None)
        answer()
        if paused:
            outbox.resume()
            paused = False
    assert not outbox.unsettled()
    assert outbox.budget.used == 0
    expected = [payload for batch, _, payload in accepted if batch.error is None]
    assert broker.stored == expected
    for batch, index, payload in accepted:
        if batch.error is None:
            assert broker.stored[batch.base_offset + index] == payload


def test_delayed_messages_travel_by_the_time_they_are_due() -> None:
    outbox = make()
    places = [
        outbox.add(b"now-0", 10),
        outbox.extend([b"five-0"], 10, plain=True, deliver_at_us=5),
        outbox.extend([b"five-1"], 10, plain=True, deliver_at_us=5),
        outbox.extend([Record(b"six-0", b"k")], 10, plain=False, deliver_at_us=6),
        outbox.add(b"now-1", 10),
        outbox.add(b"now-2", 10),
        outbox.extend([b"six-1"], 10, plain=True, deliver_at_us=6),
        outbox.extend([b"six-2", b"six-3"], 20, plain=True, deliver_at_us=6),
    ]
    assert [index for _, index in places] == [0, 0, 1, 0, 0, 1, 0, 1]
    outbox.add_encoded(encode_records([b"seven-0"]), 1, 7)
    outbox.extend([b"seven-1"], 10, plain=True, deliver_at_us=7)
    outbox.opened(opened())
    found = []
    while (part := outbox.next_part(1)) is not None:
        header = check_part(part)
        found.append((header.deliver_at_us, payloads(part)))
        outbox.acked([api.AckedSequence(header.base_sequence, header.base_sequence, header.record_count)])
    assert found == [
        (0, [b"now-0"]),
        (5, [b"five-0", b"five-1"]),
        (6, [b"six-0"]),
        (0, [b"now-1", b"now-2"]),
        (6, [b"six-1", b"six-2", b"six-3"]),
        (7, [b"seven-0"]),
        (7, [b"seven-1"]),
    ]
    assert outbox.budget.used == 0


def test_a_delayed_batch_is_joined_no_more_when_it_has_left_or_is_full() -> None:
    outbox = make(batch_max_messages=2)
    first, _ = outbox.extend([b"a"], 10, plain=True, deliver_at_us=5)
    outbox.opened(opened())
    assert outbox.next_part(1) is not None
    second, _ = outbox.extend([b"b"], 10, plain=True, deliver_at_us=5)
    assert outbox.extend([b"c"], 10, plain=True, deliver_at_us=5) == (second, 1)
    third, _ = outbox.extend([b"d"], 10, plain=True, deliver_at_us=5)
    assert len({first, second, third}) == 3


def test_nothing_leaves_before_a_stream_is_open() -> None:
    outbox = make()
    outbox.add(b"a", 9)
    assert parts(outbox) == []
    outbox.opened(opened())
    assert len(parts(outbox)) == 1


def test_the_end_settles_batches_in_flight_queued_batches_and_the_open_one() -> None:
    outbox = make(max_in_flight=1)
    outbox.opened(opened())
    batches = [outbox.add(b"sent", 9)[0]]
    assert len(parts(outbox)) == 1
    batches += [outbox.add_encoded(b"\x91\xc4\x01q", 1), outbox.add(b"open", 9)[0]]
    assert [len(outbox.flight), len(outbox.queued), outbox.open is not None] == [1, 1, True]
    error, later = DanubeError("over"), DanubeError("later")
    outbox.fail(error)
    assert [(batch.settled, batch.error) for batch in batches] == [(True, error)] * 3
    assert (outbox.unsettled(), outbox.idle, outbox.budget.used) == ([], True, 0)
    assert outbox.unreported is error
    outbox.add(b"more", 9)
    assert parts(outbox) == [], "it is over"
    outbox.fail(later)
    assert outbox.unreported is error, "the first one counts"


def test_a_failure_that_is_waited_for_is_reported_there() -> None:
    outbox = make()
    outbox.opened(opened())
    batch, _ = outbox.add(b"a", 9)
    batch.waiters += 1
    outbox.fail(DanubeError("over"))
    assert outbox.unreported is None


def test_a_broker_that_lacks_exactly_the_batches_in_flight_is_sent_the_same_bytes() -> None:
    outbox = make()
    outbox.opened(opened())
    outbox.add(b"a", 9)
    first = parts(outbox)
    outbox.lost()
    outbox.opened(opened(next_sequence=0))
    assert parts(outbox) == first
    assert outbox.next_sequence == 1
    outbox.acked([ack(outbox.flight[0], 3)])
    outbox.lost()
    outbox.opened(opened(next_sequence=1))
    assert (outbox.next_sequence, outbox.idle) == (1, True)


@settings(deadline=None)
@given(st.lists(st.integers(0, 1_500) | st.integers(MAX_BATCH - 200, MAX_BATCH - 100), max_size=12), st.booleans())
@example([0, *range(MAX_BATCH // 2 - 60, MAX_BATCH // 2 + 20)], True)
@example([0, *range(MAX_BATCH // 2 - 60, MAX_BATCH // 2 + 20)], False)
def test_batches_are_cut_by_the_limit_of_the_broker(sizes: list[int], plain: bool) -> None:
    outbox = make(batch_max_bytes=100_000, batch_max_messages=1_000, max_in_flight=1_000)
    outbox.opened(opened())
    sent = [bytes(size) for size in sizes]
    for payload in sent:
        outbox.add(payload if plain else Record(payload), record_size(len(payload), None, None))
    found = parts(outbox)
    assert outbox.unreported is None, "each fits into a batch of its own"
    assert [each for part in found for each in payloads(part)] == sent
    assert all(len(part) <= MAX_BATCH for part in found)


def test_a_part_as_large_as_the_broker_takes_goes() -> None:
    outbox = make(batch_max_bytes=100_000)
    outbox.opened(opened())
    overhead = PART_OVERHEAD + len(encode_records([Record(bytes(3_000))])) - 3_000
    outbox.add(Record(b"x" * (MAX_BATCH - overhead)), 1)
    part = outbox.next_part(5)
    assert part is not None
    assert len(part) == MAX_BATCH
    outbox.add(Record(b"x" * (MAX_BATCH - overhead + 1)), 1)
    assert outbox.next_part(5) is None
    assert isinstance(outbox.unreported, MessageTooLargeError)


def test_acknowledging_another_count_than_was_sent_is_a_protocol_error() -> None:
    outbox = make()
    outbox.opened(opened())
    outbox.add(b"a", 9)
    parts(outbox)
    with pytest.raises(ProtocolError, match="acknowledged 2 records"):
        outbox.acked([api.AckedSequence(0, 5, 2)])
    outbox.refused(0, JournalFullError("full"))
    with pytest.raises(ProtocolError):
        outbox.acked([api.AckedSequence(0, 5, 1)])


def test_a_message_counts_with_its_key_and_attributes() -> None:
    assert record_size(10, None, None) == 10 + RECORD_OVERHEAD
    assert record_size(10, b"key", None) == 13 + 2 * RECORD_OVERHEAD
    assert record_size(0, "", {"a": "four", "bc": ""}) == 7 + 4 * RECORD_OVERHEAD
    for key, attributes in ((None, None), (b"k" * 50, None), (b"k", {"name" * 9: "value" * 90, "b": "c"})):
        record = Record(b"x" * 70_000, key, attributes)
        assert len(encode_records([record])) <= record_size(70_000, key, attributes) + RECORD_OVERHEAD


def test_several_messages_fill_a_batch_to_its_last_byte_and_message() -> None:
    outbox = make(batch_max_bytes=1_000, batch_max_messages=4)
    first, _ = outbox.extend([b"a"], 600, plain=True)
    assert outbox.extend([b"b", b"c"], 400, plain=True) == (first, 1)
    second, index = outbox.extend([b"d"], 1, plain=True)
    assert (second is first, index) == (False, 0)
    assert outbox.extend([b"e", b"f", b"g"], 3, plain=True) == (second, 1)
    third, index = outbox.extend([b"h"], 1, plain=True)
    assert (third is second, index) == (False, 0)
    assert outbox.add(b"i", 999) == (third, 1)
    assert outbox.add(b"j", 1)[0] is not third


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(SequenceGapError("gap"), Verdict.REOPEN), (JournalFullError("full"), Verdict.RETRY_LATER)],
)
def test_nothing_is_sent_until_the_verdict_of_a_refusal_is_carried_out(error: DanubeError, verdict: Verdict) -> None:
    outbox = make()
    outbox.opened(opened())
    outbox.add(b"a", 9)
    first = parts(outbox)
    assert outbox.refused(0, error) is verdict
    assert not outbox.idle
    outbox.add(b"b", 9)
    assert parts(outbox) == []
    if verdict is Verdict.REOPEN:
        outbox.opened(opened())
    else:
        outbox.resume()
    assert parts(outbox)[:1] == first
    assert not outbox.refuses


def test_a_refusal_waits_for_the_answers_to_later_batches() -> None:
    outbox = make()
    outbox.opened(opened())
    batches = []
    for text in (b"a", b"b", b"c"):
        batches.append(outbox.add(text, 9)[0])
        parts(outbox)
    assert outbox.refused(1, JournalFullError("full")) is Verdict.GO_ON
    assert outbox.refuses
    outbox.add(b"d", 9)
    assert parts(outbox) == [], "the line stands still"
    assert outbox.acked([ack(batches[0], 40)]) is Verdict.GO_ON
    assert outbox.refused(1, JournalFullError("again")) is Verdict.GO_ON, "one answer each counts"
    assert outbox.refused(2, SequenceGapError("behind a gap")) is Verdict.RETRY_LATER, "the first refusal decides"
    outbox.resume()
    assert [payloads(part) for part in parts(outbox)] == [[b"b"], [b"c"], [b"d"]]
