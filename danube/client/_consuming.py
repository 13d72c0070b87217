"""Client methods that open consumers and readers."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any

import anyio

from danube.client._admin import AdminCalls, choice, start_position
from danube.client._checks import check_count, check_list, check_mapping, check_text, plain
from danube.client._consumer import Consumer
from danube.client._feed import Feed
from danube.client._reader import Reader, Start, start_positions
from danube.client._reader_feed import ReaderFeed
from danube.client._tasks import background_tasks, start_all
from danube.model import api
from danube.model.errors import DanubeError, DeadlineExceededError, InvalidArgumentError
from danube.model.limits import MIB, Limits
from danube.model.names import validate_name, validate_topic
from danube.model.policies import LATEST, SubscriptionPolicy, SubscriptionType, change_policy

__all__ = ["READ_AHEAD", "ConsumeCalls"]

READ_AHEAD = 200_000
"""Read-ahead of one ordered reader of a topic, in messages."""
_CREDIT_MESSAGES = {
    SubscriptionType.EXCLUSIVE: READ_AHEAD,
    SubscriptionType.FAILOVER: READ_AHEAD,
    SubscriptionType.SHARED: 2_000,
    SubscriptionType.KEY_SHARED: 2_000,
}
"""Read-ahead in messages: large for a single ordered reader, small where consumers share the work."""


class ConsumeCalls(AdminCalls):
    """The part of :class:`Client` that opens consumers and readers."""

    @asynccontextmanager
    async def consumer(
        self,
        topic: str,
        *,
        subscription: str,
        type: SubscriptionType | str = SubscriptionType.EXCLUSIVE,  # noqa: A002 - the word of the API
        start: str | int | datetime = LATEST,
        name: str | None = None,
        credit_messages: int | None = None,
        credit_bytes: int = 16 * MIB,
        renew_leases: bool = False,
        key_filters: Sequence[str] = (),
        policy: SubscriptionPolicy | Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Consumer]:
        """Open a consumer: ``async with client.consumer("/default/orders", subscription="billing") as consumer``.

        Leaving the block sends the acknowledgements and waits until they are durable, at most ``close_timeout_s`` (one
        second if it is left by an exception).

        Args:
            topic: ``/namespace/topic``; of a partitioned topic, all partitions are consumed.
            subscription: its name; the broker stores its position in the topic.
            type: ``"exclusive"``, ``"failover"``, ``"shared"`` or ``"key_shared"``.
            start: where a new subscription starts: ``"earliest"``, ``"latest"``, an offset, or a date with time zone.
            name: of this consumer; a consumer that reconnects under its name takes over at once. None generates one.
            credit_messages: read-ahead of each partition in messages; None means 200,000 for exclusive and failover,
                2,000 for shared and key_shared.
            credit_bytes: read-ahead of each partition in bytes.
            renew_leases: keep messages from timing out for as long as they are neither acknowledged nor refused.
                Otherwise a message times out unless it is acknowledged within the subscription's ``ack_timeout_s``
                (and up to a third more) after its hand-out, or :meth:`Message.extend_lease` asks for more time.
            key_filters: of a key_shared subscription: receive only keys that match one of these (``*`` is any run of
                characters, ``?`` is one); an empty list matches all.
            policy: initial policy of a subscription created by this call; a mapping changes some fields of the broker's
                default. An existing subscription keeps its policy.

        Raises:
            SubscriptionBusyError: an exclusive subscription has a consumer already.
            SubscriptionTypeMismatchError, TopicNotFoundError, InvalidNameError, DanubeError: refused by the broker.
        """
        validate_topic(topic)
        validate_name("subscription", subscription)
        kind = choice(SubscriptionType, "type", type)
        position, time_us = start_position(start)
        messages = _CREDIT_MESSAGES[kind] if credit_messages is None else credit_messages
        _check_credit(messages, credit_bytes)
        if name is not None:
            validate_name("consumer", name)
        filters = _checked_filters(key_filters, kind, self._options.limits)
        fields = _policy_fields(policy)
        name = name or self._options.environment.made_up_name("consumer")
        topics = await self._topics(topic, 0)
        consumer = Consumer(topic, subscription, name, kind, self._options.limits.max_batch_bytes)
        feeds = [
            Feed(
                self._connection,
                index,
                api.ConsumeOpen(one, subscription, name, kind, position, time_us, filters, fields),
                renewals=consumer._renewals,
                renew_leases=renew_leases,
                credit_messages=messages,
                credit_bytes=credit_bytes,
                arrived=consumer._arrived,
                restarted=consumer._restarted,
                wake=consumer._wake,
            )
            for index, one in enumerate(topics)
        ]
        consumer._start(feeds)
        async with background_tasks() as group:
            await group.start(consumer._run_sender)
            await start_all(group, [feed.run for feed in feeds])
            try:
                yield consumer
                with anyio.move_on_after(self._options.close_timeout_s) as scope:
                    await consumer.flush_acks()
                if scope.cancelled_caught:
                    raise DeadlineExceededError(
                        f"{topic}: acknowledgements not confirmed within close_timeout_s ="
                        f" {self._options.close_timeout_s:g} s; these messages may be delivered again"
                    )
            except BaseException:
                # Acknowledgements given before the error should still count; if sending them fails, the original error
                # is more informative. If the caller's scope was cancelled, sending and confirming is cancelled as well.
                if anyio.current_effective_deadline() > -math.inf:
                    patience_s = min(1.0, self._options.close_timeout_s)
                    with anyio.move_on_after(patience_s, shield=True), suppress(DanubeError):
                        await consumer.flush_acks()
                raise
            finally:
                consumer._close()

    @asynccontextmanager
    async def reader(
        self,
        topic: str,
        *,
        start: Start = LATEST,
        name: str | None = None,
        credit_messages: int = READ_AHEAD,
        credit_bytes: int = 16 * MIB,
    ) -> AsyncIterator[Reader]:
        """Read a topic without a subscription: ``async with client.reader("/default/orders", start="earliest")``.

        Nothing is acknowledged or stored at the broker; any number of readers may read the same topic.

        Args:
            topic: ``/namespace/topic``; of a partitioned topic, all partitions are read.
            start: ``"earliest"``, ``"latest"``, an offset, a date with time zone, or a mapping from partitions to
                these, such as an earlier :attr:`Reader.position`.
            name: shown to people; it need not be unique.
            credit_messages: read-ahead of each partition in messages.
            credit_bytes: read-ahead of each partition in bytes.

        Raises:
            TopicNotFoundError, InvalidArgumentError, InvalidNameError, DanubeError: refused by the broker.
        """
        validate_topic(topic)
        _check_credit(credit_messages, credit_bytes)
        if name is not None:
            validate_name("consumer", name)
        start_positions(start if not isinstance(start, Mapping) else {}, 1)  # reports invalid values without a broker
        topics = await self._topics(topic, 0)
        places = start_positions(start, len(topics))
        reader = Reader(topic, name or "", self._options.limits.max_batch_bytes)
        feeds = [
            ReaderFeed(
                self._connection,
                index,
                api.ConsumeOpen(one, "", name or "", start=position, start_time_us=time_us, reader=True),
                credit_messages=credit_messages,
                credit_bytes=credit_bytes,
                arrived=reader._arrived,
                restarted=reader._restarted,
                wake=reader._wake,
            )
            for index, (one, (position, time_us)) in enumerate(zip(topics, places, strict=True))
        ]
        reader._start(feeds)
        async with background_tasks() as group:
            await group.start(reader._run_sender)
            await start_all(group, [feed.run for feed in feeds])
            try:
                yield reader
            finally:
                reader._close()


def _check_credit(messages: int, size_bytes: int) -> None:
    check_count("credit_messages", messages, 1)
    check_count("credit_bytes", size_bytes, 1)


def _checked_filters(filters: Sequence[str], kind: SubscriptionType, limits: Limits) -> list[str]:
    filters = check_list("key_filters", filters, "texts, for example ['eu-*', 'us-?']")
    for one in filters:
        if not check_text("a key filter", one):
            raise InvalidArgumentError("a key filter cannot be empty; '*' lets every key through")
    if filters and kind is not SubscriptionType.KEY_SHARED:
        raise InvalidArgumentError(f"key_filters are for key_shared subscriptions only, not for {kind.value}")
    if len(filters) > limits.max_key_filters:
        raise InvalidArgumentError(
            f"{len(filters)} key_filters are more than max_key_filters = {limits.max_key_filters}; join some with '*'"
        )
    for one in filters:
        if len(one) > limits.max_key_filter_chars:
            raise InvalidArgumentError(
                f"a key filter of {len(one)} characters is longer than max_key_filter_chars ="
                f" {limits.max_key_filter_chars}"
            )
    return filters


def _policy_fields(policy: SubscriptionPolicy | Mapping[str, Any] | None) -> dict[str, Any]:
    if policy is None:
        return {}
    if not isinstance(policy, SubscriptionPolicy):
        policy = check_mapping("policy", policy, "fields of a SubscriptionPolicy")
    fields: dict[str, Any] = plain("policy", policy)
    change_policy(SubscriptionPolicy(), fields)  # reports invalid fields without asking the broker
    return fields
