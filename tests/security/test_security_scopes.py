"""Scopes and resources: which scope covers which resource."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.model.errors import InvalidArgumentError
from danube.security import CLUSTER, Permission, Resource, Scope, ScopeKind, parse_scope
from danube.security.permissions import parse_permissions
from danube.security.roles import parse_subject

TOPIC = Resource.topic("/shop/orders")
SUBSCRIPTION = Resource.subscription("/shop/orders", "billing")


@pytest.mark.parametrize(
    ("scope", "covered", "not_covered"),
    [
        ("cluster", [CLUSTER, TOPIC, SUBSCRIPTION, Resource.schema("x"), Resource.namespace("shop")], []),
        (
            "namespace:shop",
            [Resource.namespace("/shop"), TOPIC, SUBSCRIPTION, Resource.schema("/shop/orders-value")],
            [CLUSTER, Resource.namespace("shopping"), Resource.topic("/shopping/x"), Resource.schema("shop")],
        ),
        (
            "topic:/shop/orders",
            [
                TOPIC,
                SUBSCRIPTION,
                Resource.topic("/shop/orders-part-7"),
                Resource.subscription("/shop/orders-part-0", "s"),
            ],
            [CLUSTER, Resource.namespace("shop"), Resource.topic("/shop/orders2"), Resource.schema("/shop/orders")],
        ),
        (
            "topic:/shop/ord*",
            [TOPIC, SUBSCRIPTION, Resource.topic("/shop/ord")],
            [Resource.topic("/shop/or"), Resource.topic("/default/ord")],
        ),
        (
            "subscription:/shop/orders#bill*",
            [SUBSCRIPTION, Resource.subscription("/shop/orders-part-3", "bill")],
            [TOPIC, Resource.subscription("/shop/orders", "b"), Resource.subscription("/shop/orders2", "billing")],
        ),
        ("subscription:/shop/orders#billing", [SUBSCRIPTION], [Resource.subscription("/shop/orders", "billing2")]),
        ("schema:orders-value", [Resource.schema("orders-value")], [Resource.schema("orders-value2"), TOPIC]),
        ("schema:*", [Resource.schema("a"), Resource.schema("/shop/b")], [TOPIC, CLUSTER]),
    ],
)
def test_a_scope_covers(scope: str, covered: list[Resource], not_covered: list[Resource]) -> None:
    parsed = parse_scope(scope)
    assert str(parsed) == scope
    assert [each for each in covered if not parsed.covers(each)] == []
    assert [each for each in not_covered if parsed.covers(each)] == []


@pytest.mark.parametrize(
    ("short", "long"),
    [("/shop/orders", "topic:/shop/orders"), ("/shop/o*", "topic:/shop/o*"), ("/a/b#c", "subscription:/a/b#c")],
)
def test_a_path_is_a_topic_or_a_subscription(short: str, long: str) -> None:
    assert parse_scope(short) == parse_scope(long)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "clusters",
            "cluster:",
            "topic:",
            "topic:orders",
            "topic:/shop",
            "/shop",
            "namespace:",
            "namespace:sh*",
            "*",
        ),
        *("namespace:a/b", "topic:/shop/orders-part-3", "subscription:/shop/orders", "subscription:/shop/ord*#x"),
        *(
            "schema:",
            "subscription:/shop/orders#a b",
            "topic:/shop/a#b",
            "topic:/sh op/x",
            "queue:x",
            "topic:*",
            "topic:/*/x",
        ),
    ],
)
def test_invalid_scopes_are_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"scope|partition"):
        parse_scope(text)


def test_permissions_are_parsed_by_their_names() -> None:
    assert parse_permissions(["Produce", "managetopic"]) == Permission.PRODUCE | Permission.MANAGE_TOPIC
    assert Permission.MANAGE_TOPIC.title == "ManageTopic"
    assert (Permission.LOOKUP | Permission.READ_SCHEMA).titles == ("Lookup", "ReadSchema")
    for unknown in ("Fly", "BrokerInternal", ""):
        with pytest.raises(InvalidArgumentError, match="the permissions are: Lookup"):
            parse_permissions([unknown])


@pytest.mark.parametrize("text", ["", "ada", "user:", "broker:b1", "anybody:x", "user:a\nb", "user:" + "x" * 256])
def test_invalid_subjects_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a subject"):
        parse_subject(text)
    assert parse_subject("service:orders-api") == "service:orders-api"


_NAMES = st.sampled_from(["a", "ab", "abc", "b", "ba"])
_TOPICS = st.builds("/{}/{}".format, _NAMES, _NAMES)
_RESOURCES = st.one_of(
    st.just(CLUSTER),
    st.builds(Resource.namespace, _NAMES),
    st.builds(Resource.topic, _TOPICS),
    st.builds(Resource.subscription, _TOPICS, _NAMES),
    st.builds(Resource.schema, st.one_of(_NAMES, _TOPICS)),
)
_SCOPES = st.one_of(
    st.just(Scope(ScopeKind.CLUSTER, "")),
    st.builds(Scope, st.just(ScopeKind.NAMESPACE), _NAMES, st.just(False)),
    st.builds(Scope, st.just(ScopeKind.TOPIC), _TOPICS, st.booleans()),
    st.builds(Scope, st.just(ScopeKind.TOPIC), st.sampled_from(["/a", "/a/", "/ab"]), st.just(True)),
    st.builds(Scope, st.just(ScopeKind.SUBSCRIPTION), st.builds("{}#{}".format, _TOPICS, _NAMES), st.booleans()),
    st.builds(Scope, st.just(ScopeKind.SCHEMA), st.one_of(_NAMES, _TOPICS), st.booleans()),
)


@given(outer=_SCOPES, inner=_SCOPES, resource=_RESOURCES)
def test_an_enclosing_scope_covers_all_that_its_parts_cover(outer: Scope, inner: Scope, resource: Resource) -> None:
    if outer.contains(inner) and inner.covers(resource):
        assert outer.covers(resource)


@given(one=_SCOPES, other=_SCOPES, resource=_RESOURCES)
def test_the_overlap_of_two_scopes_covers_what_both_cover(one: Scope, other: Scope, resource: Resource) -> None:
    both = one.overlap(other)
    assert both == other.overlap(one) or (one.contains(other) and other.contains(one))
    covered = one.covers(resource) and other.covers(resource)
    assert covered == (both is not None and both.covers(resource))


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("topic:/sh*", "namespace:shop", "topic:/shop/*"),
        ("topic:/shop*", "namespace:shop", "topic:/shop/*"),
        ("topic:/shopp*", "namespace:shop", None),
        ("schema:/sh*", "namespace:shop", "schema:/shop/*"),
        ("schema:*", "namespace:shop", "schema:/shop/*"),
        ("schema:sh*", "namespace:shop", None),
        ("/shop/a", "/shop/ab", None),
        ("/shop/a#s", "/shop/a", "subscription:/shop/a#s"),
        ("/shop/a#s*", "/shop/a#st", "subscription:/shop/a#st"),
        ("/shop/a#s", "/shop/b", None),
        ("/shop/a#s", "/shop/*", "subscription:/shop/a#s"),
        ("namespace:a", "namespace:b", None),
        ("cluster", "/shop/a*", "topic:/shop/a*"),
    ],
)
def test_what_two_scopes_have_in_common(one: str, other: str, both: str | None) -> None:
    expected = None if both is None else parse_scope(both)
    assert parse_scope(one).overlap(parse_scope(other)) == expected
    assert parse_scope(other).overlap(parse_scope(one)) == expected


@given(scope=_SCOPES)
def test_a_scope_contains_itself_and_the_cluster_contains_all(scope: Scope) -> None:
    assert scope.contains(scope)
    assert Scope(ScopeKind.CLUSTER, "").contains(scope)
