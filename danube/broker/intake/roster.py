"""The producers of one topic that count now: who is attached, arriving or registered, and who may come. Pure.

* A producer is *arriving* from its admission until it attaches, *attached* while it has a sender, and *registered* if
  it sends its messages one at a time, without a session, until it has sent none for ``unary_producer_idle_s``.
* A name counts once against ``max_producers``, whichever of these it is. Producers of the broker itself do not count. A
  name that counts already is never refused.
* An exclusive producer keeps all other names away, until it is detached or an exclusive open takes over.
"""

from __future__ import annotations

from danube.broker.intake.effective_policies import EffectivePolicies
from danube.broker.intake.senders import Sender
from danube.log.producers import ProducerTable
from danube.model import Limits, api
from danube.model.errors import FailedPreconditionError, LimitExceededError
from danube.model.ids import NO_PRODUCER_EPOCH, ProducerId

__all__ = ["Roster"]


class Roster:
    """The producers of a topic.

    Args:
        topic: its name, for error messages.
        table: the known producers.
        limits: ``max_producers_per_topic``, ``max_known_producers_per_topic`` and ``unary_producer_idle_s``.

    Attributes:
        senders: the attached ones, by name of the producer.
        registered: names of producers that send messages one at a time.
    """

    __slots__ = ("_arriving", "_internal", "_limits", "_table", "_topic", "registered", "senders")

    def __init__(self, topic: str, table: ProducerTable, limits: Limits) -> None:
        self._topic = topic
        self._table = table
        self._limits = limits
        self.senders: dict[str, Sender] = {}
        self.registered: dict[str, None] = {}
        self._internal: set[str] = set()
        self._arriving: set[str] = set()

    def check_room(self, name: str, policies: EffectivePolicies) -> None:
        """Refuse a producer if there are too many.

        Raises:
            LimitExceededError: the topic knows, or has, too many producers.
        """
        limits, table = self._limits, self._table
        if len(table) >= limits.max_known_producers_per_topic and table.session_of(name) is None:
            raise LimitExceededError(
                f"producer {name!r} cannot be registered: topic {self._topic!r} knows {len(table)} producers"
                f" (limit max_known_producers_per_topic); each is forgotten {limits.producer_state_expiry_s:g} s after"
                " its last message (producer_state_expiry_s), so reuse the names of producers"
            )
        present = self.senders
        if name not in present and name not in self._arriving and name not in self.registered:
            more = {each for each in (*self._arriving, *self.registered) if each not in present}
            policies.check_room(
                f"topic {self._topic!r}",
                "max_producers",
                len(present) + len(more) - len(self._internal),
                "max_producers_per_topic",
                limits.max_producers_per_topic,
            )

    def check_not_held(self, name: str = "") -> None:
        """Refuse a producer if the topic has another, exclusive one.

        Raises:
            FailedPreconditionError: it has.
        """
        for holder, sender in self.senders.items():
            if sender.session.exclusive and holder != name:
                raise FailedPreconditionError(
                    f"topic {self._topic!r} is held by the exclusive producer {holder!r}; open with exclusive"
                    " access to take it over, or wait until it is closed"
                )

    def arrive(self, name: str) -> None:
        """Count a producer that was admitted, until :meth:`attach` or :meth:`turn_back`."""
        self._arriving.add(name)

    def turn_back(self, name: str) -> None:
        """Do not count a producer any more that was admitted and will not attach."""
        self._arriving.discard(name)

    def attach(self, sender: Sender, *, internal: bool) -> Sender | None:
        """Register a sender; return the one that it replaces, which must be ended.

        Args:
            sender: to register.
            internal: whether it belongs to the broker itself.
        """
        name = sender.session.name
        if internal:
            self._internal.add(name)
        old = self.senders.get(name)
        self.senders[name] = sender
        return old

    def detach(self, sender: Sender) -> None:
        """Remove a sender. No-op if it has been replaced."""
        name = sender.session.name
        if self.senders.get(name) is sender:
            del self.senders[name]
            self._internal.discard(name)

    def fenced(self) -> list[tuple[str, Sender]]:
        """Return the senders whose sessions newer ones have replaced, with the names of their producers."""
        return [(name, sender) for name, sender in self.senders.items() if self._table.is_fenced(sender.session)]

    def idle(self, now_us: int) -> list[str]:
        """Return the registered producers that have sent nothing for too long."""
        before_us = now_us - int(self._limits.unary_producer_idle_s * 1e6)
        return [name for name in self.registered if self._table.used_us(name) < before_us]

    def attached_ids(self) -> set[ProducerId]:
        """Return the ids of the attached producers."""
        return {sender.session.producer_id for sender in self.senders.values()}

    def infos(self) -> list[api.ProducerInfo]:
        """Return a description of each attached or registered producer, by name."""
        found = {name: self._table.session_of(name) for name in sorted({*self.senders, *self.registered})}
        return [
            api.ProducerInfo(
                name,
                self.senders[name].session.epoch if name in self.senders else NO_PRODUCER_EPOCH,
                session.next_sequence if session is not None else 0,
                True,
            )
            for name, session in found.items()
        ]
