"""Publishing that may be repeated: the same call with the same token stores nothing twice, whoever makes it and when.

A :class:`~danube.client.Producer` repeats what it has not heard of by itself. This is for callers that may die in
between, and whose successor, perhaps in another process, repeats the whole call::

    receipts = await publish_once(client, "/default/orders", [OnceMessage(b"...")], token=str(uuid4()))

Asynchronous only. The broker remembers a call for ``anonymous_producer_expiry_s`` (10 min) after it was last made,
across restarts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from danube.client._lane import Lane
from danube.client._once import Cut, OnceMessage, OnceOutbox, RepeatedTokenError, cut, prepared, producer_of
from danube.client._outbox import Budget, OutBatch
from danube.client._receipt import settled
from danube.client._receipts import Receipt
from danube.client._tasks import background_tasks, start_all
from danube.model import api
from danube.model.limits import MIB
from danube.model.names import validate_topic

if TYPE_CHECKING:
    from danube.client._client import Client

__all__ = ["OnceMessage", "RepeatedTokenError", "publish_once"]


async def publish_once(
    client: Client,
    topic: str,
    messages: Sequence[OnceMessage],
    *,
    token: str,
    batch_max_bytes: int = 1 * MIB,
    batch_max_messages: int = 50_000,
) -> list[Receipt]:
    """Publish messages, and return their receipts when all of them are durable; a repetition returns the same ones.

    A repetition must have the same token, messages and bounds of batches, and the topic the same number of partitions.
    Of a call that was interrupted, a part may be stored; a repetition stores the rest.

    Args:
        client: of the cluster.
        topic: plain or partitioned, or one partition; created if it does not exist and the broker allows that.
        messages: in their order; those without a key go to one partition.
        token: any text, unique among all calls for the topic; a UUID.
        batch_max_bytes, batch_max_messages: bounds of a batch.

    Raises:
        InvalidArgumentError: a message is invalid.
        RepeatedTokenError: the token was used for other messages. (Other messages of the same number are not noticed:
            nothing is stored, and the receipts are those of the first call.)
        ProducerFencedError: the same call is made elsewhere at this moment; repeat it.
        LimitExceededError: the messages make more than 64 batches of a partition, or the topic knows too many
            producers (``max_known_producers_per_topic``).
        DanubeError: the broker refuses them, or is not reached.
    """
    validate_topic(topic)
    topics = await client._topics(topic, 0)
    now_us = client._pool.options.environment.clock_us()
    ready = [prepared(message, now_us) for message in messages]
    cuts = cut(ready, len(topics), token, batch_max_bytes, batch_max_messages)
    name, budget = producer_of(token), Budget(sum(each.size for each in cuts))
    lanes: dict[int, tuple[Lane, OnceOutbox]] = {}
    sent: list[tuple[Cut, OutBatch, Lane]] = []
    for each in cuts:
        if each.partition not in lanes:
            lanes[each.partition] = _lane(client, topics, each.partition, name, budget, batch_max_bytes)
        lane, outbox = lanes[each.partition]
        records = [ready[index].record for index in each.indexes]
        sent.append((each, outbox.put(records, each.size, each.deliver_at_us), lane))
    receipts: dict[int, Receipt] = {}
    async with background_tasks() as group:
        await start_all(group, [lane.run for lane, _ in lanes.values()])
        for each, batch, lane in sent:
            await settled(batch)
            for place, index in enumerate(each.indexes):
                receipts[index] = Receipt(lane.topic, batch.base_offset + place, lane.partition)
    return [receipts[index] for index in range(len(messages))]


def _lane(
    client: Client, topics: Sequence[str], partition: int, name: str, budget: Budget, batch_max_bytes: int
) -> tuple[Lane, OnceOutbox]:
    most = client._pool.options.limits.max_batch_records
    outbox = OnceOutbox(budget, batch_max_bytes=batch_max_bytes, batch_max_messages=most, max_in_flight=8)
    request = api.PublishOpen(topics[partition], f"{name}-{partition}", anonymous=True)
    return Lane(client._pool, partition, request, outbox, lambda: None), outbox
