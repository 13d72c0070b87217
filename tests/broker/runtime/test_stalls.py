"""A broker that did not run blames no consumer for it."""

from __future__ import annotations

from danube.broker.runtime.stalls import STALL_S, Stalls


def test_a_broker_that_runs_is_not_patient():
    stalls = Stalls(15.0)
    assert stalls.patient_until(100.0) < 100.0, "before the first beat nothing is known"
    stalls.expect(100.5)
    assert stalls.patient_until(100.5 + STALL_S) < 100.5, "late, but not by much"


def test_the_first_look_after_a_stall_sees_it_and_later_ones_remember():
    stalls = Stalls(15.0)
    stalls.expect(100.5)
    now = 100.5 + STALL_S + 0.1
    assert stalls.patient_until(now) == now + 15.0
    assert stalls.patient_until(now + 5.0) == now + 15.0, "the beat itself: the same stall, counted once"
    stalls.expect(now + 5.5)
    assert stalls.patient_until(now + 5.5) == now + 15.0


def test_a_second_stall_begins_anew():
    stalls = Stalls(15.0)
    stalls.expect(100.0)
    assert stalls.patient_until(110.0) == 125.0
    stalls.expect(110.5)
    assert stalls.patient_until(120.0) == 135.0
