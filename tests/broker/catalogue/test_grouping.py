"""Which changes fit into one transaction."""

from __future__ import annotations

from danube.broker.catalogue.grouping import RESERVED, Group


def test_changes_that_share_conditions_fit_together() -> None:
    group = Group(128, 1 << 20)
    assert group.add([("/topics/a", 0), ("/namespaces/n", 3)], {"/topics/a": 10})
    assert group.add([("/topics/b", 0), ("/namespaces/n", 3)], {"/topics/b": 10})
    assert not group.is_full


def test_two_changes_of_a_key_do_not() -> None:
    group = Group(128, 1 << 20)
    assert group.add([("/topics/a", 0)], {"/topics/a": 10})
    assert not group.add([("/topics/a", 0)], {"/topics/a": 10})
    assert not group.is_full, "others may fit"


def test_a_change_of_a_key_that_another_one_has_read_does_not() -> None:
    group = Group(128, 1 << 20)
    assert group.add([("/topics/a", 0), ("/namespaces/n", 3)], {"/topics/a": 10})
    assert not group.add([("/namespaces/n", 3)], {"/namespaces/n": 0})
    other = Group(128, 1 << 20)
    assert other.add([("/namespaces/n", 3)], {"/namespaces/n": 0})
    assert not other.add([("/topics/a", 0), ("/namespaces/n", 3)], {"/topics/a": 10})


def test_changes_that_have_seen_different_revisions_do_not() -> None:
    group = Group(128, 1 << 20)
    assert group.add([("/topics/a", 0), ("/namespaces/n", 3)], {"/topics/a": 10})
    assert not group.add([("/topics/b", 0), ("/namespaces/n", 4)], {"/topics/b": 10})


def test_a_transaction_is_bounded() -> None:
    group = Group(10 + RESERVED, 1 << 20)
    added = [group.add([(f"/topics/{number}", 0), ("/n", 1)], {f"/topics/{number}": 1}) for number in range(20)]
    assert added == [True] * 9 + [False] * 11, "one condition is shared"
    assert group.is_full


def test_the_bytes_of_a_transaction_are_bounded() -> None:
    group = Group(128, 100_000)
    added = [group.add([(f"/topics/{number}", 0)], {f"/topics/{number}": 30_000}) for number in range(5)]
    assert added == [True] * 3 + [False] * 2
    assert Group(128, 100_000).add([("/topics/large", 0)], {"/topics/large": 200_000}), "the store refuses it"
