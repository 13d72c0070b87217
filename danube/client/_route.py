"""Where to ask about a topic: known brokers, known owners, and the decision after each failure. Pure: no I/O, no clock.

A client knows the brokers of its URL (*seeds*) and those that others have named (:class:`Brokers`). For each topic a
:class:`Route` decides which broker to ask next: the owner if it is known, otherwise any broker. A broker that is not
the owner names it, and the client goes there at once, at most :data:`MAX_HOPS` times in a row; then, or if the owner
does not answer, it pauses and asks another broker.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from danube.client._url import Address, parse_address
from danube.model.errors import (
    ConfigurationError,
    ConnectionLostError,
    DanubeError,
    NotOwnerError,
    OwnerFencedError,
    UnavailableError,
)
from danube.model.ids import NO_TOPIC, TopicId

__all__ = ["MAX_HOPS", "MAX_LEARNT_BROKERS", "MAX_OWNERS", "MAX_STALE", "MOST_COUNTED", "Brokers", "Owner", "Route"]

MAX_HOPS: Final = 3
"""Redirects that are followed without a pause between them."""
MAX_STALE: Final = 3
"""Redirects in a row of an older epoch than one seen before that are not followed. After more of them they are: the
topic was deleted and created again, and its epochs have started again."""
MAX_LEARNT_BROKERS: Final = 64
"""Addresses that a client remembers beside its seeds."""
MAX_OWNERS: Final = 10_000
"""Topics whose owner and id a client remembers; streams that are open keep their owner in any case."""
MOST_COUNTED: Final = 16
"""Redirects of one call that are counted."""
_TRAIL: Final = 8


class Owner(NamedTuple):
    """A broker that owns a topic, and the epoch of its ownership (0: unknown)."""

    address: Address
    epoch: int


class Brokers:
    """The brokers that a client knows, and the owners of topics."""

    def __init__(self, seeds: Iterable[Address]) -> None:
        self._seeds = dict.fromkeys(seeds)
        self._learnt: dict[Address, int] = {}
        """Number of failed attempts since the last success, by address; the oldest address first."""
        self._owners: dict[str, Owner] = {}
        self._ids: dict[str, TopicId] = {}
        self.redirects: Counter[int] = Counter()
        """How often a broker has served a call or stream after so many redirects; the last number stands for more."""
        self.several = False
        """Whether a broker has named an owner: then topics have several, and any broker cannot answer for all."""

    def learn(self, text: str) -> Address | None:
        """Remember the broker at ``host:port``; return its address, or None if the text is empty or invalid."""
        try:
            address = parse_address(text)
        except ConfigurationError:
            return None
        if address not in self._seeds and address not in self._learnt:
            if len(self._learnt) >= MAX_LEARNT_BROKERS:
                del self._learnt[max(self._learnt, key=self._learnt.__getitem__)]  # of equals, the oldest
            self._learnt[address] = 0
        return address

    def answered(self, address: Address) -> None:
        """Record that a broker was reached."""
        if address in self._learnt:
            self._learnt[address] = 0

    def failed(self, address: Address) -> None:
        """Record that a broker was not reached: it is forgotten earlier than others when there are too many."""
        if address in self._learnt:
            self._learnt[address] += 1

    def addresses(self, first: Address | None = None) -> list[Address]:
        """Return all known brokers: seeds, then learnt ones; in a circle that begins with ``first``."""
        everything = [*self._seeds, *self._learnt]
        if first not in everything:
            return everything
        index = everything.index(first)
        return everything[index:] + everything[:index]

    def owner(self, topic: str) -> Owner | None:
        """Return the last known owner of a topic or partition."""
        return self._owners.get(topic)

    def own(self, topic: str, owner: Owner) -> None:
        """Remember the owner of a topic or partition."""
        self._owners.pop(topic, None)
        self._owners[topic] = owner
        if len(self._owners) > MAX_OWNERS:
            del self._owners[next(iter(self._owners))]

    def topic_id(self, topic: str) -> TopicId:
        """Return the last known id of a topic or partition; 0: unknown."""
        return self._ids.get(topic, NO_TOPIC)

    def identify(self, topic: str, topic_id: TopicId) -> None:
        """Remember the id of a topic or partition: a broker that serves another one has to make sure that it may."""
        self._ids.pop(topic, None)
        self._ids[topic] = topic_id
        if len(self._ids) > MAX_OWNERS:
            del self._ids[next(iter(self._ids))]

    def disown(self, topic: str, address: Address) -> None:
        """Forget that a broker owns a topic."""
        known = self._owners.get(topic)
        if known is not None and known.address == address:
            del self._owners[topic]


class Route:
    """Decides which broker to ask next about one topic, or with an empty name about none in particular."""

    __slots__ = (
        "_asked",
        "_brokers",
        "_hops",
        "_owner",
        "_redirects",
        "_said",
        "_seen_epoch",
        "_stale",
        "_trail",
        "topic",
        "turn",
    )

    def __init__(self, brokers: Brokers, topic: str = "") -> None:
        self.topic = topic
        self.turn = 0
        """If the owner is unknown: which broker to ask, counted from the one that the client uses for everything."""
        self._brokers = brokers
        self._owner = brokers.owner(topic) if topic else None
        self._seen_epoch = 0 if self._owner is None else self._owner.epoch
        self._hops = 0
        self._redirects = 0
        """Since it was served last, those included that were not followed."""
        self._stale = 0
        self._asked: Address | None = None
        self._trail: deque[Address] = deque(maxlen=_TRAIL)
        self._said: DanubeError | None = None
        """What a broker has answered last instead of serving the topic."""

    @property
    def address(self) -> Address | None:
        """The broker to ask; None: any one, see :attr:`turn`."""
        return None if self._owner is None else self._owner.address

    @property
    def topic_id(self) -> TopicId:
        """The id that the topic has as far as this client knows; 0: unknown."""
        return self._brokers.topic_id(self.topic)

    @property
    def asked(self) -> Address | None:
        """The broker that was asked last; None: any, and none could be reached."""
        return self._asked

    def asking(self, address: Address | None) -> None:
        """Record which broker is asked; None: none could be reached."""
        self._asked = address
        if address is not None and (not self._trail or self._trail[-1] != address):
            self._trail.append(address)

    def answered(self) -> None:
        """Record that the broker which was asked has answered; it need not be the owner."""
        self._brokers.redirects[min(self._redirects, MOST_COUNTED)] += 1
        self._redirects = 0
        self._hops = self._stale = self.turn = 0
        self._trail.clear()
        self._said = None

    def served(self, topic_id: TopicId = NO_TOPIC) -> None:
        """Record that the broker which was asked serves the topic, under this id (0: unknown): it is the owner."""
        self.answered()
        if topic_id:
            self._brokers.identify(self.topic, topic_id)
        if self._asked is not None and self.topic:
            if self._owner is None or self._owner.address != self._asked:
                self._owner = Owner(self._asked, self._seen_epoch)
            self._brokers.own(self.topic, self._owner)

    def failed(self, error: DanubeError) -> bool:
        """Decide after a failure; return whether to ask :attr:`address` at once. Otherwise pause, or give up."""
        if not isinstance(error, ConnectionLostError):
            self._said = error
        if isinstance(error, NotOwnerError):
            return self._redirected(error)
        if isinstance(error, UnavailableError | OwnerFencedError):
            # Without a broker that was reached there is no other one to ask: all of them were tried.
            self._ask_any(next_one=self._asked is not None and self._owner is None)
        return False

    def explained(self, error: DanubeError) -> DanubeError:
        """Return the error for the application, after the last of several failures.

        What a broker has said about the topic says more than that another one was not reached afterwards. The error
        about redirects without end names the brokers that were asked.
        """
        if isinstance(error, ConnectionLostError) and self._asked is not None and self._said is not None:
            if not isinstance(self._said, NotOwnerError):
                return self._said
            return ConnectionLostError(f"{self._said.message}; {error.message}")
        if not isinstance(error, NotOwnerError) or not self._trail:
            return error
        asked = ", ".join(map(str, self._trail))
        return NotOwnerError(f"{error.message}; asked in turn: {asked}, and none of them owns it", error.details)

    def _redirected(self, error: NotOwnerError) -> bool:
        self._redirects += 1
        named = self._brokers.learn(error.address)
        epoch = error.epoch
        if named is None or named == self._asked:
            return self._ask_any(next_one=True)
        if 0 < epoch < self._seen_epoch and self._stale < MAX_STALE:
            self._stale += 1
            return self._ask_any(next_one=True)
        self._brokers.several = True
        if epoch:
            self._seen_epoch = epoch
            self._stale = 0
        self._hops += 1
        if self._hops > MAX_HOPS:
            return self._ask_any(next_one=True)
        self._owner = Owner(named, epoch)
        if self.topic:
            self._brokers.own(self.topic, self._owner)
        return True

    def _ask_any(self, *, next_one: bool) -> bool:
        if self._owner is not None:
            self._brokers.disown(self.topic, self._owner.address)
            self._owner = None
            self.turn = 0
        if next_one:
            self.turn += 1
        self._hops = 0
        return False
