"""Forming a cluster: directed tests of the rules F1 to F5, and random orders of answers and restarts."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.cluster.forming import Founding, Join, Standing, Wait, decide, found, voters_of
from danube.model.errors import ConfigurationError

PEERS = ("a:1", "b:1", "c:1")
INCARNATION = 7525098683182031325
VIRGIN = {name: Standing(name[0] * 4, "danube", PEERS) for name in PEERS}
FOUNDING = found("danube", PEERS, ["aaaa", "bbbb", "cccc"])


def formed(name: str) -> Standing:
    return msgspec.structs.replace(VIRGIN[name], founding=FOUNDING, incarnation=FOUNDING.incarnation)


def answers(*names: str) -> dict[str, Standing]:
    return {name: VIRGIN[name] for name in names}


def test_a_broker_waits_for_all_that_are_listed() -> None:
    assert decide("a:1", VIRGIN["a:1"], {}) == Wait(("b:1", "c:1"))
    assert decide("a:1", VIRGIN["a:1"], answers("c:1")) == Wait(("b:1",))


def test_all_compute_the_same_founding() -> None:
    foundings = [decide(name, VIRGIN[name], answers(*(set(PEERS) - {name}))) for name in PEERS]
    assert foundings == [FOUNDING] * 3
    assert FOUNDING.incarnation == INCARNATION, "stored by members of earlier versions"
    assert FOUNDING.addresses == PEERS
    assert [FOUNDING.broker(identity) for identity in ("aaaa", "bbbb", "cccc", "dddd")] == [1, 2, 3, None]


def test_a_list_of_one_forms_at_once() -> None:
    alone = Standing("aaaa", "danube", ("a:1",))
    assert decide("a:1", alone, {}) == found("danube", ["a:1"], ["aaaa"])


@pytest.mark.parametrize(
    "change",
    [
        ("other", PEERS, ["aaaa", "bbbb", "cccc"]),
        ("danube", ("a:1", "b:1", "d:1"), ["aaaa", "bbbb", "cccc"]),
        ("danube", PEERS, ["aaaa", "bbbb", "dddd"]),
        ("danube", PEERS, ["aaaab", "bbb", "cccc"]),
        ("danube", ("b:1", "a:1", "c:1"), ["aaaa", "bbbb", "cccc"]),
    ],
)
def test_the_incarnation_depends_on_everything(change: tuple[str, tuple[str, ...], list[str]]) -> None:
    assert found(*change).incarnation not in (0, FOUNDING.incarnation)


def test_a_late_founder_forms_what_the_others_have_formed() -> None:
    assert decide("c:1", VIRGIN["c:1"], {"a:1": formed("a:1")}) == FOUNDING


def test_a_founder_with_a_new_disk_joins() -> None:
    wiped = msgspec.structs.replace(VIRGIN["c:1"], identity="new")
    assert decide("c:1", wiped, {"a:1": formed("a:1"), "b:1": VIRGIN["b:1"]}) == Join("a:1", FOUNDING.incarnation)


def test_a_founder_joins_a_cluster_that_was_restored_meanwhile() -> None:
    restored = msgspec.structs.replace(formed("a:1"), incarnation=7)
    assert decide("c:1", VIRGIN["c:1"], {"a:1": restored}) == Join("a:1", 7)


def test_a_new_broker_joins_a_cluster_that_was_not_formed_by_a_list() -> None:
    alone = Standing("aaaa", "danube", (), None, 5)
    assert decide("b:1", VIRGIN["b:1"], {"a:1": alone}) == Join("a:1", 5)


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ({"cluster": "other"}, "belongs to the cluster 'other'"),
        ({"identity": "aaaa"}, "has the same identity as this broker (a:1)"),
        ({"peers": ("a:1", "b:1")}, "was started with other --peers: a:1, b:1; this broker with a:1, b:1, c:1"),
        ({"peers": ()}, "was started with other --peers: none"),
        ({"peers": ("b:1", "a:1", "c:1")}, "in another order"),
        ({"cluster": "other", "incarnation": 4}, "belongs to the cluster 'other'"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(answer: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        decide("a:1", VIRGIN["a:1"], {"b:1": msgspec.structs.replace(VIRGIN["b:1"], **answer)})
    assert part in str(caught.value)
    assert "b:1" in str(caught.value)


def test_a_formed_broker_may_have_been_started_with_another_list() -> None:
    grown = msgspec.structs.replace(formed("b:1"), peers=())
    assert decide("a:1", VIRGIN["a:1"], {"b:1": grown}) == FOUNDING


def test_two_clusters_among_the_answers_are_refused() -> None:
    other = msgspec.structs.replace(formed("c:1"), incarnation=9)
    with pytest.raises(ConfigurationError, match="b:1 and c:1 are members of different clusters"):
        decide("a:1", VIRGIN["a:1"], {"b:1": formed("b:1"), "c:1": other})


@pytest.mark.parametrize(("members", "voters"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (6, 5), (7, 5), (100, 5)])
def test_the_number_of_voters_is_odd(members: int, voters: int) -> None:
    assert voters_of(members) == voters


@given(st.integers(2, 5), st.integers(0, 2**32))
def test_brokers_that_ask_in_any_order_form_one_cluster(members: int, seed: int) -> None:
    """Each asks one other broker at a time; answers of earlier rounds stay. Nothing is lost for ever."""
    chance = random.Random(seed)
    peers = tuple(f"h{number}:1" for number in range(members))
    standing = {peer: Standing(f"id-{peer}", "danube", peers) for peer in peers}
    known: dict[str, dict[str, Standing]] = {peer: {} for peer in peers}
    for _ in range(10_000):
        waiting = [peer for peer in peers if standing[peer].founding is None]
        if not waiting:
            break
        own = chance.choice(waiting)
        asked = chance.choice([peer for peer in peers if peer != own])
        known[own][asked] = standing[asked]
        decision = decide(own, standing[own], known[own])
        if isinstance(decision, Wait):
            assert set(decision.missing) == set(peers) - {own} - set(known[own])
            continue
        assert isinstance(decision, Founding), decision
        standing[own] = msgspec.structs.replace(standing[own], founding=decision, incarnation=decision.incarnation)
    assert len({each.founding for each in standing.values()}) == 1
    assert None not in {each.founding for each in standing.values()}
