"""The ledger of the audit log: repeated refusals are counted, floods are bounded, and nothing is lost unnoticed."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from danube.security.audit import WINDOW_S, AuditEvent, AuditKind, AuditLedger
from danube.security.limits import SecurityLimits

LIMITS = SecurityLimits(audit_events_per_s=10.0, audit_waiting=20, audit_repeated=5)
DENIAL = AuditEvent(kind=AuditKind.DENIED, principal="service:api", path="/p", resource="/shop/orders")


def change(number: int) -> AuditEvent:
    return AuditEvent(kind=AuditKind.CHANGED, principal="user:ada", path="/p", resource=f"/shop/t{number}")


def test_an_event_is_a_short_object() -> None:
    assert json.loads(msgspec.json.encode(DENIAL)) == {
        "kind": "denied",
        "principal": "service:api",
        "path": "/p",
        "resource": "/shop/orders",
    }


def test_changes_are_entered_each() -> None:
    ledger = AuditLedger(LIMITS)
    ledger.note(change(1), 100)
    ledger.note(change(1), 100)
    assert ledger.is_waiting
    assert ledger.take(100, 10) == [change(1), change(1)]
    assert not ledger.is_waiting
    assert ledger.next_at is None


def test_repeated_denials_are_counted() -> None:
    ledger = AuditLedger(LIMITS)
    for tenth in range(50):
        ledger.note(DENIAL, 100 + tenth / 10)
    assert ledger.take(105, 10) == [DENIAL]
    assert ledger.next_at == 100 + WINDOW_S
    assert ledger.take(109.9, 10) == []
    assert ledger.take(110, 10) == [msgspec.structs.replace(DENIAL, count=49)]
    assert ledger.take(130, 10) == []
    ledger.note(DENIAL, 131)
    assert ledger.take(131, 10) == [DENIAL]
    assert ledger.take(141, 10) == []


def test_many_different_denials_are_bounded() -> None:
    ledger = AuditLedger(LIMITS)
    ledger.note(DENIAL, 100)
    ledger.note(DENIAL, 100)
    for number in range(5):
        ledger.note(msgspec.structs.replace(DENIAL, path=f"/p{number}"), 101)
    found = ledger.take(101, 100)
    assert found[0] == DENIAL
    assert msgspec.structs.replace(DENIAL, count=1) in found
    assert len(found) == 7  # the repetition of the first one was entered when its window made room


def test_callers_do_not_choose_what_counts_as_another_denial() -> None:
    ledger = AuditLedger(LIMITS)
    for number in range(1000):
        ledger.note(msgspec.structs.replace(DENIAL, resource=f"/shop/t{number}", reason=f"{number}"), 100)
    assert len(ledger.take(100, 100)) == 1
    (counted,) = ledger.take(110, 100)
    assert (counted.count, counted.resource) == (999, "/shop/t999")


def test_a_flood_of_openings_and_denials_does_not_keep_changes_out() -> None:
    ledger = AuditLedger(LIMITS)
    for number in range(1000):
        ledger.note(AuditEvent(kind=AuditKind.OPENED, principal=f"user:u{number}"), 100)
        ledger.note(msgspec.structs.replace(DENIAL, principal=f"user:u{number}"), 100)
    ledger.note(change(1), 100)
    assert ledger.take(100, 1) == [change(1)]


def test_a_log_that_is_not_written_takes_bounded_memory() -> None:
    ledger = AuditLedger(LIMITS)
    for number in range(60_000):
        for _ in range(2):
            ledger.note(msgspec.structs.replace(DENIAL, principal=f"user:u{number}"), 100 + number)
    assert len(ledger.take(10**6, 10**6)) <= 2 * LIMITS.audit_waiting + 1


def test_a_flood_is_counted_and_said() -> None:
    ledger = AuditLedger(LIMITS)
    for number in range(100):
        ledger.note(change(number), 100)
    found = ledger.take(100, 1000)
    assert found[:-1] == [change(number) for number in range(10)]
    assert (found[-1].kind, found[-1].count) == (AuditKind.LOST, 90)
    ledger.note(change(1), 102)
    assert ledger.take(102, 1000) == [change(1)]
    ledger.lose(7)
    assert ledger.is_waiting
    assert [each.count for each in ledger.take(102, 1000)] == [7]


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 8), st.booleans()), max_size=200))
def test_everything_is_entered_counted_or_said_to_be_lost(steps: list[tuple[float, int, bool]]) -> None:
    ledger, now, entered = AuditLedger(LIMITS), 1000.0, 0
    for pause, number, is_denial in steps:
        now += pause
        event = change(number)
        ledger.note(msgspec.structs.replace(event, kind=AuditKind.DENIED) if is_denial else event, now)
        if number == 0:
            entered += sum(each.count for each in ledger.take(now, 3))
    while ledger.is_waiting or ledger.next_at is not None:
        now += 5
        entered += sum(each.count for each in ledger.take(now, 3))
    assert entered == len(steps)
