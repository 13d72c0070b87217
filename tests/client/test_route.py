"""Where a client asks next about a topic: the decisions, without a network."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.client._route import (
    MAX_HOPS,
    MAX_LEARNT_BROKERS,
    MAX_OWNERS,
    MAX_STALE,
    MOST_COUNTED,
    Brokers,
    Owner,
    Route,
)
from danube.client._url import Address
from danube.model.errors import (
    ConnectionLostError,
    DanubeError,
    NotOwnerError,
    OwnerAwayError,
    OwnerFencedError,
    TopicNotFoundError,
)
from danube.model.ids import NO_TOPIC, TopicId

TOPIC = "/default/orders"
A, B, C = (Address(host, 6650) for host in "abc")


def redirect(to: Address | str, epoch: int = 0) -> NotOwnerError:
    details = {"address": str(to)}
    return NotOwnerError(f"topic {TOPIC!r} belongs to {to}", details | ({"epoch": str(epoch)} if epoch else {}))


def asked(route: Route, home: Address = A) -> Address:
    """Ask as the pool does; return the broker."""
    around = [A, B, C]
    around = around[around.index(home) :] + around[: around.index(home)]
    address = route.address or around[route.turn % 3]
    route.asking(address)
    return address


def test_an_unknown_owner_is_asked_of_any_broker_and_followed_at_once() -> None:
    brokers = Brokers([A])
    route = Route(brokers, TOPIC)
    assert (route.address, asked(route)) == (None, A)
    assert route.failed(redirect(B, 4))
    assert asked(route) == B
    route.served()
    assert brokers.owner(TOPIC) == Owner(B, 4)
    assert Route(brokers, TOPIC).address == B
    assert brokers.addresses() == [A, B]


def test_redirects_are_counted_until_a_broker_serves() -> None:
    brokers = Brokers([A, B])
    route = Route(brokers, TOPIC)
    for number in range(1, MAX_HOPS + 3):
        followed = route.failed(redirect(B if asked(route) == A else A, number))
        assert followed == (number != MAX_HOPS + 1)
    route.served()
    route.answered()
    assert brokers.redirects == {MAX_HOPS + 2: 1, 0: 1}
    for _ in range(2 * MOST_COUNTED):
        asked(route)
        route.failed(redirect(B, 100))
    route.served()
    assert brokers.redirects[MOST_COUNTED] == 1


def test_the_broker_that_serves_is_remembered_as_the_owner() -> None:
    brokers = Brokers([A, B])
    route = Route(brokers, TOPIC)
    asked(route)
    route.served()
    assert route.address == A
    assert brokers.owner(TOPIC) == Owner(A, 0)


def test_a_broker_that_only_answers_is_not_taken_for_the_owner() -> None:
    brokers = Brokers([A, B])
    route = Route(brokers, TOPIC)
    asked(route)
    route.answered()
    assert brokers.owner(TOPIC) is None


@pytest.mark.parametrize("error", [ConnectionLostError("x"), OwnerAwayError("x"), OwnerFencedError("x")])
def test_an_owner_that_does_not_serve_is_forgotten_and_any_broker_asked(error: DanubeError) -> None:
    brokers = Brokers([A, B])
    brokers.own(TOPIC, Owner(B, 3))
    route = Route(brokers, TOPIC)
    assert asked(route) == B
    assert not route.failed(error)
    assert (route.address, route.turn, brokers.owner(TOPIC)) == (None, 0, None)


def test_brokers_that_cannot_help_are_asked_in_turn() -> None:
    route = Route(Brokers([A, B, C]), TOPIC)
    found = []
    for _ in range(4):
        found.append(asked(route))
        assert not route.failed(OwnerAwayError("topic waits for broker b4"))
    assert found == [A, B, C, A]


def test_an_unreachable_cluster_does_not_turn() -> None:
    route = Route(Brokers([A, B, C]), TOPIC)
    route.asking(None)
    assert not route.failed(ConnectionLostError("no broker answers"))
    assert (route.address, route.turn) == (None, 0)


def test_an_error_of_the_request_changes_nothing() -> None:
    brokers = Brokers([A])
    brokers.own(TOPIC, Owner(B, 3))
    route = Route(brokers, TOPIC)
    asked(route)
    assert not route.failed(TopicNotFoundError("x"))
    assert route.address == B


def test_a_loop_of_redirects_pauses_and_names_the_brokers() -> None:
    route = Route(Brokers([A]), TOPIC)
    hops = 0
    assert asked(route) == A
    while route.failed(redirect(A if route.asked == B else B)):
        hops += 1
        asked(route)
    assert hops == MAX_HOPS
    error = route.explained(redirect(B))
    assert isinstance(error, NotOwnerError)
    assert "asked in turn: a:6650, b:6650, a:6650, b:6650, and none of them owns it" in error.message
    assert error.address == "b:6650"


def test_what_a_broker_said_says_more_than_another_one_that_was_not_reached() -> None:
    route = Route(Brokers([A, B]), TOPIC)
    lost = ConnectionLostError("no connection to b:6650")
    asked(route)
    assert route.explained(lost) is lost
    away = OwnerAwayError("topic waits for broker b2")
    route.failed(away)
    asked(route)
    route.failed(lost)
    assert route.explained(lost) is away
    route.failed(redirect(B))
    asked(route)
    explained = route.explained(lost)
    assert isinstance(explained, ConnectionLostError)
    assert explained.message == "topic '/default/orders' belongs to b:6650; no connection to b:6650"
    route.asking(None)
    assert route.explained(lost) is lost, "no broker is reachable"
    asked(route)
    route.served()
    assert route.explained(lost) is lost


@pytest.mark.parametrize("named", ["", "not an address at all/", "a:6650"])
def test_a_redirect_to_nowhere_or_to_itself_asks_the_next_broker(named: str) -> None:
    route = Route(Brokers([A, B]), TOPIC)
    assert asked(route) == A
    assert not route.failed(redirect(named))
    assert asked(route) == B


def test_an_older_epoch_is_not_followed() -> None:
    brokers = Brokers([A, B, C])
    brokers.own(TOPIC, Owner(B, 7))
    route = Route(brokers, TOPIC)
    asked(route)
    assert not route.failed(redirect(C, 6))
    assert (route.address, route.turn) == (None, 1)
    asked(route)
    assert route.failed(redirect(C, 8))
    assert route.address == C


def test_the_same_or_an_unknown_epoch_is_followed() -> None:
    for epoch in (0, 7):
        brokers = Brokers([A, B, C])
        brokers.own(TOPIC, Owner(B, 7))
        route = Route(brokers, TOPIC)
        asked(route)
        assert route.failed(redirect(C, epoch))


def test_epochs_that_stay_older_are_those_of_a_topic_that_was_created_again() -> None:
    brokers = Brokers([A, B, C])
    brokers.own(TOPIC, Owner(B, 7))
    route = Route(brokers, TOPIC)
    for _ in range(MAX_STALE):
        assert asked(route) != C or route.turn
        assert not route.failed(redirect(Address("d", 1), 1))
    asked(route)
    assert route.failed(redirect(Address("d", 1), 1))


def test_a_success_starts_a_new_series_of_redirects() -> None:
    route = Route(Brokers([A, B]), TOPIC)
    for _ in range(5):
        for target in (B, C, B):
            asked(route)
            assert route.failed(redirect(target))
        asked(route)
        route.served()
        assert route.failed(redirect(A))
        asked(route)
        route.served()


def test_learnt_brokers_are_bounded_and_unreachable_ones_go_first() -> None:
    brokers = Brokers([A])
    for index in range(MAX_LEARNT_BROKERS):
        assert brokers.learn(f"x{index}:1") == Address(f"x{index}", 1)
    brokers.failed(Address("x9", 1))
    brokers.failed(Address("x5", 1))
    brokers.answered(Address("x5", 1))
    brokers.learn("y:1")
    brokers.learn("z:1")
    found = brokers.addresses()
    assert len(found) == MAX_LEARNT_BROKERS + 1
    assert found[0] == A
    assert Address("x9", 1) not in found
    assert Address("x0", 1) not in found
    assert Address("x5", 1) in found


def test_remembered_owners_are_bounded() -> None:
    brokers = Brokers([A])
    for index in range(MAX_OWNERS + 10):
        brokers.own(f"/default/t{index}", Owner(B, 1))
    assert brokers.owner("/default/t9") is None
    assert brokers.owner(f"/default/t{MAX_OWNERS}") == Owner(B, 1)
    assert len(brokers._owners) == MAX_OWNERS


def test_all_streams_of_a_topic_know_its_last_id() -> None:
    brokers = Brokers([A])
    first, second = Route(brokers, TOPIC), Route(brokers, TOPIC)
    assert first.topic_id == NO_TOPIC
    brokers.identify(TOPIC, TopicId(3))  # a lookup
    assert (first.topic_id, second.topic_id) == (3, 3)
    asked(second)
    second.served(TopicId(4))  # it was created again
    second.served()  # a call that does not tell
    assert (first.topic_id, second.topic_id) == (4, 4)
    for index in range(MAX_OWNERS):
        brokers.identify(f"/default/t{index}", TopicId(5))
    assert first.topic_id == NO_TOPIC
    assert len(brokers._ids) == MAX_OWNERS


def test_forgetting_an_owner_spares_a_newer_one() -> None:
    brokers = Brokers([A])
    brokers.own(TOPIC, Owner(B, 2))
    brokers.disown(TOPIC, A)
    assert brokers.owner(TOPIC) == Owner(B, 2)


def test_known_brokers_form_a_circle() -> None:
    brokers = Brokers([A, B])
    brokers.learn("c")
    assert brokers.addresses(B) == [B, C, A]
    assert brokers.addresses(Address("gone", 1)) == [A, B, C]


@settings(deadline=None, max_examples=300)
@given(
    owners=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6)), min_size=1, max_size=4),
    views=st.lists(st.lists(st.sampled_from("abc-x"), min_size=3, max_size=3), min_size=1, max_size=6),
    home=st.sampled_from("abc"),
)
def test_once_the_brokers_agree_the_owner_is_found_soon(
    owners: list[tuple[str, int]], views: list[list[str]], home: str
) -> None:
    """Brokers answer at random, some are away; then they all know the owner: a bounded number of questions is left."""
    brokers = Brokers([A, B, C])
    route = Route(brokers, TOPIC)
    at = Address(home, 6650)
    epoch = 0
    for (_, step), view in zip(owners * 6, views, strict=False):  # disorder
        epoch += step
        address = asked(route, at)
        says = view[(A, B, C).index(address)] if address in (A, B, C) else "-"
        if says == "-":
            route.failed(ConnectionLostError("away"))
        elif says == address.host:
            route.served()
        else:
            route.failed(redirect(Address(says, 6650), epoch))
    owner = Address(owners[-1][0], 6650)
    in_a_row = pauses = 0
    while True:
        address = asked(route, at)
        if address == owner:
            break
        if address not in (A, B, C):
            at_once = route.failed(ConnectionLostError("away"))
        else:
            at_once = route.failed(redirect(owner, epoch))
        in_a_row = in_a_row + 1 if at_once else 0
        pauses += not at_once
        assert in_a_row <= MAX_HOPS
        assert pauses <= 3
    route.served()
    assert brokers.owner(TOPIC) is not None
    assert route.address == owner
