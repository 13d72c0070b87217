"""Every type of subscription is in all tables that list the types, and no other code asks for a type."""

from __future__ import annotations

import ast
import enum
from pathlib import Path

import pytest

from danube.client._consume_options import default_credit
from danube.compat.policies import SUBSCRIPTION_TYPES
from danube.dispatch import Cursor, Machine, make_subscription
from danube.model import Limits, SubscriptionType
from danube.model.policies import SUBSCRIPTION_TRAITS
from danube.testing._subscriptions import ORDERS
from danube.testing.simulation.upstream import UPSTREAM_TYPES

CHECKOUT = Path(__file__).parents[2]


def missing(kind: SubscriptionType) -> list[str]:
    """Return the tables in which a type is missing."""
    tables = {
        "SUBSCRIPTION_TRAITS (danube/model/policies.py)": SUBSCRIPTION_TRAITS,
        "SUBSCRIPTION_TYPES (danube/compat/policies.py)": SUBSCRIPTION_TYPES,
        "ORDERS (danube/testing/_subscriptions.py)": ORDERS,
        "UPSTREAM_TYPES (danube/testing/simulation/upstream.py)": UPSTREAM_TYPES,
    }
    found = [name for name, table in tables.items() if kind not in table]
    if not isinstance(make_subscription(kind, Cursor(), Limits()), Machine):
        found.append("make_subscription (danube/dispatch/__init__.py)")
    documents = {
        "the table of types (README.md)": f"\n| `{kind.value}` |",
        "the table of combinations (docs/delivery.md)": f"[reliable-plain-{kind.value}]",
    }
    for name, text in documents.items():
        if text not in (CHECKOUT / name.partition("(")[2].rstrip(")")).read_text("utf-8"):
            found.append(name)
    return found


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_every_table_lists_every_type_of_subscription(kind: SubscriptionType) -> None:
    assert missing(kind) == [], f"add {kind.value!r} to these tables; CONTRIBUTING.md lists them, too"


def test_every_dictionary_with_types_as_keys_lists_all_of_them() -> None:
    """Also one that :func:`missing` does not name, because it was added later."""
    tables = 0
    for path in sorted((CHECKOUT / "danube").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Dict):
                keys = {ast.unparse(key) for key in node.keys if isinstance(key, ast.Attribute)}
                if any(key.startswith("SubscriptionType.") for key in keys):
                    tables += 1
                    absent = {f"SubscriptionType.{kind.name}" for kind in SubscriptionType} - keys
                    assert not absent, f"{path.relative_to(CHECKOUT)}:{node.lineno} has no row for {sorted(absent)}"
    assert tables >= 4


class _Further(enum.StrEnum):
    """A type that is in no table."""

    PRIORITY = "priority"


def test_a_type_that_is_in_no_table_is_reported_with_all_of_them() -> None:
    found = missing(_Further.PRIORITY)
    assert [name.rpartition(" (")[0] for name in found] == [
        "SUBSCRIPTION_TRAITS",
        "SUBSCRIPTION_TYPES",
        "ORDERS",
        "UPSTREAM_TYPES",
        "make_subscription",
        "the table of types",
        "the table of combinations",
    ]
    contributing = (CHECKOUT / "CONTRIBUTING.md").read_text("utf-8")
    assert [name for name in found if name.rpartition("(")[0].strip().removeprefix("the ") not in contributing] == []


def test_upstream_numbers_are_distinct_and_those_that_its_clients_send() -> None:
    assert len(set(SUBSCRIPTION_TYPES.values())) == len(SUBSCRIPTION_TYPES)
    assert SUBSCRIPTION_TYPES == UPSTREAM_TYPES


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_consumer_that_is_alone_reads_further_ahead(kind: SubscriptionType) -> None:
    assert default_credit(kind) == (200_000 if kind in ("exclusive", "failover") else 2_000)
