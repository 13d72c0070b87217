"""The explanation of a subscription by itself: which of several reasons is given."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from danube.broker.delivery.explain import explanation_of
from danube.model import Rate
from danube.model.errors import DataLossError, StorageUnavailableError, UnavailableError

NOW = 100.0


def explained(state: str = "moving", **changed: Any) -> Any:
    """A subscription that is ``state``, as its machine says, with ``changed`` facts."""
    letters = SimpleNamespace(problem=changed.pop("problem", None), target="/default/dead")
    machine = SimpleNamespace(
        explain=lambda now, end: SimpleNamespace(state=state, sentence=f"it is {state} at {now:g} of {end}"),
        poisoned_messages=lambda: changed.get("poisoned", 1),
    )
    facts: dict[str, Any] = {
        "name": "s",
        "topic": SimpleNamespace(name="/default/t", end_offset=7),
        "cursor": SimpleNamespace(floor=3),
        "machine": machine,
        "failure": None,
        "waits_for": None,
        "moving": False,
        "rate": None,
        "paced_until": math.inf,
        "dead_letters": letters,
        "consumers": {},
    }
    return SimpleNamespace(**(facts | changed))


def consumers(*names: str, holds: bool = True) -> dict[int, Any]:
    return {number: SimpleNamespace(name=name, holds=holds) for number, name in enumerate(names)}


FAILED = {"failure": DataLossError("damaged")}
WAITS = {"waits_for": StorageUnavailableError("away")}
MOVES = {"moving": True}
DEAD = {"problem": UnavailableError("full")}
PACED = {"rate": Rate(messages_per_s=1_000), "paced_until": NOW + 2.5}


@pytest.mark.parametrize(
    ("facts", "state", "text"),
    [
        ({}, "moving", "it is moving at 100 of 7"),
        (PACED, "rate-limited", "its dispatch rate of 1,000 messages a second is used up for 2.5 s"),
        (PACED | {"paced_until": NOW}, "moving", "it is moving at 100 of 7"),
        (PACED | {"paced_until": math.inf}, "moving", "it is moving at 100 of 7"),
        (PACED | DEAD, "dead-lettering", "1 message waits to be copied to '/default/dead'"),
        (DEAD | {"poisoned": 1_200}, "dead-lettering", "1,200 messages wait to be copied to '/default/dead'"),
        (PACED | DEAD | MOVES, "waiting-for-storage", "the seek to offset 3 is not durable yet"),
        (PACED | DEAD | MOVES | WAITS, "waiting-for-storage", "waits for history from the storage"),
        (PACED | DEAD | MOVES | WAITS | FAILED, "failed", "damaged; it is checked again when a consumer connects"),
    ],
)
def test_the_first_reason_is_given(facts: dict[str, Any], state: str, text: str) -> None:
    told = explanation_of(explained(**facts), NOW)
    assert (told.topic, told.subscription, told.state) == ("/default/t", "s", state)
    assert text in told.sentence


@pytest.mark.parametrize(
    ("connected", "text"),
    [
        (consumers("a"), "data sent to 'a' is not read"),
        (consumers("a", "b", "c"), "data sent to 'a', 'b', 'c' is not read"),
        (consumers("a", "b", "c", "d", "e"), "data sent to 'a', 'b', 'c' and 2 more is not read"),
        (consumers("a", holds=False), "it is no-credit at 100 of 7"),
    ],
)
def test_consumers_that_do_not_read_are_named_where_credit_is_missing(connected: dict[int, Any], text: str) -> None:
    told = explanation_of(explained("no-credit", consumers=connected), NOW)
    assert told.state == "no-credit"
    assert text in told.sentence
    assert "is not read" not in explanation_of(explained("moving", consumers=connected), NOW).sentence


def test_a_rate_in_bytes_is_shown_as_such() -> None:
    paced = PACED | {"rate": Rate(messages_per_s=5, bytes_per_s=2_000)}
    assert "5 messages and 2,000 bytes a second" in explanation_of(explained(**paced), NOW).sentence
    assert explanation_of(explained("no-credit", **PACED), NOW).state == "no-credit"
