"""Rules of the catalogue over plain mappings: lookups, and what a change must satisfy."""

from __future__ import annotations

from typing import Any

import pytest

from danube.broker.catalogue.catalogue_records import CatalogueRecords, without_planned
from danube.model import Durability, Limits, TopicPolicies
from danube.model.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidNameError,
    LimitExceededError,
    NamespaceNotFoundError,
    StorageUnavailableError,
    TopicNotFoundError,
)
from danube.model.records import NamespaceRecord, TopicRecord


def topic(*ids: int, partitions: int = 0, **fields: Any) -> TopicRecord:
    return TopicRecord(Durability.DISK, partitions, list(ids), 0, "default", TopicPolicies(), **fields)


def records(**limits: Any) -> CatalogueRecords:
    return CatalogueRecords(
        Limits(**limits),
        {"default": NamespaceRecord(0), "shop": NamespaceRecord(0), "empty": NamespaceRecord(0)},
        {"/default/plain": topic(1), "/shop/parts": topic(2, 3, partitions=2)},
        {"default": "marker"},
        {},
        {"bucket/default/plain": topic(9)},
    )


def test_topics_and_partitions_are_found_by_name() -> None:
    found = records()
    assert [name for name, _ in found.topics()] == ["/default/plain", "/shop/parts"]
    assert [name for name, _ in found.topics("shop")] == ["/shop/parts"]
    assert found.locate("/default/plain")[1] == 1
    assert found.locate("/shop/parts-part-1")[1] == 3
    assert found.alive() == {1, 2, 3, 9}
    assert list(found.withheld("bucket")) == ["/default/plain"]
    assert (found.storage_identity("default"), found.storage_identity("other")) == ("marker", "")


@pytest.mark.parametrize(
    ("name", "error", "what"),
    [
        ("/shop/parts", InvalidArgumentError, "has 2 partitions"),
        ("/shop/parts-part-2", TopicNotFoundError, "which has 2 partitions"),
        ("/default/none-part-0", TopicNotFoundError, "create that with"),
        ("/default/none", TopicNotFoundError, "create it with"),
    ],
)
def test_a_name_without_messages_is_explained(name: str, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        records().locate(name)


def test_a_topic_may_be_unknown() -> None:
    found = records()
    found.unknown = lambda name: StorageUnavailableError(f"whether {name} exists is not known")
    with pytest.raises(StorageUnavailableError):
        found.locate("/default/none")
    assert found.locate("/default/plain")[1] == 1


def test_conditions_of_a_new_topic() -> None:
    found = records(max_topics=4, max_partitions=3)
    found.check_base_name("/default/new")
    found.check_new_topic("/default/new", 1)
    found.check_partitions("/default/new", 3)
    with pytest.raises(InvalidNameError, match="named like a partition"):
        found.check_base_name("/default/new-part-0")
    with pytest.raises(NamespaceNotFoundError, match="danube namespaces create none"):
        found.check_new_topic("/none/new", 1)
    with pytest.raises(AlreadyExistsError):
        found.check_new_topic("/default/plain", 1)
    with pytest.raises(LimitExceededError, match="max_topics = 4"):
        found.check_new_topic("/default/new", 2)
    with pytest.raises(InvalidArgumentError, match="max_partitions = 3"):
        found.check_partitions("/default/new", 4)


def test_conditions_of_a_namespace() -> None:
    found = records(max_namespaces=3)
    with pytest.raises(AlreadyExistsError):
        found.check_new_namespace("shop")
    with pytest.raises(LimitExceededError, match="max_namespaces = 3"):
        found.check_new_namespace("new")
    found.check_delete_namespace("empty")
    for name, error in (
        ("none", NamespaceNotFoundError),
        ("default", FailedPreconditionError),
        ("shop", FailedPreconditionError),
    ):
        with pytest.raises(error):
            found.check_delete_namespace(name)


def test_planned_policies_of_the_topic_apply_in_partitions_that_have_some() -> None:
    found = records(max_planned_subscriptions=2)
    one = found.planned_with("/shop/parts", 3, "s", {"a": 1}, ())
    assert one.planned == {3: {"s": {"a": 1}}}
    later = CatalogueRecords(Limits(max_planned_subscriptions=2), {}, {"/shop/parts": one}, {}, {}, {})
    both = later.planned_with("/shop/parts", 0, "s", {"b": 2}, ())
    assert both.planned == {3: {"s": {"a": 1, "b": 2}}, 0: {"s": {"b": 2}}}
    assert later.planned_with("/shop/parts", 0, "t", {"c": 3}, {"s"}).planned == {0: {"t": {"c": 3}}}
    full = CatalogueRecords(Limits(max_planned_subscriptions=2), {}, {"/shop/parts": both}, {}, {}, {})
    with pytest.raises(LimitExceededError, match="max_planned_subscriptions = 2"):
        full.planned_with("/shop/parts", 0, "t", {"c": 3}, ())
    with pytest.raises(TopicNotFoundError, match="was deleted while"):
        full.planned_with("/shop/gone", 0, "t", {}, ())
    assert without_planned(both, 0, "t") is None
    alone = without_planned(both, 3, "s")
    assert alone is not None
    assert alone.planned == {0: {"s": {"b": 2}}}
    none = without_planned(both, 0, "s")
    assert none is not None
    assert none.planned == {}
