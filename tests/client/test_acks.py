"""The ledger of acknowledgements."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from danube.client._acks import AckLedger, HandedOut
from danube.model.ranges import RangeSet


def test_acks_in_order_become_one_range() -> None:
    ledger = AckLedger()
    assert ledger.add(10, 11)
    assert not any(ledger.add(offset, offset + 1) for offset in range(11, 100))
    assert ledger.take() == ([10, 100], -1)
    assert not ledger.collected
    assert ledger.add(100, 101)


def test_acks_out_of_order_are_coalesced() -> None:
    ledger = AckLedger()
    for offset in (5, 3, 9, 4, 8):
        ledger.add(offset, offset + 1)
    assert ledger.take()[0] == [3, 6, 8, 10]


def test_unconfirmed_acknowledgements_are_sent_again() -> None:
    ledger = AckLedger()
    ledger.add(0, 5)
    ledger.take()
    first = ledger.token()
    ledger.add(5, 6)
    ledger.add_cumulative(20, [(7, 9), (12, 21)])
    assert ledger.take() == ([5, 6], 20)
    ledger.lost()
    assert ledger.take() == ([0, 6, 7, 9, 12, 21], -1), "a cumulative one is repeated as what was handed out"
    ledger.confirmed(first)
    assert not ledger.settled
    second = ledger.token()
    ledger.confirmed(second)
    assert ledger.settled
    ledger.lost()
    assert ledger.take() == ([], -1)


def test_known_offsets_are_filtered_wherever_they_are() -> None:
    ledger = AckLedger()
    ledger.add(0, 2)
    ledger.take()
    ledger.token()
    ledger.add(4, 5)
    ledger.take()
    ledger.add(7, 8)
    ledger.add_cumulative(9, [(9, 10)])
    assert list(ledger.unacknowledged([(0, 11)])) == [(2, 4), (5, 7), (8, 9), (10, 11)]
    ledger.take()
    assert list(ledger.unacknowledged([(0, 11)])) == [(2, 4), (5, 7), (8, 9), (10, 11)]


def test_messages_handed_out_are_remembered_until_they_are_covered() -> None:
    handed = HandedOut(3)
    for ranges in ([0, 5], [5, 7], [9, 10, 11, 12], [7, 8], [20, 30]):
        handed.add(ranges)
    assert handed.take_below(12) == [(0, 8), (9, 10), (11, 12)]
    assert handed.take_below(25) == [(20, 25)]
    assert handed.take_below(40) == [(25, 30)]
    for start in range(0, 20, 2):
        handed.add([start, start + 1])
    assert handed.take_below(40) == [(12, 13), (14, 15), (16, 17), (18, 19)], "the lowest are forgotten first"
    handed.add([1, 2])
    handed.clear()
    assert handed.take_below(40) == []


OFFSETS = st.lists(st.tuples(st.sampled_from(["ack", "take", "token", "confirm", "lost"]), st.integers(0, 30)))


@settings(deadline=None, max_examples=300)
@given(OFFSETS)
def test_no_ack_is_forgotten_before_it_is_confirmed(steps: list[tuple[str, int]]) -> None:
    """Whatever happens, a broker that confirms what it saw has seen everything when the ledger is settled."""
    ledger = AckLedger()
    given_acks: set[int] = set()
    seen: set[int] = set()  # by the broker, durably
    travelling: list[list[int]] = []
    token = 0

    def arrive() -> None:
        for flat in travelling:
            for start, end in zip(flat[::2], flat[1::2], strict=True):
                seen.update(range(start, end))
        travelling.clear()

    for step, offset in steps:
        if step == "ack":
            ledger.add(offset, offset + 1)
            given_acks.add(offset)
        elif step == "take":
            travelling.append(ledger.take()[0])
        elif step == "token":
            token = ledger.token()
        elif step == "confirm" and token:
            arrive()
            ledger.confirmed(token)
        elif step == "lost":
            travelling.clear()
            token = 0
            ledger.lost()
        known = given_acks - seen
        left = RangeSet(ledger.unacknowledged([(0, 40)]))
        assert not any(offset in left for offset in known), "an acknowledged offset would be delivered again"
    travelling.append(ledger.take()[0])
    arrive()
    assert seen >= given_acks


def test_a_new_ledger_waits_for_nothing_and_its_first_token_counts() -> None:
    ledger = AckLedger()
    assert (ledger.settled, ledger.token_pending, ledger.unconfirmed, ledger.collected) == (True, False, False, False)
    assert (ledger.next_token, ledger.sent_ranges) == (1, 0)
    ledger.add(0, 1)
    assert (ledger.collected, ledger.settled) == (True, False)
    ledger.take()
    assert (ledger.unconfirmed, ledger.sent_ranges, ledger.settled) == (True, 1, False)
    token = ledger.token()
    assert (token, ledger.token_pending, ledger.unconfirmed, ledger.next_token) == (1, True, False, 2)
    ledger.confirmed(token)
    assert (ledger.settled, ledger.token_pending) == (True, False)


def test_only_the_last_token_confirms_and_it_confirms_all() -> None:
    ledger = AckLedger()
    for offset in (0, 10):
        ledger.add(offset, offset + 1)
        ledger.take()
        token = ledger.token()
    ledger.confirmed(token - 1)
    assert ledger.token_pending
    ledger.lost()
    assert ledger.take() == ([0, 1, 10, 11], -1)
    ledger.confirmed(ledger.token())
    ledger.lost()
    assert ledger.take() == ([], -1)


def test_the_highest_cumulative_acknowledgement_counts() -> None:
    ledger = AckLedger()
    ledger.add_cumulative(9, [(0, 10)])
    ledger.add_cumulative(4, [])
    assert ledger.collected
    assert ledger.take() == ([], 9)
    assert ledger.take() == ([], -1)
    assert list(ledger.unacknowledged([(0, 12)])) == [(10, 12)]


def test_forgotten_acknowledgements_are_neither_sent_nor_known() -> None:
    ledger = AckLedger()
    ledger.add(0, 1)
    ledger.take()
    token = ledger.token()
    ledger.add(2, 3)
    ledger.take()
    ledger.add(4, 5)
    ledger.add(6, 7)
    ledger.add_cumulative(8, [(8, 9)])
    ledger.forget()
    assert not ledger.collected
    assert not ledger.unconfirmed
    assert ledger.token_pending, "its answer comes nevertheless"
    assert ledger.take() == ([], -1)
    assert list(ledger.unacknowledged([(0, 9)])) == [(0, 9)]
    ledger.confirmed(token)
    assert ledger.settled
    assert ledger.add(4, 5), "the sender has to be woken"


def test_beyond_the_bound_the_lowest_messages_handed_out_are_forgotten() -> None:
    handed = HandedOut(2)
    for start in (0, 10, 20, 30):
        handed.add([start, start + 1])
    assert handed.take_below(31) == [(10, 11), (20, 21), (30, 31)], "the one that grows is not counted"
    handed.add([40, 41, 42, 43])
    handed.add([43, 44])
    assert handed.take_below(43) == [(40, 41), (42, 43)]
    assert handed.take_below(100) == [(43, 44)]
    handed.add([0, 1])
    handed.clear()
    assert handed.take_below(100) == []


def test_a_cumulative_acknowledgement_covers_its_own_message() -> None:
    ledger = AckLedger()
    ledger.add_cumulative(5, [])
    assert list(ledger.unacknowledged([(4, 7)])) == [(4, 5), (6, 7)]
    ledger.lost()
    assert ledger.take() == ([5, 6], -1)


def test_ranges_handed_out_in_pieces_are_remembered_as_pieces() -> None:
    handed = HandedOut(10)
    handed.add([0, 5])
    handed.add([5, 7, 9, 10])
    handed.add([12, 13, 15, 16, 18, 19])
    assert handed.take_below(100) == [(0, 7), (9, 10), (12, 13), (15, 16), (18, 19)]
    handed.add([20, 21, 23, 24, 26, 27])
    handed.add([27, 29])
    assert handed.take_below(28) == [(20, 21), (23, 24), (26, 28)]
    assert handed.take_below(100) == [(28, 29)]
