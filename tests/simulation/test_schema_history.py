"""The checker of what callers saw of a schema registry, rule by rule; and planted bugs that worlds find."""

from __future__ import annotations

import pytest
from planted_schema_bugs import SCHEMA_FOUND_BY, SCHEMA_PLANTS, find_with_schemas, only_with_schemas

from danube.testing.schema_history import SchemaHistory, SeenVersion
from danube.testing.simulation import draw_plan, run_world

STORM_S = 4.0
"""Virtual seconds with faults."""


def registered(history, subject, content, number, version, start, end):
    asked = history.registering(subject, content, start)
    history.acknowledged(asked, number, version, 1000 if subject == "s" else 1001, end)


def usual():
    history = SchemaHistory()
    registered(history, "s", "a", 1, 1, 0, 1)
    registered(history, "s", "b", 2, 2, 2, 3)
    registered(history, "t", "b", 2, 1, 4, 5)
    return history


S_ROWS = [SeenVersion(1, 1, False), SeenVersion(2, 2, False)]
T_ROWS = [SeenVersion(1, 2, False)]


def audit(history, *, s=S_ROWS, t=T_ROWS, where="h1"):
    history.audit("end", where, "s", 1000, s)
    history.audit("end", where, "t", 1001, t)


def test_kept_promises_are_no_violations():
    history = usual()
    history.read("a", 1, 6)
    history.read_version("t", 1, "b", 2, 6)
    history.missed(3, "h1", 0, 1)
    history.missed(2, "h1", 2.5, 4)  # it began before the answer
    history.deleting("s", 1, 7)
    history.deleted("s", [1], 7)
    history.missed_version("s", 1, "h2", 8, 9, deleted=False)
    registered(history, "s", "a", 1, 3, 10, 11)
    rows = [SeenVersion(1, 1, True), SeenVersion(2, 2, False), SeenVersion(3, 1, False)]
    audit(history, s=rows)
    audit(history, s=rows, where="h2")
    refused = history.registering("t", "bad", 12)
    history.refused(refused, "no")
    assert history.check() == []
    assert (history.registered, history.found) == (4, 2)


@pytest.mark.parametrize(
    ("rule", "breaking"),
    [
        ("S1: a has the numbers 1 and 7", lambda history: registered(history, "t", "a", 7, 2, 6, 7)),
        ("S1: number 2 is b and c", lambda history: registered(history, "t", "c", 2, 2, 6, 7)),
        ("S1: number 1 is u and a", lambda history: history.audit("end", "h1", "u", 1, [])),
        ("S1: number 1000 is s and u", lambda history: history.audit("end", "h1", "u", 1000, [])),
        ("S2: version 2 of s is number 2 and number 3", lambda history: registered(history, "s", "c", 3, 2, 6, 7)),
        ("S2: number 1 is version 1 and version 3 of s", lambda history: registered(history, "s", "a", 1, 3, 6, 7)),
        ("S3: number 1 was asked for at 6", lambda history: registered(late(history), "t", "c", 1, 2, 6, 7)),
        ("S3: s: version 1 was asked for at 6", lambda history: registered(late(history), "s", "c", 5, 1, 6, 7)),
        ("S4: h2 says at 7.000000 that there is no number 2", lambda history: history.missed(2, "h2", 6, 7)),
        (
            "S4: h2 says at 7.000000 that there is no version 1 of t",
            lambda history: history.missed_version("t", 1, "h2", 6, 7, deleted=False),
        ),
        ("S5: t has b, which was refused: no", lambda history: history.refused(history.registering("t", "b", 1), "no")),
        ("S6: end: h1 and h2 tell|S6: end: h2 and h1 tell", lambda history: audit(history, t=[], where="h2")),
        ("S6: end: h2 does not tell of t", lambda history: history.audit("end", "h2", "s", 1000, S_ROWS)),
        ("S6: end: version 1 of t was deleted, and is back", lambda history: history.deleted("t", [1], 6)),
        (
            "S6: end: version 1 of s is deleted, and was not to be",
            lambda history: history.audit("end", "h1", "s", 1000, [SeenVersion(1, 1, True), S_ROWS[1]]),
        ),
    ],
)
def test_each_broken_promise_is_a_violation(rule, breaking):
    history = usual()
    breaking(history)
    audit(history)
    found = history.check()
    assert any(each.startswith(tuple(rule.split("|"))) for each in found), found


def late(history):
    """As if number 1 and version 1 of ``s`` had never been seen."""
    fresh = SchemaHistory()
    registered(fresh, "s", "b", 2, 2, 2, 3)
    vars(history).update(vars(fresh))
    return history


def test_a_deletion_that_was_not_answered_may_have_been_made():
    history = usual()
    history.deleting("s", 0, 6)
    audit(history, s=[SeenVersion(1, 1, True), SeenVersion(2, 2, True)])
    assert history.check() == []


@pytest.mark.parametrize("plan", [draw_plan(3, duration_s=STORM_S, kind="schemas"), only_with_schemas(3)])
def test_worlds_with_applications_of_the_registry(plan):
    report = run_world(3, plan=plan)
    assert report.violations == []
    assert report.counts["registered"]


def test_a_world_is_the_same_without_the_registry():
    for seed in range(20):
        for kind, base in (("schemas", "single"), ("cluster-schemas", "cluster")):
            plan, without = draw_plan(seed, kind=kind), draw_plan(seed, kind=base)
            assert plan.schema_users
            assert plan._replace(schema_users=()) == without


@pytest.mark.parametrize("plant", SCHEMA_PLANTS, ids=lambda plant: plant.__name__)
def test_planted_bug_of_the_registry_is_found(plant):
    seed, said = SCHEMA_FOUND_BY[plant.__name__]
    found = find_with_schemas(plant, [seed]) or find_with_schemas(plant, range(20))
    assert found is not None, f"{plant.__doc__} Not found; known: {seed}, {said}"
