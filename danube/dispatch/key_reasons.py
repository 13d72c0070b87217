"""Explains why keys of a key-shared subscription wait: collects facts about their lines for an explanation."""

from __future__ import annotations

import math

from danube.dispatch.key_flights import KeyFlights
from danube.dispatch.keys import Key, Lines
from danube.model.keys import show_key
from danube.model.policies import SubscriptionPolicy

__all__ = ["oldest_in_flight", "why_keys_wait"]

_URGENT = ("blocked", "no-matching-consumer")
"""States that need intervention, the worst first."""


def oldest_in_flight(flights: KeyFlights) -> tuple[int, int, str, float] | None:
    """Return start, end, consumer and delivery time of the lowest range in flight."""
    if not flights.of:
        return None
    start = end = min(flights.of)
    flight = flights.of[start]
    while flights.of.get(end) is flight:
        end += 1
    return start, end, flight.member.name, flight.since


def why_keys_wait(lines: Lines, policy: SubscriptionPolicy, now: float) -> tuple[str, str] | None:
    """Return state and half a sentence about the key most in need of intervention, else with the oldest waiting one."""
    found: tuple[int, int, str, str] | None = None
    for key in lines.busy():
        if key.sent < len(key.line):
            first = key.line[key.sent]
            state, sentence = _reason(lines, policy, key, first, now)
            rank = _URGENT.index(state) if state in _URGENT else len(_URGENT)
            if found is None or (rank, first) < found[:2]:
                found = rank, first, state, sentence
    return found and found[2:]


def _reason(lines: Lines, policy: SubscriptionPolicy, key: Key, first: int, now: float) -> tuple[str, str]:
    count = len(key.line) - key.sent
    verb = "wait" if count > 1 else "waits"
    subject = f"{count:,} message{'s' * (count > 1)} of key {show_key(key.name)} {verb}"
    due, target = lines.due(first), lines.target(key)
    if due == math.inf:
        history = lines.past[first].history
        often = "once" if history.failures == 1 else f"{history.failures:,} times"
        why = f"{first} failed {often} (the last: {history.reason})"
        remedy = "acknowledge or skip it, change the policy, or seek"
        return "blocked", f"{subject}: {why} and the poison policy is {policy.poison}; {remedy}"
    if target is None:
        return "no-matching-consumer", f"{subject} from offset {first} on for a consumer whose key filters match"
    if due > now:
        return "waiting-for-retry", f"{subject} for redelivery in {due - now:.1f} s"
    if key.sent and key.owner is not None and key.owner is not target:
        return "waiting-for-acks", f"{subject} until {key.owner.name!r} has settled {key.sent:,} before the key moves"
    return "no-credit", f"{subject} for credit of consumer {target.name!r}"
