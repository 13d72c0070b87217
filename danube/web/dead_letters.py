"""Handlers of the dead letters of a subscription: list, replay, drop.

The dead-letter topic is read, and written to other topics, by the native client, with the rights of the caller: it
needs Consume there, and Produce where the messages go. What was replayed or dropped is known to a subscription of that
topic, the same as for ``danube dlq``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from danube.model import api
from danube.model.dead_letters import REPLAY_SUBSCRIPTION, dead_letter_topic
from danube.model.errors import SubscriptionNotFoundError, TopicNotFoundError
from danube.model.policies import PoisonPolicy
from danube.web.caller import ApiCall
from danube.web.letters import Choice, DeadLetterPage, Handled, Letters, Replayed, TargetCount, selection_of

if TYPE_CHECKING:
    from danube.client import Client
    from danube.model.query_api import LogState
    from danube.web.administration import Handler

__all__ = ["HANDLERS"]


async def _target(call: ApiCall) -> tuple[str, str, bool]:
    """Return the subscription, its dead-letter topic, and whether it sends messages there now."""
    subscription = call.path["subscription"]
    request = api.SubscriptionRef(call.topic, subscription)
    found = await call.native(api.Method.DESCRIBE_SUBSCRIPTION, request)
    policy = found.subscriptions[0].policy
    topic = dead_letter_topic(call.topic, subscription, policy)
    return subscription, topic, policy.poison is PoisonPolicy.DEAD_LETTER


async def list_dead_letters(call: ApiCall) -> DeadLetterPage:
    """Return the letters that were not replayed or dropped, and their reasons."""
    subscription, topic, sends = await _target(call)
    values = call.values
    letters = Letters(
        (call.topic, subscription),
        limit=values["limit"],
        reason=values["reason"] or "",
        handled_too=values["handled"],
        payload_bytes=values["payload_bytes"],
    )
    async with call.client() as client:
        try:
            states = await client.logs.states([topic])
        except TopicNotFoundError:
            return letters.page(topic, exists=False, sends=sends, messages=0, waiting=0, more=False)
        handled = await _handled(client, topic)
        messages = waiting = 0
        more = False
        for state in states:
            known = handled.get(state.topic, Handled())
            start, end = int(state.start_offset), int(state.end_offset)
            messages += end - start - sum(max(0, min(end, high) - max(start, low)) for low, high in state.gaps)
            waiting += known.waiting(start, end, state.gaps)
            if not values["handled"]:
                start = max(start, known.floor)
            more |= end - start > letters.room
            if end > start and letters.room > 0:
                await _look(client, state, start, letters, known)
    return letters.page(topic, exists=True, sends=sends, messages=messages, waiting=waiting, more=more)


async def _look(client: Client, state: LogState, start: int, letters: Letters, handled: Handled) -> None:
    async with client.reader(state.topic, start=start) as reader:
        async for batch in reader.batches(until_caught_up=True):
            letters.add(state.partition, batch[: letters.room], handled)
            if letters.room <= 0:
                return


async def _handled(client: Client, topic: str) -> dict[str, Handled]:
    """Return what was replayed or dropped of each log of a dead-letter topic."""
    try:
        rows = await client.admin.describe_subscription(topic, REPLAY_SUBSCRIPTION)
    except SubscriptionNotFoundError:
        return {}
    return {row.topic: Handled(int(row.floor), row.acked) for row in rows}


async def replay_dead_letters(call: ApiCall) -> Replayed:
    """Send letters to their original topics, or to another one."""
    return await _carry_out(call, to=call.body.to, drop=False)


async def drop_dead_letters(call: ApiCall) -> Replayed:
    """Give letters up: they count as done."""
    return await _carry_out(call, to=None, drop=True)


async def _carry_out(call: ApiCall, *, to: str | None, drop: bool) -> Replayed:
    subscription, topic, _ = await _target(call)
    choice: Choice = call.body
    selection = selection_of(choice, call.topic, subscription)
    async with call.client() as client:
        from danube.client.replaying import Replay, ReplayOptions  # loaded with the client

        options = ReplayOptions(topic=topic, to=to, dry_run=choice.dry_run, selection=selection, drop=drop)
        options.check()
        replay = Replay(client, options)
        await replay.run()
    return Replayed(
        topic=topic,
        messages=replay.count,
        topics=[TargetCount(topic=name, messages=number) for name, number in sorted(replay.sent.items())],
        left=replay.left,
        reasons=replay.reasons,
        dry_run=choice.dry_run,
        more=replay.stopped,
    )


HANDLERS: Final[Mapping[str, Handler]] = {
    handler.__name__: handler for handler in (list_dead_letters, replay_dead_letters, drop_dead_letters)
}
