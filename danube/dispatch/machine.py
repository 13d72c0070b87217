"""The common interface of all subscription machines: inputs, read requests and deliveries.

A machine is a pure value: consumers, credit, acknowledgements, time and batches go in; read requests and deliveries
come out. Its owner (the broker) does all I/O, in a loop like this::

    while (request := machine.next_read(now)) is not None:
        span = ...                                  # the batch that holds request.offset; stop if it is not there yet
        for delivery in machine.offered(span, now):
            ...                                     # send it

Only :meth:`Machine.offered` delivers. Every other input (``join``, ``leave``, ``credit``, ``ack``, ``nack``, ``seek``,
``discard``, ``tick``) may change the result of ``next_read``, so the owner calls it again after each of them; at
:meth:`Machine.next_deadline` it calls ``tick``. There is no other wake-up, hence none to lose: if ``next_read`` returns
a request and the batch that holds its offset is offered, the machine makes progress.

Under some policies a machine acknowledges messages by itself. After any call, ``settled_itself`` tells whether it did;
the owner then journals the result of :meth:`Machine.take_settled`. Under the policy ``dead_letter`` it sets messages
aside, which the owner finds with :meth:`Machine.poisoned`, copies, and settles with :meth:`Machine.discard`. For a
failover subscription the owner reads :attr:`Machine.active` after each call: a timeout may have changed it.

A batch may be offered at any time, even if the state has changed since it was requested: messages no longer needed
are ignored. Calls for a consumer that is gone (its frames may still be in flight) do nothing.

``now`` is monotonic time in seconds and never goes back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from danube.dispatch.cursor import Cursor
from danube.dispatch.failures import PastDelivery
from danube.dispatch.inflight import Member
from danube.dispatch.spans import (
    ACKNOWLEDGED,
    UNDELIVERED,
    WAITING,
    ConsumerState,
    Delivery,
    Description,
    Explanation,
    Gap,
    Place,
    Poisoned,
    ReadRequest,
    Span,
)
from danube.dispatch.turns import merge
from danube.model.errors import FailedPreconditionError, InternalError, InvalidArgumentError, LimitExceededError
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType

__all__ = ["Machine"]


class Machine(ABC):
    """State machine of one subscription.

    Attributes:
        type: how consumers share the messages. Read-only.
        traits: those of the type. Read-only.
        cursor: the acknowledged offsets. Only the machine changes it.
        position: next new offset to be delivered. Read-only for other objects.
        policy: the policy in force; see :meth:`change_policy`. Read-only for other objects.
        settled_itself: not empty if :meth:`take_settled` would return ranges. Read-only for other objects.
        acked_messages: acknowledged by consumers since the machine was built. Read-only for other objects.
        nacked_messages, timed_out_messages: failures since then, by refusal and by timeout. Read-only, too.
    """

    def __init__(self, kind: SubscriptionType, cursor: Cursor, limits: Limits, policy: SubscriptionPolicy) -> None:
        self.type = kind
        self.traits = kind.traits
        self.cursor = cursor
        self.policy = policy
        self.position = cursor.next_live(cursor.floor)
        self._limits = limits
        self._members: dict[int, Member] = {}
        """Connected consumers, in the order in which they joined."""
        self._suspended = 0
        """Number of suspended consumers."""
        self.settled_itself: list[int] = []
        self.acked_messages = 0
        self.nacked_messages = 0
        self.timed_out_messages = 0
        self._delivered_before = 0
        """Messages delivered to consumers that have left."""
        self._redelivered = 0
        self._dropped = 0

    # --- consumers ---------------------------------------------------------------------------------------------------

    @property
    def active(self) -> int | None:
        """The consumer that gets the messages of an exclusive or failover subscription; else None."""
        return None

    @property
    def consumer_ids(self) -> list[int]:
        """All connected consumers, in the order in which they joined."""
        return list(self._members)

    def join(self, consumer_id: int, name: str, now: float, filters: Sequence[str] = ()) -> int | None:
        """Connect a consumer, without credit; ``filters`` are its key filters (key-shared only).

        A consumer connected under the same name is displaced at once, as by :meth:`leave`, and the new one takes its
        place in the order.

        Returns:
            The id of the displaced consumer, if there is one; the caller must close its stream.

        Raises:
            SubscriptionBusyError: the subscription is exclusive and has a consumer of another name.
            LimitExceededError: too many consumers (``max_consumers_per_subscription``).
        """
        if consumer_id in self._members:
            raise InternalError(f"consumer id {consumer_id} joined this subscription twice; ids must be unique")
        displaced = next((member for member in self._members.values() if member.name == name), None)
        self._admit(name, displaced)
        if displaced is None and len(self._members) >= self._limits.max_consumers_per_subscription:
            raise LimitExceededError(
                f"the subscription has {len(self._members)} consumers already; disconnect some, or raise the broker's"
                " limit max_consumers_per_subscription"
            )
        fresh = Member(consumer_id, name, tuple(filters))
        if displaced is None:
            self._members[consumer_id] = fresh
            self._joined(fresh, now)
            return None
        # Same place in the order, so that a reconnecting active consumer stays active.
        self._members = {
            (consumer_id if member is displaced else old_id): (fresh if member is displaced else member)
            for old_id, member in self._members.items()
        }
        self._suspended -= displaced.suspended
        self._delivered_before += displaced.delivered
        self._replaced(displaced, fresh, now)
        return displaced.consumer_id

    def leave(self, consumer_id: int, now: float) -> None:
        """Disconnect a consumer; its unacknowledged messages are delivered again."""
        member = self._members.pop(consumer_id, None)
        if member is not None:
            self._suspended -= member.suspended
            self._delivered_before += member.delivered
            self._left(member, now)

    def credit(self, consumer_id: int, messages: int, size_bytes: int) -> None:
        """Add credit, also a sign of life. Held message credit is capped at ``max_consumer_credit_messages``.

        Raises:
            InvalidArgumentError: a number is negative.
        """
        if messages < 0 or size_bytes < 0:
            raise InvalidArgumentError(f"credit cannot be negative, got {messages} messages and {size_bytes} bytes")
        member = self._members.get(consumer_id)
        if member is not None:
            most = self._limits.max_consumer_credit_messages
            member.credit_messages = min(member.credit_messages + messages, most)
            member.credit_bytes += size_bytes
            if self._suspended and (messages or size_bytes):
                self._resume(consumer_id)
            if member.has_credit:
                self._credited(member)

    def withdraw(self, consumer_id: int) -> tuple[int, int]:
        """Withdraw the credit of a consumer until :meth:`credit` restores it: its connection takes no more data now.

        Returns:
            Messages and bytes of credit that it had; overdrawn credit stays negative.
        """
        member = self._members.get(consumer_id)
        if member is None:
            return 0, 0
        messages, size_bytes = max(0, member.credit_messages), max(0, member.credit_bytes)
        member.credit_messages -= messages
        member.credit_bytes -= size_bytes
        self._uncredited(member)
        return messages, size_bytes

    def _suspend(self, member: Member) -> None:
        """Suspend a consumer that let a message time out."""
        if not member.suspended:
            member.suspended = True
            self._suspended += 1

    def _resume(self, consumer_id: int | None) -> None:
        """Record a sign of life of a consumer. Call it if ``_suspended`` is not 0."""
        member = self._members.get(consumer_id) if consumer_id is not None else None
        if member is not None and member.suspended:
            member.suspended = False
            self._suspended -= 1
            self._resumed(member)

    def _admit(self, name: str, displaced: Member | None) -> None:  # noqa: B027 - a hook
        """Refuse a consumer by raising. Called before anything changes."""

    def _joined(self, member: Member, now: float) -> None:  # noqa: B027 - a hook
        """Called after a consumer was added to ``_members``."""

    def _left(self, member: Member, now: float) -> None:  # noqa: B027 - a hook
        """Called after a consumer was removed from ``_members``."""

    def _replaced(self, old: Member, fresh: Member, now: float) -> None:
        """Called after a consumer took the place of one of the same name in ``_members``."""
        self._left(old, now)
        self._joined(fresh, now)

    def _resumed(self, member: Member) -> None:  # noqa: B027 - a hook
        """Called after a consumer was resumed."""

    def _credited(self, member: Member) -> None:  # noqa: B027 - a hook
        """Called after a consumer received credit, if it has some now."""

    def _uncredited(self, member: Member) -> None:  # noqa: B027 - a hook
        """Called after a consumer lost its credit, other than by a delivery."""

    # --- policy ------------------------------------------------------------------------------------------------------

    def change_policy(self, policy: SubscriptionPolicy, now: float) -> None:
        """Apply another policy from now on, also to messages that are in flight, wait or are poison."""
        if policy != self.policy:
            self.policy = policy
            self._policy_changed(now)

    def _policy_changed(self, now: float) -> None:  # noqa: B027 - a hook
        """Called after ``policy`` was replaced."""

    # --- messages ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def next_read(self, now: float) -> ReadRequest | None:
        """Return the batch that the machine needs now; None if no batch would help."""

    @abstractmethod
    def offered(self, span: Span, now: float) -> Sequence[Delivery | Gap]:
        """Take a batch, and return the deliveries of its messages."""

    # --- acknowledgements --------------------------------------------------------------------------------------------

    @abstractmethod
    def ack(self, ranges: Sequence[int], consumer_id: int | None, now: float) -> list[int]:
        """Acknowledge ranges (flat), whichever consumer sends them.

        Undelivered or already acknowledged offsets are ignored.

        Returns:
            The ranges newly acknowledged by this call, flat and sorted: the content of the next journal entry.
        """

    def ack_cumulative(self, offset: int, consumer_id: int | None, now: float) -> list[int]:
        """Acknowledge every delivered message up to and including ``offset``; returns as :meth:`ack` does.

        Raises:
            FailedPreconditionError: the subscription is shared or key-shared.
        """
        if not self.traits.has_active:
            raise FailedPreconditionError(
                f"cumulative acknowledgement needs an exclusive or failover subscription, and this one is {self.type};"
                " acknowledge messages one by one"
            )
        floor = self.cursor.floor
        return self.ack(self.cursor.solid(floor, offset + 1), consumer_id, now)

    @abstractmethod
    def nack(
        self, consumer_id: int | None, ranges: Sequence[int], delay_s: float | None, now: float, reason: str = ""
    ) -> None:
        """Record failures of messages: redeliver them after a pause, or treat them as poison.

        Args:
            consumer_id: only messages in flight at this consumer count; None: at any.
            ranges: flat; messages not in flight are ignored.
            delay_s: pause before the redelivery; None: the policy's.
            now: monotonic seconds.
            reason: explanation of the failure for a person.
        """

    def failures(self, offset: int) -> int:
        """Return the failures so far of a message in flight; 0 for one that is not in flight."""
        return 0

    def give_back(  # noqa: B027 - nothing to do where nothing is tracked
        self, consumer_id: int, ranges: Sequence[int], now: float
    ) -> None:
        """Redeliver a consumer's messages in flight at once: they were never processed, so they have not failed.

        The consumer's application is stuck, or it would not give messages back: it is suspended, as if it had let
        them time out. Machines that track nothing do nothing here.
        """

    @abstractmethod
    def extend(self, consumer_id: int, ranges: Sequence[int], lease_s: float, now: float) -> None:
        """Let a consumer's messages in flight time out ``lease_s`` seconds from now, but not earlier than before.

        Args:
            consumer_id: the consumer.
            ranges: flat; messages not in flight there are ignored.
            lease_s: seconds from ``now``.
            now: monotonic seconds.
        """

    @abstractmethod
    def discard(self, ranges: Sequence[int], now: float) -> list[int]:
        """Count ranges (flat) as acknowledged without a consumer's acknowledgement; returns as :meth:`ack` does.

        For offsets that the log no longer holds, batches that cannot be opened, and messages copied elsewhere.
        New offsets among them are skipped.
        """

    def past_deliveries(self, limit: int, now: float) -> list[PastDelivery]:
        """Return what is known of unacknowledged messages beyond a first delivery, for :meth:`recall` elsewhere.

        Args:
            limit: maximum number of ranges; those with the lowest offsets count.
            now: monotonic seconds.
        """
        return []

    def recall(self, past: Sequence[PastDelivery], now: float) -> None:  # noqa: B027 - nothing to do without failures
        """Go on with the attempts, failures and pauses of messages from another machine. Call it before any input."""

    def take_settled(self) -> list[int]:
        """Return the ranges that the machine itself acknowledged since the last call, flat and sorted."""
        flat, self.settled_itself = self.settled_itself, []
        if len(flat) > 2:
            flat = merge([number for pair in sorted(zip(flat[::2], flat[1::2], strict=True)) for number in pair])
        return flat

    def poisoned(self, limit: int) -> list[Poisoned]:
        """Return the lowest ``limit`` ranges that wait to be copied to the dead-letter topic.

        They stay set aside until they are acknowledged, or :meth:`discard` is called. Empty under policies other
        than ``dead_letter``.
        """
        return []

    def pass_over(self, end: int) -> None:
        """Go on at ``end``, or behind it: there is nothing to read before it now, and that stays unacknowledged."""
        self.position = self.cursor.next_live(max(self.position, end))

    @abstractmethod
    def rewind(self, now: float) -> None:
        """Read again all that is not acknowledged: what was passed over is there now. All in flight is dropped."""

    @abstractmethod
    def seek(self, offset: int, now: float) -> None:
        """Move the cursor and start again from ``offset``; everything in flight is dropped."""

    # --- time --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def tick(self, now: float) -> None:
        """Process due events: timeouts, ends of pauses, delivery times."""

    def postpone(self, until: float) -> None:  # noqa: B027 - nothing to do where nothing times out
        """Let no message in flight time out before ``until`` (monotonic seconds): the owner did not run for a while.

        It could not receive acknowledgements. Machines that track nothing do nothing here.
        """

    @abstractmethod
    def next_deadline(self) -> float | None:
        """Return when :meth:`tick` must be called (monotonic seconds), or None."""

    # --- explanations ------------------------------------------------------------------------------------------------

    @abstractmethod
    def explain(self, now: float, end_offset: int) -> Explanation:
        """Explain why the subscription moves or does not, given the end of the log."""

    @property
    def delivered_messages(self) -> int:
        """Deliveries since the machine was built, also to consumers that have left."""
        return self._delivered_before + sum(member.delivered for member in self._members.values())

    @property
    def redelivered_messages(self) -> int:
        """Deliveries beyond the first."""
        return self._redelivered

    @property
    def dropped_messages(self) -> int:
        """Messages lost to slow or missing consumers, or given up under the poison policy ``drop``."""
        return self._dropped

    def describe(self, end_offset: int) -> Description:
        """Return the state of the subscription in numbers, given the end of the log."""
        return Description(
            floor=self.cursor.floor,
            position=self.position,
            generation=self.cursor.generation,
            backlog_messages=self.cursor.backlog(end_offset),
            in_flight_messages=sum(member.in_flight for member in self._members.values()),
            waiting_messages=self.waiting_messages(),
            acked_ranges=self.cursor.range_count,
            redelivered_messages=self._redelivered,
            dropped_messages=self._dropped,
            consumers=[
                ConsumerState(
                    consumer_id=member.consumer_id,
                    name=member.name,
                    active=self.active in (None, member.consumer_id),
                    credit_messages=member.credit_messages,
                    credit_bytes=member.credit_bytes,
                    in_flight_messages=member.in_flight,
                    delivered_messages=member.delivered,
                    acked_messages=member.acked,
                    suspended=member.suspended,
                    key_filters=member.filters,
                    delivered_bytes=member.delivered_bytes,
                )
                for member in self._members.values()
            ],
            delayed_messages=self.delayed_messages(),
            poisoned_messages=self.poisoned_messages(),
        )

    def place_of(self, offset: int, now: float) -> Place:
        """Return where one message is. Its cost grows with the ranges that wait: for people who ask, not for rounds."""
        if self.cursor.is_acked(offset):
            return Place(ACKNOWLEDGED)
        return Place(UNDELIVERED) if offset >= self.position else self._place_of(offset, now)

    def _place_of(self, offset: int, now: float) -> Place:
        """Return where an unacknowledged message below the position is."""
        return Place(WAITING)

    def waiting_messages(self) -> int:
        """Return the number of messages that wait for redelivery or for the owner of their key."""
        return 0

    def goes_on(self) -> bool:
        """Return whether read messages will be delivered without intervention: after a pause, with credit, or a move.

        Excludes messages that need intervention: of keys that match no consumer, or that poison blocks.
        """
        return self.waiting_messages() > 0

    def shift_delayed(self, by_s: float) -> bool:
        """Delay waiting messages by ``by_s`` seconds more (negative: less); return whether there are any."""
        return False

    def delayed_messages(self) -> int:
        """Return the number of messages that were read and are not due yet."""
        return 0

    def poisoned_messages(self) -> int:
        """Return the number of messages that have failed too often and are still stored."""
        return 0
