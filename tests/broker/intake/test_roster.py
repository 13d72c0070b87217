"""The roster of a topic's producers by itself: who counts, who is refused, who is replaced."""

from __future__ import annotations

from typing import Any

import pytest

from danube.broker.intake.effective_policies import EffectivePolicies, stack
from danube.broker.intake.roster import Roster
from danube.log.producers import ProducerSession, ProducerTable
from danube.model import Limits, TopicPolicies
from danube.model.errors import FailedPreconditionError, LimitExceededError

NOW = 10**15


class Sent:
    def __init__(self, session: ProducerSession) -> None:
        self.session = session
        self.in_flight = 0

    def settled(self, token: Any, batch: Any, error: Any) -> None: ...

    def end(self, error: Any) -> None: ...


class World:
    def __init__(self, **limits: Any) -> None:
        self.table = ProducerTable(Limits(**limits), "/default/t")
        self.roster = Roster("/default/t", self.table, Limits(**limits))
        self.ids = 100

    def sender(self, name: str, *, exclusive: bool = False) -> Sent:
        self.ids += 2
        return Sent(self.table.open(name, self.ids, exclusive=exclusive, anonymous=False, now_us=NOW))

    def refused(self, name: str, policies: EffectivePolicies) -> bool:
        try:
            self.roster.check_room(name, policies)
        except LimitExceededError:
            return True
        return False


def policies(most: int | None = None) -> EffectivePolicies:
    return stack([("topic", TopicPolicies(max_producers=most))])


def test_each_name_counts_once_whatever_it_is() -> None:
    world = World()
    world.roster.arrive("a")
    assert not world.refused("b", policies(2))
    world.roster.attach(world.sender("a"), internal=False)
    world.roster.registered["a"] = None
    assert not world.refused("b", policies(2)), "arriving, attached and registered is one"
    world.roster.registered["b"] = None
    assert world.refused("c", policies(2))
    for name in ("a", "b"):
        assert not world.refused(name, policies(1)), "it counts already"
    world.roster.arrive("c")
    assert not world.refused("c", policies(1))
    world.roster.turn_back("c")
    assert world.refused("c", policies(2))


def test_producers_of_the_broker_do_not_count() -> None:
    world = World()
    own = world.sender("own")
    world.roster.attach(own, internal=True)
    assert not world.refused("a", policies(1))
    world.roster.attach(world.sender("a"), internal=False)
    assert world.refused("b", policies(1))
    world.roster.detach(own)
    assert world.refused("b", policies(1))
    assert not world.refused("b", policies(2))


def test_the_limits_of_the_broker_hold_without_a_policy() -> None:
    world = World(max_producers_per_topic=1, max_known_producers_per_topic=2)
    world.roster.attach(world.sender("a"), internal=False)
    assert world.refused("b", policies())
    world.sender("b")
    with pytest.raises(LimitExceededError, match=r"knows 2 producers \(limit max_known_producers_per_topic\)"):
        world.roster.check_room("c", policies())


def test_an_exclusive_producer_keeps_all_others_away() -> None:
    world = World()
    holder = world.sender("a", exclusive=True)
    world.roster.check_not_held("b")
    world.roster.attach(holder, internal=False)
    world.roster.check_not_held("a")
    for name in ("b", ""):
        with pytest.raises(FailedPreconditionError, match="exclusive producer 'a'"):
            world.roster.check_not_held(name)
    world.roster.detach(holder)
    world.roster.check_not_held("b")


def test_a_replaced_sender_is_returned_and_detaches_nothing() -> None:
    world = World()
    first, second = world.sender("a"), world.sender("a")
    assert world.roster.attach(first, internal=False) is None
    assert world.roster.fenced() == [("a", first)]
    assert world.roster.attach(second, internal=False) is first
    assert world.roster.fenced() == []
    world.roster.detach(first)
    assert world.roster.senders == {"a": second}
    assert world.roster.attached_ids() == {second.session.producer_id}


def test_registered_producers_are_idle_after_their_time() -> None:
    world = World(unary_producer_idle_s=10.0)
    world.table.register("a", 50, now_us=NOW)
    world.roster.registered["a"] = None
    assert world.roster.idle(NOW + 10_000_000) == []
    assert world.roster.idle(NOW + 10_000_001) == ["a"]
    assert [each.name for each in world.roster.infos()] == ["a"]
