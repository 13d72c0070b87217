"""The consumer: receives the messages of a subscription, acknowledges them, and renews their leases."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from danube.client._checks import check_count, check_offset
from danube.client._delivered import BareMessage
from danube.client._feed import Feed
from danube.client._generics import V
from danube.client._leases import RenewalClock
from danube.client._receiver import Receiver
from danube.client._tasks import copy_error
from danube.model.errors import InvalidArgumentError
from danube.model.policies import SubscriptionType

if TYPE_CHECKING:
    from danube.client._delivered import Source
    from danube.client._message import Batch

__all__ = ["Consumer"]


class Consumer(Receiver[Feed, V]):
    """Receives the messages of one subscription; made by :meth:`Client.consumer`.

    Iterate over it for messages, or over :meth:`batches` for the fast path. Partitions are served in turn, one
    delivery each. Delivery is at least once: unacknowledged messages are delivered again, after a reconnect or when
    they have timed out. Several tasks may take messages from one consumer.
    """

    subscription: str
    """Name of the subscription."""

    def __init__(self, topic: str, subscription: str, name: str, kind: SubscriptionType, max_batch_bytes: int) -> None:
        super().__init__("consumer", topic, name, max_batch_bytes)
        self.subscription = subscription
        self._gives_back = not kind.traits.single_consumer  # other consumers could take its waiting messages
        self._renewals = RenewalClock()
        self._confirmations: defaultdict[int, anyio.Event] = defaultdict(anyio.Event)
        """By partition; set (and replaced) when the broker confirms acknowledgements, or the feed fails."""
        self._gave_back = False
        """Whether messages were given back because the application was stuck, and it has not asked for messages
        since."""

    @property
    def ack_timeout_s(self) -> float:
        """Seconds after which an unacknowledged message is delivered again; 0: never. A change of policy changes it."""
        return min((feed.ack_timeout_s for feed in self._feeds if feed.ack_timeout_s), default=0.0)

    @property
    def active(self) -> bool:
        """False for a failover consumer on standby."""
        return any(feed.active for feed in self._feeds)

    async def wait_active(self) -> None:
        """Wait until this consumer of a failover subscription is the active one."""
        await self._wait_for(lambda: self.active)

    # --- Acknowledging -----------------------------------------------------------------------------------------------

    async def ack_cumulative(self, message: BareMessage[Any]) -> None:
        """Acknowledge all messages delivered from the message's topic (partition), up to and including this one.

        Delayed messages that were not delivered yet are excluded. For exclusive and failover subscriptions only.
        """
        if not isinstance(message, BareMessage):
            raise InvalidArgumentError(f"ack_cumulative takes a message, not {type(message).__name__}")
        self._feeds[message.partition].ack_cumulative(message.offset, message._batch)

    def ack_range(self, start: int, end: int, *, partition: int = 0) -> None:
        """Acknowledge the offsets ``start`` up to, not including, ``end``, for example to skip damaged messages."""
        if not check_offset("start", start) < check_offset("end", end):
            raise InvalidArgumentError(f"ack_range needs 0 <= start < end, got {start} and {end}")
        feed = self._feeds[check_count("partition", partition, 0, len(self._feeds) - 1)]
        feed.ack(start, end, feed.moves)

    async def flush_acks(self) -> None:
        """Wait until every acknowledgement given so far is durable at the broker.

        In a key-shared subscription acknowledgements take effect in the order of their key: one that precedes the
        acknowledgement of an earlier message of its key becomes durable together with that, and is not waited for here.

        Raises:
            DanubeError: the subscription has ended, so the acknowledgements will never arrive.
        """
        await anyio.lowlevel.checkpoint()
        targets = [(feed, feed.ledger.next_token) for feed in self._feeds if not feed.ledger.settled]
        for feed, token in targets:
            feed.awaited_token = max(feed.awaited_token, token)
        self._wake()
        for feed, token in targets:
            while feed.confirmed_token < token:
                if feed.error is not None:
                    raise copy_error(feed.error)
                await self._confirmations[feed.partition].wait()

    def _observed(self, source: Source) -> Source:
        """Return the source of acknowledgements and refusals for batches of this consumer."""
        return source

    def _confirmed(self, feed: Feed) -> None:
        confirmation = self._confirmations.pop(feed.partition, None)
        if confirmation is not None:
            confirmation.set()

    async def _next_batch(self, *, until_caught_up: bool, or_message: bool = False) -> Batch[V] | None:
        if self._gave_back:
            self._gave_back = False
            for feed in self._feeds:
                feed.resume_credit()
        return await super()._next_batch(until_caught_up=until_caught_up, or_message=or_message)

    # --- Leases ------------------------------------------------------------------------------------------------------

    def _next_duty_s(self) -> float:
        # Request a confirmation after a while without acknowledgements, since the last one may have been sent.
        confirm_s = 1.0 if any(feed.unconfirmed for feed in self._feeds) else math.inf
        return confirm_s if self._renewals.idle else min(confirm_s, self._renewals.next_s - anyio.current_time())

    def _do_duties(self, now_s: float) -> None:
        if now_s >= self._renewals.next_s:
            self._renew(now_s)

    def _renew(self, now_s: float) -> None:
        """Extend the leases of waiting messages, and of those handed out since the last renewal."""
        clock, feeds = self._renewals, self._feeds
        timeout_s = min((feed.ack_timeout_s for feed in feeds if feed.ack_timeout_s), default=0.0)
        waits = any(feed.waits for feed in feeds)
        if not waits or any(feed.moved() for feed in feeds):
            clock.alive = True
        if waits and clock.stuck(now_s, timeout_s) and self._gives_back:
            self._gave_back = True
            for feed in feeds:
                feed.give_back()
        extended = [feed.renew() for feed in feeds]
        clock.rest()
        if timeout_s and (waits or any(extended)):
            clock.next_s = now_s + timeout_s / 3
