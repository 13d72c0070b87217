"""Explains in one sentence, from the state of a machine, why a subscription moves or does not move."""

from __future__ import annotations

import msgspec

from danube.dispatch.spans import Description, Explanation, ReadRequest

__all__ = ["Facts", "explain"]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a machine reports about itself."""

    description: Description
    now: float
    end_offset: int
    wants: ReadRequest | None
    """The read request it would make now."""
    full: str | None
    """The bound that stops new messages, as half a sentence."""
    next_due: float | None
    """Time of the next delayed redelivery."""
    oldest: tuple[int, int, str, float] | None
    """Start, end, consumer and delivery time of the lowest range in flight."""
    blocked: tuple[str, str] | None = None
    """State, and half a sentence, about a key that holds messages back."""
    poison: str | None = None
    """Half a sentence about the message that stops the whole subscription under the policy ``block``."""
    next_delivery: float | None = None
    """Delivery time of the next delayed batch."""
    lossy: bool = False
    """Messages that cannot be delivered at once are dropped."""


def explain(facts: Facts) -> Explanation:
    """Return the first reason that applies."""
    state, sentence = _reason(facts)
    start, end, consumer, since = facts.oldest or (None, None, None, None)
    return Explanation(
        state=state,
        sentence=sentence,
        description=facts.description,
        oldest_start=start,
        oldest_end=end,
        oldest_consumer=consumer,
        oldest_age_s=None if since is None else facts.now - since,
        next_retry_s=None if facts.next_due is None else facts.next_due - facts.now,
    )


def _reason(facts: Facts) -> tuple[str, str]:
    numbers = facts.description
    undelivered = min(max(0, facts.end_offset - numbers.position), numbers.backlog_messages)  # holes do not count
    if not numbers.consumers and facts.lossy:
        return "no-consumer", f"no consumer is connected; messages are dropped, {numbers.dropped_messages:,} so far"
    if not numbers.consumers:
        return "no-consumer", f"no consumer is connected; {_messages(numbers.backlog_messages)} in the backlog"
    receivers = [consumer for consumer in numbers.consumers if consumer.active]
    starved = [consumer for consumer in receivers if min(consumer.credit_messages, consumer.credit_bytes) <= 0]
    who = f"consumer {starved[0].name!r} has no" if len(starved) == 1 else f"none of the {len(starved)} consumers has"
    if facts.lossy and len(starved) == len(receivers):
        return "no-credit", f"{who} credit; messages are dropped, {numbers.dropped_messages:,} so far"
    if facts.lossy or numbers.backlog_messages <= 0:
        return "caught-up", "caught up: everything is " + ("delivered or dropped" if facts.lossy else "acknowledged")
    if facts.poison is not None:
        return "blocked", facts.poison
    if facts.wants is not None and (facts.wants.redelivery or undelivered):
        what = "redelivered" if facts.wants.redelivery else "delivered"
        return "moving", f"moving: messages from offset {facts.wants.offset} on are about to be {what}"
    delayed = None if facts.next_due is None else facts.next_due - facts.now
    undue = numbers.waiting_messages if delayed is not None and delayed > 0 else 0
    if len(starved) == len(receivers) and (undelivered or numbers.waiting_messages > undue):
        return "no-credit", f"{who} credit; {_messages(undelivered + numbers.waiting_messages)} to be delivered"
    if undelivered and facts.full:
        return "window-full", _join(facts.full, facts.blocked[1] if facts.blocked else "", _oldest(facts))
    if facts.blocked:
        return facts.blocked[0], _join(facts.blocked[1], _oldest(facts))
    if numbers.poisoned_messages:
        verb = "waits" if numbers.poisoned_messages == 1 else "wait"
        subject = f"{_messages(numbers.poisoned_messages)} {verb}"
        return "dead-lettering", _join(f"{subject} to be copied to the dead-letter topic", _oldest(facts))
    if delayed is not None and not facts.oldest:
        verb = "waits" if numbers.waiting_messages == 1 else "wait"
        return (
            "waiting-for-retry",
            f"{_messages(numbers.waiting_messages)} {verb} for redelivery, the next in {max(0.0, delayed):.1f} s",
        )
    if facts.next_delivery is not None and not facts.oldest:
        verb = "waits for its" if numbers.delayed_messages == 1 else "wait for their"
        wait = max(0.0, facts.next_delivery - facts.now)
        return (
            "waiting-for-delivery-time",
            f"{_messages(numbers.delayed_messages)} {verb} delivery time, the next in {wait:.1f} s",
        )
    return "waiting-for-acks", _join("everything is delivered", _oldest(facts))


def _oldest(facts: Facts) -> str:
    if facts.oldest is None:
        return ""
    start, end, consumer, since = facts.oldest
    offsets = str(start) if end == start + 1 else f"{start}\N{EN DASH}{end - 1}"
    return f"waiting for the acknowledgement of {offsets} by {consumer!r} for {facts.now - since:.1f} s"


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"
