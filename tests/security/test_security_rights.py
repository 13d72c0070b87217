"""Decisions: the effects of grants, and that nothing is permitted without one."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from security_helpers import P, bind, service

from danube.model.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, PermissionDeniedError
from danube.security import (
    BUILT_IN_ROLES,
    CLUSTER,
    Binding,
    Grant,
    Permission,
    Principal,
    PrincipalType,
    Reason,
    Resource,
    Rights,
    Role,
    parse_scope,
)

ORDERS = Resource.topic("/shop/orders")
API = service("orders-api")


def test_a_new_cluster_allows_nothing() -> None:
    rights = Rights()
    assert not any(rights.allows(API, each, ORDERS) for each in Permission)


def test_a_binding_gives_what_its_role_gives_where_it_holds() -> None:
    rights = Rights()
    bind(rights, "service:orders-api", "producer", "/shop/ord*")
    assert rights.allows(API, P.PRODUCE, ORDERS)
    assert not rights.allows(API, P.CONSUME, ORDERS)
    assert not rights.allows(API, P.PRODUCE, Resource.topic("/shop/returns"))
    assert not rights.allows(service("other"), P.PRODUCE, ORDERS)
    assert not rights.allows(Principal(PrincipalType.USER, "orders-api"), P.PRODUCE, ORDERS)


def test_a_group_gives_it_to_its_members() -> None:
    rights = Rights()
    bind(rights, "group:platform", "operator", "cluster")
    assert rights.allows(service("x", "platform"), P.MANAGE_BROKER)
    assert not rights.allows(service("x"), P.MANAGE_BROKER)
    assert not rights.allows(service("platform"), P.MANAGE_BROKER)


def test_a_proof_can_only_narrow() -> None:
    rights = Rights()
    bind(rights, "service:orders-api", "producer", "namespace:shop")
    only_orders = (Grant(P.PRODUCE | P.CONSUME, parse_scope("/shop/orders")),)
    only_lookup = (Grant(P.LOOKUP, parse_scope("cluster")),)
    narrow = service("orders-api", ceilings=(only_orders,))
    assert rights.allows(narrow, P.PRODUCE, ORDERS)
    assert not rights.allows(narrow, P.CONSUME, ORDERS), "the ceiling gives nothing by itself"
    assert not rights.allows(narrow, P.PRODUCE, Resource.topic("/shop/returns"))
    assert not rights.allows(service("orders-api", ceilings=(only_orders, only_lookup)), P.PRODUCE, ORDERS)
    assert "the credentials are limited" in rights.explain(narrow, P.LOOKUP, ORDERS).reason


def test_a_change_counts_at_once() -> None:
    rights = Rights()
    binding = bind(rights, "service:orders-api", "producer", "/shop/orders")
    assert rights.allows(API, P.PRODUCE, ORDERS)
    before = rights.generation
    rights.drop_binding(binding.id)
    assert rights.generation > before
    assert not rights.allows(API, P.PRODUCE, ORDERS)


def test_changing_a_role_changes_what_its_bindings_give() -> None:
    rights = Rights()
    rights.put_role(Role("peek", P.LOOKUP))
    bind(rights, "service:orders-api", "peek", "/shop/orders")
    assert not rights.allows(API, P.CONSUME, ORDERS)
    rights.put_role(Role("peek", P.CONSUME))
    assert rights.allows(API, P.CONSUME, ORDERS)
    assert not rights.allows(API, P.LOOKUP, ORDERS)


def test_moving_a_binding_takes_it_from_its_old_subject() -> None:
    rights = Rights()
    binding = bind(rights, "service:orders-api", "producer", "/shop/orders")
    rights.put_binding(Binding(binding.id, "service:other", binding.roles, binding.scope))
    assert not rights.allows(API, P.PRODUCE, ORDERS)
    assert rights.allows(service("other"), P.PRODUCE, ORDERS)


def test_who_is_suspended_may_do_nothing_until_that_ends() -> None:
    rights = Rights()
    bind(rights, "service:orders-api", "admin", "cluster")
    rights.suspend(["service:orders-api"])
    assert not rights.allows(API, P.PRODUCE, ORDERS)
    assert rights.explain(API, P.PRODUCE, ORDERS).reason == "service:orders-api is suspended"
    with pytest.raises(PermissionDeniedError):
        rights.check_may_grant(API, ["producer"], parse_scope("cluster"))
    rights.suspend([])
    assert rights.allows(API, P.PRODUCE, ORDERS)
    rights.suspend(["group:platform"])
    assert not rights.allows(service("orders-api", "platform"), P.PRODUCE, ORDERS)


def test_only_brokers_have_what_brokers_need() -> None:
    rights = Rights()
    bind(rights, "service:orders-api", "admin", "cluster")
    rights.load(
        [Role("bad", P.BROKER_INTERNAL | P.LOOKUP)], [Binding("b", "service:x", ("bad",), parse_scope("cluster"))]
    )
    assert not rights.allows(service("x"), P.BROKER_INTERNAL)
    assert rights.allows(service("x"), P.LOOKUP)
    broker = Principal(PrincipalType.BROKER, "b1")
    assert rights.allows(broker, P.BROKER_INTERNAL)
    assert not any(rights.allows(broker, each, ORDERS) for each in Permission if each is not P.BROKER_INTERNAL)
    assert P.BROKER_INTERNAL not in BUILT_IN_ROLES["admin"].permissions


def test_require_names_what_is_missing() -> None:
    rights = Rights()
    with pytest.raises(PermissionDeniedError, match=r"service:orders-api lacks Produce on /shop/orders"):
        rights.require(API, P.PRODUCE, ORDERS)
    with pytest.raises(PermissionDeniedError, match="ManageBroker on the cluster"):
        rights.require(API, P.MANAGE_BROKER)
    bind(rights, "service:orders-api", "producer", "/shop/orders")
    rights.require(API, P.PRODUCE, ORDERS)


def test_explain_says_what_there_is_instead() -> None:
    rights = Rights()
    bind(rights, "service:orders-api", "producer", "/shop/ord*")
    denied = rights.explain(API, P.CONSUME, ORDERS)
    assert not denied.is_allowed
    assert denied.reason == (
        "no binding grants Consume on /shop/orders; producer (b-1, topic:/shop/ord*) grants Lookup, Produce, Describe,"
        " ReadSchema"
    )
    allowed = rights.explain(API, P.PRODUCE, ORDERS)
    assert (allowed.is_allowed, allowed.reason) == (
        True,
        "producer (b-1, topic:/shop/ord*) grants Produce on /shop/orders",
    )
    assert rights.explain(service("nobody"), P.LOOKUP, CLUSTER).reason == "no binding grants Lookup on the cluster"


def test_explanations_are_data() -> None:
    rights = Rights()
    binding = bind(rights, "service:orders-api", "producer", "/shop/ord*")
    other = bind(rights, "service:orders-api", "consumer", "/shop/returns")
    denied = rights.explain(API, P.CONSUME, ORDERS)
    assert (denied.why, denied.source, denied.permission, denied.resource) == (
        Reason.NOT_GRANTED,
        None,
        P.CONSUME,
        ORDERS,
    )
    assert [each.binding for each in denied.others] == [binding]
    assert [each.binding for each in denied.elsewhere] == [other]
    assert denied.reason.endswith("consumer (b-2, topic:/shop/returns) grants Consume, but not on /shop/orders")
    granted = rights.explain(API, P.PRODUCE, ORDERS)
    assert granted.why is Reason.GRANTED
    assert granted.source is not None
    assert granted.source.binding == binding
    limited = rights.explain(service("orders-api", ceilings=((),)), P.PRODUCE, ORDERS)
    assert (limited.is_allowed, limited.why) == (False, Reason.LIMITED)
    rights.suspend(["service:orders-api"])
    suspended = rights.explain(API, P.PRODUCE, ORDERS)
    assert (suspended.is_allowed, suspended.why, suspended.suspended) == (
        False,
        Reason.SUSPENDED,
        "service:orders-api",
    )
    broker = rights.explain(Principal(PrincipalType.BROKER, "b1"), P.PRODUCE, ORDERS)
    assert (broker.is_allowed, broker.why) == (False, Reason.BROKER)
    assert rights.explain(Principal(PrincipalType.BROKER, "b1"), P.BROKER_INTERNAL).is_allowed


def test_an_explanation_names_few_bindings_for_other_resources() -> None:
    rights = Rights()
    for number in range(50):
        bind(rights, "service:orders-api", "producer", f"/shop/t{number}")
    assert len(rights.explain(API, P.PRODUCE, ORDERS).elsewhere) == 10


def test_rights_on_something_inside_touch_what_is_around_it() -> None:
    rights = Rights()
    bind(rights, "service:orders-api", "producer", "/shop/ord*")
    bind(rights, "service:orders-api", "viewer", "topic:/h*")
    for touched in (CLUSTER, Resource.namespace("shop"), ORDERS, Resource.subscription("/shop/orders", "s")):
        assert rights.touches(API, P.PRODUCE, touched)
    for other in (Resource.namespace("hr"), Resource.topic("/shop/returns"), Resource.schema("/shop/orders")):
        assert not rights.touches(API, P.PRODUCE, other)
    assert rights.touches(API, P.DESCRIBE, Resource.namespace("hr"))
    assert not rights.touches(API, P.CONSUME, CLUSTER)
    assert rights.visible(API, P.PRODUCE, [Resource.namespace("shop"), Resource.namespace("hr")]) == [
        Resource.namespace("shop")
    ]
    ceiling = (Grant(P.PRODUCE, parse_scope("/shop/returns")), Grant(P.DESCRIBE, parse_scope("cluster")))
    narrow = service("orders-api", ceilings=(ceiling,))
    assert not rights.touches(narrow, P.PRODUCE, CLUSTER)
    assert rights.touches(narrow, P.DESCRIBE, CLUSTER)
    rights.suspend(["service:orders-api"])
    assert not rights.touches(API, P.PRODUCE, CLUSTER)
    broker = Principal(PrincipalType.BROKER, "b1")
    assert rights.touches(broker, P.BROKER_INTERNAL)
    assert not rights.touches(broker, P.PRODUCE)


def test_lists_are_filtered() -> None:
    rights = Rights()
    bind(rights, "service:orders-api", "viewer", "/shop/ord*")
    topics = [Resource.topic(name) for name in ("/shop/orders", "/shop/returns", "/hr/salaries")]
    assert rights.visible(API, P.LOOKUP, topics) == [ORDERS]


class TestGranting:
    def test_who_grants_must_have_it(self) -> None:
        rights = Rights()
        bind(rights, "service:lead", "namespace-admin", "namespace:shop")
        lead = service("lead")
        rights.check_may_grant(lead, ["producer", "consumer"], parse_scope("/shop/orders"))
        rights.check_may_grant(lead, ["namespace-admin"], parse_scope("namespace:shop"))
        for roles, scope in (
            (["producer"], "cluster"),
            (["producer"], "namespace:hr"),
            (["producer"], "topic:/sho*"),
            (["operator"], "namespace:shop"),
            (["admin"], "/shop/orders"),
        ):
            with pytest.raises(PermissionDeniedError, match="cannot grant"):
                rights.check_may_grant(lead, roles, parse_scope(scope))

    def test_a_right_without_manage_security_cannot_be_passed_on(self) -> None:
        rights = Rights()
        bind(rights, "service:orders-api", "producer", "cluster")
        with pytest.raises(PermissionDeniedError, match="ManageSecurity"):
            rights.check_may_grant(API, ["producer"], parse_scope("/shop/orders"))

    def test_a_narrow_proof_grants_no_more_than_it_may(self) -> None:
        rights = Rights()
        bind(rights, "service:lead", "admin", "cluster")
        ceiling = (
            Grant(P.MANAGE_SECURITY | P.LOOKUP | P.PRODUCE | P.DESCRIBE | P.READ_SCHEMA, parse_scope("namespace:shop")),
        )
        narrow = service("lead", ceilings=(ceiling,))
        rights.check_may_grant(narrow, ["producer"], parse_scope("/shop/orders"))
        with pytest.raises(PermissionDeniedError):
            rights.check_may_grant(narrow, ["consumer"], parse_scope("/shop/orders"))
        with pytest.raises(PermissionDeniedError):
            rights.check_may_grant(narrow, ["producer"], parse_scope("/hr/orders"))

    def test_an_unknown_role_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="no role 'pilot'"):
            Rights().check_may_grant(API, ["pilot"], parse_scope("cluster"))

    def test_the_last_administrator_stays(self) -> None:
        rights = Rights()
        first = bind(rights, "user:ada", "admin", "cluster")
        for change in (
            lambda: rights.drop_binding(first.id),
            lambda: rights.put_binding(Binding(first.id, "user:ada", ("viewer",), first.scope)),
            lambda: rights.put_binding(Binding(first.id, "user:ada", ("admin",), parse_scope("namespace:shop"))),
        ):
            with pytest.raises(FailedPreconditionError, match="last one that grants the role admin"):
                change()
        rights.put_binding(Binding(first.id, "user:bob", ("admin",), first.scope))
        second = bind(rights, "user:eve", "admin", "cluster")
        rights.drop_binding(first.id)
        assert list(rights.bindings) == [second.id]


class TestRoles:
    def test_built_in_roles_stay_as_they_are(self) -> None:
        rights = Rights()
        with pytest.raises(FailedPreconditionError, match="built in"):
            rights.put_role(Role("admin", P.LOOKUP))
        with pytest.raises(FailedPreconditionError, match="built in"):
            rights.drop_role("viewer")
        rights.load([Role("admin", P.LOOKUP)], [])
        assert rights.roles["admin"] == BUILT_IN_ROLES["admin"]

    def test_a_role_in_use_stays(self) -> None:
        rights = Rights()
        rights.put_role(Role("peek", P.LOOKUP))
        binding = bind(rights, "user:ada", "peek", "/shop/orders")
        with pytest.raises(FailedPreconditionError, match=binding.id):
            rights.drop_role("peek")
        rights.drop_binding(binding.id)
        rights.drop_role("peek")
        with pytest.raises(NotFoundError, match="no role 'peek'"):
            rights.drop_role("peek")

    def test_a_binding_needs_roles_that_exist(self) -> None:
        rights = Rights()
        for roles in ((), ("pilot",), ("viewer", "pilot")):
            with pytest.raises(InvalidArgumentError, match="unknown roles"):
                rights.put_binding(Binding("b", "user:ada", roles, parse_scope("cluster")))
        with pytest.raises(NotFoundError, match="no binding 'b'"):
            rights.drop_binding("b")

    def test_all_built_in_roles_say_so(self) -> None:
        assert all(role.is_built_in and name == role.name for name, role in BUILT_IN_ROLES.items())
        assert not any(P.BROKER_INTERNAL in role.permissions for role in BUILT_IN_ROLES.values())

    def test_an_operator_sees_no_messages(self) -> None:
        operator = BUILT_IN_ROLES["operator"].permissions
        assert not operator & (P.PRODUCE | P.CONSUME | P.MANAGE_SECURITY)
        assert P.MANAGE_CLUSTER in operator


_SUBJECTS = st.sampled_from(["service:a", "service:b", "group:g"])
_SCOPES = st.sampled_from(
    [
        "cluster",
        "namespace:n",
        "/n/t",
        "/n/t*",
        "topic:/n*",
        "/n/t#s",
        "/n/t#s*",
        "schema:x",
        "schema:/n/*",
        "namespace:m",
    ]
).map(parse_scope)
_RESOURCES = st.sampled_from(
    [
        CLUSTER,
        Resource.namespace("n"),
        Resource.namespace("m"),
        Resource.topic("/n/t"),
        Resource.topic("/n/t-part-1"),
        Resource.topic("/nn/t"),
        Resource.subscription("/n/t", "s2"),
        Resource.schema("x"),
        Resource.schema("/n/y"),
    ]
)
_BINDINGS = st.lists(
    st.tuples(_SUBJECTS, st.lists(st.sampled_from(sorted(BUILT_IN_ROLES)), min_size=1, max_size=2), _SCOPES)
)


@given(
    given=_BINDINGS,
    dropped=st.sets(st.integers(0, 5)),
    principal=st.sampled_from([service("a"), service("a", "g"), service("b"), service("c", "g")]),
    permission=st.sampled_from(list(Permission)),
    resource=_RESOURCES,
)
def test_decisions_are_those_of_a_rule_that_fits_on_a_line(given, dropped, principal, permission, resource) -> None:
    bindings = [Binding(str(i), subject, tuple(roles), scope) for i, (subject, roles, scope) in enumerate(given)]
    rights = Rights()
    rights.put_binding(Binding("admin", "user:root", ("admin",), parse_scope("cluster")))
    for each in bindings:
        rights.put_binding(each)
        rights.allows(principal, permission, resource)  # what is remembered must not survive a change
    for each in [each for each in bindings if int(each.id) in dropped]:
        rights.drop_binding(each.id)
        bindings.remove(each)
    expected = any(
        each.subject in principal.subjects
        and each.scope.covers(resource)
        and any(permission in BUILT_IN_ROLES[role].permissions for role in each.roles)
        for each in bindings
    )
    assert rights.allows(principal, permission, resource) is expected
    assert rights.explain(principal, permission, resource).is_allowed is expected
    effective = list(rights.effective(principal))
    assert any(permission in each.permissions and each.scope.covers(resource) for each in effective) is expected
    if expected:
        assert rights.touches(principal, permission, resource)
        assert rights.touches(principal, permission)
    loaded = Rights()
    loaded.load([], bindings)
    assert loaded.allows(principal, permission, resource) is expected


def test_ten_thousand_bindings_cost_no_more_than_ten() -> None:
    """Warm about a microsecond, cold about ten: CPU time, and generous, because machines of tests are busy."""
    rights = Rights()
    rights.load(
        [],
        [
            Binding(str(n), f"service:s{n % 100}", ("producer",), parse_scope(f"/shop/t{n}{'*' * (n % 2)}"))
            for n in range(10_000)
        ],
    )
    one = service("s1")
    resources = [Resource.topic(f"/shop/t{n}") for n in range(1, 10_000, 100)]
    began = time.thread_time()
    assert all(rights.allows(one, P.PRODUCE, each) for each in resources)
    cold = (time.thread_time() - began) / len(resources)
    began = time.thread_time()
    assert all(rights.allows(one, P.PRODUCE, each) for each in resources)
    warm = (time.thread_time() - began) / len(resources)
    assert cold < 500e-6
    assert warm < 50e-6


def test_changing_many_bindings_of_one_subject_costs_the_same_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    rights, many = Rights(), 300
    asked = 0
    permissions = Rights._permissions

    def counting(self: Rights, binding: Binding) -> Permission:
        nonlocal asked
        asked += 1
        return permissions(self, binding)

    monkeypatch.setattr(Rights, "_permissions", counting)
    bindings = [
        Binding(f"b{number}", "service:api", ("producer",), parse_scope(f"topic:/shop/t{number}"))
        for number in range(many)
    ]
    for each in (*bindings, *bindings):
        rights.set_binding(each.id, each)
    for each in bindings:
        rights.set_binding(each.id, None)
    assert asked <= 2 * many
    assert not rights.bindings_of("service:api")


@pytest.mark.parametrize("seed", range(20))
def test_changed_bindings_are_as_good_as_loaded_ones(seed: int) -> None:
    rest, rights = random.Random(seed), Rights()
    kept: dict[str, Binding] = {}
    scopes = ("cluster", "namespace:shop", "topic:/shop/or*", "topic:/shop/orders", "topic:/sh*")
    for _ in range(60):
        name = f"b{rest.randrange(8)}"
        if rest.random() < 0.4:
            rights.set_binding(name, None)
            kept.pop(name, None)
        else:
            role = rest.choice(["producer", "consumer", "viewer", "namespace-admin", "missing"])
            kept[name] = Binding(name, f"service:{rest.choice('ab')}", (role,), parse_scope(rest.choice(scopes)))
            rights.set_binding(name, kept[name])
        fresh = Rights()
        fresh.load((), kept.values())
        for subject in "ab":
            who = service(subject)
            assert dict(rights.bindings_of(str(who))) == dict(fresh.bindings_of(str(who)))
            for resource in (ORDERS, Resource.topic("/shed/x"), Resource.namespace("shop")):
                for permission in Permission:
                    assert rights.allows(who, permission, resource) == fresh.allows(who, permission, resource)
