"""The planner of definitions: steps lead to what is wanted, touch nothing else, and are none when it is reached."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.model.definitions import (
    MOST_DEFINED,
    Definitions,
    NamespaceDefinition,
    Plan,
    SubscriptionDefinition,
    TopicDefinition,
    described,
    plan,
    read_definitions,
)
from danube.model.errors import DanubeError, InvalidArgumentError, LimitExceededError
from danube.model.policies import Durability, SubscriptionPolicy, SubscriptionType, TopicPolicies, change_policy


def carried_out(current: Definitions, found: Plan) -> Definitions:
    """A model of what the broker does with the steps of a plan."""
    namespaces, topics = dict(current.namespaces), dict(current.topics)
    for step in found.steps:
        name, changes = step.name, step.changes
        replace = msgspec.structs.replace
        match step.action, step.kind:
            case "create", "namespace":
                assert name not in namespaces
                namespaces[name] = NamespaceDefinition(policies=TopicPolicies())
            case "create", "topic":
                assert name not in topics
                assert name[1:].partition("/")[0] in namespaces, "its namespace comes first"
                durability = Durability(changes.get("durability", "disk"))
                storage = changes.get("storage", "default")
                topics[name] = TopicDefinition(
                    partitions=changes.get("partitions", 0),
                    durability=durability,
                    storage=storage,
                    policies=TopicPolicies(),
                )
            case "expand", "topic":
                assert changes["partitions"] > topics[name].partitions > 0
                topics[name] = replace(topics[name], partitions=changes["partitions"])
            case "change", "namespace":
                policies = change_policy(namespaces[name].policies or TopicPolicies(), changes)
                namespaces[name] = replace(namespaces[name], policies=policies)
            case "change", "topic":
                policies = change_policy(topics[name].policies or TopicPolicies(), changes)
                topics[name] = replace(topics[name], policies=policies)
            case "create", "subscription":
                policy = change_policy(SubscriptionPolicy(), changes.get("policy", {}))
                made = SubscriptionDefinition(
                    type=SubscriptionType(changes["type"]), policy=msgspec.to_builtins(policy)
                )
                assert step.subscription not in topics[name].subscriptions
                topics[name] = replace(
                    topics[name], subscriptions={**topics[name].subscriptions, step.subscription: made}
                )
            case "change", "subscription":
                known = topics[name].subscriptions[step.subscription]
                policy = change_policy(change_policy(SubscriptionPolicy(), known.policy), changes)
                changed = replace(known, policy=msgspec.to_builtins(policy))
                topics[name] = replace(
                    topics[name], subscriptions={**topics[name].subscriptions, step.subscription: changed}
                )
            case "delete", "subscription":
                left = dict(topics[name].subscriptions)
                del left[step.subscription]
                topics[name] = replace(topics[name], subscriptions=left)
            case "delete", "topic":
                del topics[name]
            case "delete", "namespace":
                assert not any(topic.startswith(f"/{name}/") for topic in topics), "only empty ones are deleted"
                del namespaces[name]
            case _:
                raise AssertionError(step)
    return Definitions(namespaces=namespaces, topics=topics)


POLICIES = st.builds(
    TopicPolicies,
    max_producers=st.sampled_from([None, 1, 2]),
    message_ttl_s=st.sampled_from([None, 0.0, 60.0]),
)
SUBSCRIPTIONS = st.builds(
    SubscriptionDefinition,
    type=st.sampled_from([SubscriptionType.SHARED, SubscriptionType.EXCLUSIVE]),
    policy=st.fixed_dictionaries(
        {}, optional={"ack_timeout_s": st.sampled_from([0.0, 30.0]), "max_redelivery_count": st.sampled_from([-1, 5])}
    ),
)
TOPICS = st.builds(
    TopicDefinition,
    partitions=st.sampled_from([0, 2, 4]),
    durability=st.sampled_from([None, Durability.DISK, Durability.OS]),
    policies=st.none() | POLICIES,
    subscriptions=st.dictionaries(st.sampled_from(["a", "b"]), SUBSCRIPTIONS, max_size=2),
)
WANTED = st.builds(
    Definitions,
    namespaces=st.dictionaries(
        st.sampled_from(["default", "shop", "hr"]), st.builds(NamespaceDefinition, policies=st.none() | POLICIES)
    ),
    topics=st.dictionaries(st.sampled_from(["/shop/t", "/shop/u", "/hr/t", "/default/t", "/shop/t-a-dlq"]), TOPICS),
)
NOTHING = Definitions(namespaces={"default": NamespaceDefinition(policies=TopicPolicies())})


@settings(max_examples=100, deadline=None)
@given(WANTED, WANTED, st.booleans())
def test_steps_lead_to_what_is_wanted(first: Definitions, wanted: Definitions, prune: bool) -> None:
    current = carried_out(NOTHING, plan(NOTHING, first))
    assert plan(current, first).steps == [], "what is reached needs no steps"
    found = plan(current, wanted, prune=prune)
    if found.conflicts:
        return
    reached = carried_out(current, found)
    again = plan(reached, wanted, prune=prune)
    assert (again.steps, again.conflicts) == ([], [])
    if not prune:
        assert all(step.action != "delete" for step in found.steps)
        assert current.topics.keys() <= reached.topics.keys()
    for name, topic in current.topics.items():
        if name not in wanted.topics and name in reached.topics:
            assert reached.topics[name] == topic, "what is not mentioned stays"
    for name, wished in wanted.topics.items():
        assert wished.policies in (None, reached.topics[name].policies)
        assert reached.topics[name].subscriptions.keys() >= wished.subscriptions.keys()
    assert "default" in reached.namespaces
    if prune:
        extra = reached.topics.keys() - wanted.topics.keys()
        assert extra <= {"/shop/t-a-dlq"}, "only topics of dead letters are kept"


def test_what_cannot_be_reached_is_a_conflict() -> None:
    current = Definitions(
        namespaces={"shop": NamespaceDefinition()},
        topics={
            "/shop/t": TopicDefinition(
                partitions=4,
                durability=Durability.DISK,
                storage="default",
                subscriptions={"s": SubscriptionDefinition(type=SubscriptionType.SHARED)},
            ),
            "/shop/plain": TopicDefinition(durability=Durability.DISK),
        },
    )
    wanted = Definitions(
        topics={
            "/shop/t": TopicDefinition(
                partitions=2, durability=Durability.OS, storage="far", subscriptions={"s": SubscriptionDefinition()}
            ),
            "/shop/plain": TopicDefinition(partitions=3),
        }
    )
    found = plan(current, wanted)
    assert [conflict.partition(",")[0] for conflict in found.conflicts] == [
        "topic /shop/plain has no partitions",
        "topic /shop/t has 4 partitions",
        "topic /shop/t has durability disk",
        "topic /shop/t is in the storage default",
        "subscription s of /shop/t is shared",
    ]
    assert described(found.steps, found.conflicts)[-1].startswith("! subscription s of /shop/t is shared")


def test_steps_are_sentences_and_a_plan_has_a_fingerprint() -> None:
    wanted = Definitions(
        topics={
            "/shop/t": TopicDefinition(
                partitions=2,
                policies=TopicPolicies(max_producers=3),
                subscriptions={"s": SubscriptionDefinition(type=SubscriptionType.SHARED, start="earliest")},
            )
        }
    )
    found = plan(NOTHING, wanted)
    assert described(found.steps, found.conflicts) == [
        "+ create namespace shop",
        "+ create topic /shop/t: partitions = 2",
        "~ change topic /shop/t: max_producers = 3",
        '+ create subscription s of /shop/t: start = "earliest", type = "shared"',
    ]
    assert found.fingerprint == plan(NOTHING, wanted).fingerprint
    assert found.fingerprint != plan(NOTHING, Definitions()).fingerprint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2}',
        '{"topics": {"orders": {}}}',
        '{"topics": {"/system/audit": {}}}',
        '{"topics": {"/a/b-part-1": {}}}',
        '{"topics": {"/a/b": {"partitions": -1}}}',
        '{"topics": {"/a/b": {"partition": 1}}}',
        '{"topics": {"/a/b": {"subscriptions": {"s": {"policy": {"ack_timeout": 1}}}}}}',
        '{"topics": {"/a/b": {"subscriptions": {"s": {"policy": {"ack_timeout_s": -1}}}}}}',
        '{"topics": {"/a/b": {"subscriptions": {"s": {"start": "17"}}}}}',
        '{"namespaces": {"system": {}}}',
        '{"namespaces": {"a/b": {}}}',
        '{"namespaces": {"a": {"policies": {"max_producers": "x"}}}}',
        "[" * 10_000,
    ],
)
def test_a_wrong_file_is_refused(text: str) -> None:
    with pytest.raises(DanubeError) as caught:
        read_definitions(text.encode())
    assert isinstance(caught.value, InvalidArgumentError)


def test_definitions_are_bounded() -> None:
    topics = ",".join(f'"/a/t{number}": {{}}' for number in range(MOST_DEFINED + 1))
    with pytest.raises(LimitExceededError):
        read_definitions(f'{{"topics": {{{topics}}}}}'.encode())
