"""The table of rights: complete for what is really served, consistent, and compared with the checked-in matrix."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import rights_matrix
from broker.broker_harness import running_broker
from hypothesis import given
from hypothesis import strategies as st
from security_helpers import P, bind, service

import danube.compat
from danube.broker import Broker
from danube.compat.proto import danube_admin_pb2, danube_api_pb2, danube_auth_pb2, danube_schema_pb2
from danube.model import api, stage_api
from danube.model.errors import (
    ConfigurationError,
    InternalError,
    InvalidArgumentError,
    InvalidNameError,
    NotFoundError,
    PermissionDeniedError,
    Status,
    UnauthenticatedError,
    exit_code,
    from_wire,
    http_status,
    to_wire,
)
from danube.model.limits import Limits
from danube.model.schema_api import SchemaMethod
from danube.security import CLUSTER, Principal, PrincipalType, Resource, Rights
from danube.security.flaws import NO_PROOF
from danube.security.resources import resources_of
from danube.security.rights import (
    RULES,
    Access,
    Condition,
    Named,
    Port,
    Refusal,
    Requirement,
    Rule,
    check_served,
    rules_of,
)
from danube.security.verdicts import Verdict, judge, judge_condition, refusal_of
from danube.storage.memory import MemoryBackend
from danube.storage_server._service import StorageService
from danube.wire import Method

FIRST_MESSAGES = {
    api.Method.PUBLISH: api.PublishOpen,
    api.Method.CONSUME: api.ConsumeOpen,
    stage_api.StageMethod.STAGE: stage_api.StageOpen,
    "/danube.ConsumerService/ReceiveMessages": danube_api_pb2.ReceiveRequest,
}
"""The first messages of streams, whose handlers decode them."""
BOOK = rights_matrix.Belongings()
ORDERS = Resource.topic("/shop/orders")


def served(broker: Broker) -> dict[Port, dict[str, Method]]:
    """Return the methods that a broker and a storage server really serve, by port and path."""
    admin = broker._ports.admin
    assert admin is not None
    storage = StorageService(MemoryBackend(), Limits()).service()
    return {Port.CLIENT: broker._ports.client.methods, Port.ADMIN: admin.methods, Port.STORAGE: dict(storage)}


async def test_every_path_that_is_served_has_a_row_and_every_row_is_served(tmp_path: Path) -> None:
    async with running_broker(tmp_path, faces=(danube.compat.face,), admin_listen=["127.0.0.1:0"]) as running:
        for port, methods in served(running.broker).items():
            check_served(port, methods)
            rows = rules_of(port)
            for path, method in methods.items():
                kind = FIRST_MESSAGES.get(path, method.request_type)
                for field in (field for each in rows[path].requirements for field in each.fields):
                    assert has_field(kind, field), f"{kind.__name__} of {path} has no field {field}"


def test_a_port_with_other_paths_than_the_table_is_refused() -> None:
    paths = [*rules_of(Port.STORAGE)]
    check_served(Port.STORAGE, paths)
    with pytest.raises(ConfigurationError, match=r"path /danube.native.v1.Broker/Fly has no row"):
        check_served(Port.STORAGE, [*paths, "/danube.native.v1.Broker/Fly"])
    with pytest.raises(ConfigurationError, match=rf"row for {paths[3]}, which is not served"):
        check_served(Port.STORAGE, paths[:3] + paths[4:])


@pytest.mark.virtual
async def test_operations_of_native_calls_exist(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        operations = running.broker.operations
        named = [rule.operation for path, rule in RULES.items() if path.startswith("/danube.native.v1.")]
        found = [name for name in named if "." in name and not name.startswith("stages.")]
        assert len(found) > 25
        assert [name for name in found if not callable(reduce(getattr, name.split("."), operations))] == []


def has_field(kind: Any, field: str) -> bool:
    """Whether a message has a field, or a field of a field."""
    name, _, rest = field.partition(".")
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return name in kind.__struct_fields__ and not rest
    found = kind.DESCRIPTOR.fields_by_name.get(name)
    if found is None or not rest:
        return found is not None
    return rest in found.message_type.fields_by_name


def test_the_matrix_is_the_one_that_was_reviewed() -> None:
    assert rights_matrix.FILE.read_text("utf-8") == rights_matrix.text(), (
        "who may do what has changed: run python -m tests.security.rights_matrix, and review the difference"
    )


def test_the_command_reports_whether_the_matrix_is_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rights_matrix.main(["--check"]) == 0
    monkeypatch.setattr(rights_matrix, "FILE", tmp_path / "matrix.md")
    rights_matrix.FILE.write_text("old")
    assert rights_matrix.main(["--check"]) == 1
    assert rights_matrix.main([]) == 0
    assert rights_matrix.main(["--check"]) == 0


def test_an_operation_has_the_same_permission_in_all_protocols() -> None:
    found: dict[str, set[tuple[Any, ...]]] = {}
    for rule in RULES.values():
        always = [each for each in rule.requirements if each.condition is Condition.ALWAYS]
        found.setdefault(rule.operation, set()).add(
            (rule.access, rule.refusal, rule.items, *(each.permission for each in always))
        )
    assert {name: kinds for name, kinds in found.items() if len(kinds) > 1} == {}


def test_nothing_is_public_but_health_and_the_exchange_of_keys_and_only_brokers_are_internal() -> None:
    assert {path.split("/")[1] for path, rule in RULES.items() if rule.access is Access.PUBLIC} == {
        "grpc.health.v1.Health",
        "danube.AuthService",
    }
    internal = {
        path.split("/")[1]
        for path, rule in RULES.items()
        if any(each.permission is P.BROKER_INTERNAL for each in rule.requirements)
    }
    assert internal == {"danube.Peers", "danube.storage.v1.Storage"}


def test_rows_are_well_formed() -> None:
    for path, rule in RULES.items():
        assert path == rule.path
        assert all(len(each.permission.titles) == 1 for each in rule.requirements), "one permission each"
        assert (rule.items is not None) == (rule.refusal is Refusal.FILTERED), path
        if rule.requirements:
            assert rule.requirements[0].condition is Condition.ALWAYS, path
        if rule.refusal is not Refusal.DENIED:
            shows = P.LOOKUP | P.DESCRIBE | P.READ_SCHEMA
            assert all(each.permission in shows for each in rule.requirements), "what changes things is denied openly"


class TestVerdicts:
    RULE = RULES[api.Method.DESCRIBE_TOPIC]
    CHANGE = RULES[api.Method.DELETE_TOPIC]

    def judge(self, rule: Rule | None, principal: Principal | None, rights: Rights, topic: str = "/shop/orders") -> Any:
        return judge(rule, principal, rights, api.DescribeTopic(topic), BOOK)

    def test_a_path_without_a_row_is_denied_to_everybody(self) -> None:
        rights = Rights()
        bind(rights, "service:root", "admin", "cluster")
        assert self.judge(None, service("root"), rights) is Verdict.DENIED
        assert self.judge(None, Principal(PrincipalType.BROKER, "b1"), rights) is Verdict.DENIED
        assert self.judge(None, None, rights) is Verdict.UNAUTHENTICATED

    def test_what_may_not_be_seen_does_not_exist_for_those_who_see_something(self) -> None:
        rights = Rights()
        bind(rights, "service:a", "viewer", "/shop/returns")
        assert self.judge(self.RULE, service("a"), rights) is Verdict.HIDDEN
        assert self.judge(self.RULE, service("a"), rights, "/shop/returns") is Verdict.ALLOWED
        assert self.judge(self.RULE, service("b"), rights) is Verdict.DENIED
        assert self.judge(self.CHANGE, service("a"), rights) is Verdict.DENIED

    def test_an_invalid_name_is_an_error_of_the_request(self) -> None:
        rights = Rights()
        with pytest.raises(InvalidNameError):
            self.judge(self.RULE, service("a"), rights, "orders")
        assert self.judge(self.RULE, None, rights, "orders") is Verdict.UNAUTHENTICATED

    def test_a_suspended_principal_may_not_even_ask_for_the_version(self) -> None:
        rights = Rights()
        info = RULES[api.Method.INFO]
        assert judge(info, service("a"), rights, api.Empty(), BOOK) is Verdict.ALLOWED
        rights.suspend(["service:a"])
        assert judge(info, service("a"), rights, api.Empty(), BOOK) is Verdict.DENIED
        assert judge(info, service("a", "g"), rights, api.Empty(), BOOK) is Verdict.DENIED
        rights.suspend(["group:g"])
        assert judge(info, service("a", "g"), rights, api.Empty(), BOOK) is Verdict.DENIED
        assert judge(info, service("a"), rights, api.Empty(), BOOK) is Verdict.ALLOWED

    def test_conditions_are_judged_when_they_hold(self) -> None:
        rights = Rights()
        bind(rights, "service:a", "producer", "/shop/*")
        rule = RULES[api.Method.PUBLISH]
        assert judge(rule, service("a"), rights, api.PublishOpen("/shop/new", "p"), BOOK) is Verdict.ALLOWED
        new = Resource.topic("/shop/new")
        assert judge_condition(rule, Condition.CREATES_TOPIC, service("a"), rights, new) is Verdict.DENIED
        assert judge_condition(rule, Condition.SETS_DEAD_LETTERS, service("a"), rights, new) is Verdict.ALLOWED
        bind(rights, "service:a", "namespace-admin", "/shop/new")
        assert judge_condition(rule, Condition.CREATES_TOPIC, service("a"), rights, new) is Verdict.ALLOWED

    def test_who_sets_dead_letters_must_be_able_to_produce_there(self) -> None:
        rights = Rights()
        bind(rights, "service:a", "consumer", "/shop/*")
        rule = RULES[api.Method.CONSUME]
        secret = Resource.topic("/shop/audit")
        assert judge_condition(rule, Condition.SETS_DEAD_LETTERS, service("a"), rights, secret) is Verdict.DENIED
        bind(rights, "service:a", "producer", "/shop/audit")
        assert judge_condition(rule, Condition.SETS_DEAD_LETTERS, service("a"), rights, secret) is Verdict.ALLOWED

    def test_a_reader_needs_the_whole_topic(self) -> None:
        rights = Rights()
        bind(rights, "service:a", "consumer", "/shop/orders#billing")
        rule = RULES[api.Method.CONSUME]
        opened = api.ConsumeOpen(topic="/shop/orders", subscription="billing", consumer_name="c")
        assert judge(rule, service("a"), rights, opened, BOOK) is Verdict.ALLOWED
        opened.subscription = "audit"
        assert judge(rule, service("a"), rights, opened, BOOK) is Verdict.DENIED
        opened.subscription, opened.reader = "billing", True
        assert judge(rule, service("a"), rights, opened, BOOK) is Verdict.DENIED
        bind(rights, "service:a", "consumer", "/shop/orders")
        assert judge(rule, service("a"), rights, opened, BOOK) is Verdict.ALLOWED

    def test_a_message_is_judged_by_the_topic_that_it_names(self) -> None:
        rights = Rights()
        bind(rights, "service:a", "producer", "/shop/returns")
        rule = RULES["/danube.ProducerService/SendMessage"]
        for topic, verdict in (("/shop/returns", Verdict.ALLOWED), ("/shop/orders", Verdict.DENIED)):
            message = danube_api_pb2.StreamMessage(msg_id=danube_api_pb2.MsgID(producer_id=7, topic_name=topic))
            assert judge(rule, service("a"), rights, message, BOOK) is verdict

    def test_a_consumer_of_others_is_judged_as_one_that_does_not_exist(self) -> None:
        rights = Rights()
        rule, request = RULES["/danube.ConsumerService/ReceiveMessages"], danube_api_pb2.ReceiveRequest(consumer_id=7)
        for known in (BOOK, Nothing()):
            assert judge(rule, service("a"), rights, request, known) is Verdict.DENIED
        bind(rights, "service:a", "consumer", "/hr/salaries")
        for known in (BOOK, Nothing()):
            assert judge(rule, service("a"), rights, request, known) is Verdict.UNKNOWN
        bind(rights, "service:a", "consumer", "/shop/orders")
        assert judge(rule, service("a"), rights, request, BOOK) is Verdict.ALLOWED

    def test_every_topic_of_a_request_counts(self) -> None:
        rights = Rights()
        bind(rights, "service:a", "consumer", "/shop/orders")
        rule = RULES["/danube.native.v1.Logs/State"]
        asked = SimpleNamespace(topics=["/shop/orders", "/shop/returns"])
        assert judge(rule, service("a"), rights, asked, BOOK) is Verdict.DENIED
        bind(rights, "service:a", "consumer", "/shop/returns")
        assert judge(rule, service("a"), rights, asked, BOOK) is Verdict.ALLOWED

    def test_the_subject_that_a_topic_gets_is_judged_by_the_operation(self) -> None:
        rights = Rights()
        bind(rights, "service:a", "schema-admin", "namespace:shop")
        rule = RULES["/danube_schema.SchemaRegistry/ConfigureTopicSchema"]
        request = danube_schema_pb2.ConfigureTopicSchemaRequest(
            topic_name="/shop/orders", schema_subject="/shop/orders-value"
        )
        assert judge(rule, service("a"), rights, request, BOOK) is Verdict.DENIED
        bind(rights, "service:a", "namespace-admin", "/shop/orders")
        assert judge(rule, service("a"), rights, request, BOOK) is Verdict.ALLOWED
        for subject, verdict in (("/shop/orders-value", Verdict.ALLOWED), ("payments-value", Verdict.DENIED)):
            resource = Resource.schema(subject)
            assert judge_condition(rule, Condition.NAMES_SCHEMA, service("a"), rights, resource) is verdict

    def test_refusals_name_what_the_request_names_and_nothing_else(self) -> None:
        def said(path: str, **fields: object) -> str:
            return str(refusal_of(Verdict.DENIED, service("a"), RULES[path], SimpleNamespace(**fields), BOOK))

        assert "Topics/Delete: requires ManageTopic on /shop/orders;" in said(
            api.Method.DELETE_TOPIC, topic="/shop/orders"
        )
        assert "on namespace shop;" in said(api.Method.DELETE_NAMESPACE, namespace="shop")
        topics = [f"/shop/t{number}" for number in range(5)]
        assert "on /shop/t0, /shop/t1, /shop/t2, 2 more;" in said("/danube.native.v1.Logs/State", topics=topics)
        assert "requires ManageTopic on topic;" in said(api.Method.DELETE_TOPIC, topic="what is no name")
        consumer = said("/danube.ConsumerService/ReceiveMessages", consumer_id=7)
        assert "on subscription of the consumer" in consumer

    def test_refusals_say_what_is_required_and_never_what_is_wrong_with_credentials(self) -> None:
        assert refusal_of(Verdict.ALLOWED, service("a"), self.CHANGE) is None
        assert refusal_of(Verdict.FILTERED, service("a"), self.CHANGE) is None
        denied = refusal_of(Verdict.DENIED, service("a"), self.CHANGE)
        assert isinstance(denied, PermissionDeniedError)
        assert "service:a may not call /danube.native.v1.Topics/Delete: requires ManageTopic on topic" in str(denied)
        assert "it has no rule" in str(refusal_of(Verdict.DENIED, service("a"), None))
        assert isinstance(refusal_of(Verdict.HIDDEN, service("a"), self.RULE), NotFoundError)
        unknown = refusal_of(Verdict.UNAUTHENTICATED, None, self.RULE)
        assert isinstance(unknown, UnauthenticatedError)
        assert str(unknown) == NO_PROOF
        assert to_wire(unknown).status is Status.UNAUTHENTICATED
        assert isinstance(from_wire(16, "", "from a proxy"), UnauthenticatedError)
        assert exit_code(unknown) == exit_code(denied) == 77
        assert (http_status(unknown), http_status(denied), http_status(ValueError())) == (401, 403, 500)
        assert http_status(InternalError()) == 500
        assert http_status(NotFoundError()) == 404


class Nothing:
    """A book in which no number belongs to anything."""

    def subscription_of_consumer(self, consumer_id: int) -> None:
        return None

    def subjects_of_schema(self, number: int) -> list[str]:
        return {8: ["a", "b"], 9: [""]}.get(number, [])

    def topics_of_stages(self, producer: str, stage_ids: Any, write_id: str) -> list[str]:
        return ["/shop/a", "/shop/b-part-1"] if (producer, list(stage_ids), write_id) == ("job", [1], "w") else []


class TestResources:
    def of(self, named: Named, **fields: Any) -> list[Resource]:
        requirement = Requirement(P.LOOKUP, named, tuple(fields))
        return resources_of(requirement, SimpleNamespace(**fields), Nothing())

    def test_names_become_resources(self) -> None:
        assert self.of(Named.CLUSTER) == [CLUSTER]
        assert self.of(Named.NAMESPACE, namespace="") == [CLUSTER]
        assert self.of(Named.NAMESPACE, namespace="/shop") == [Resource.namespace("shop")]
        assert self.of(Named.TOPIC, topic="/shop/orders-part-3") == [ORDERS]
        assert self.of(Named.TOPIC, topics=["/shop/orders", "/a/b"]) == [ORDERS, Resource.topic("/a/b")]
        assert self.of(Named.SCHEMA, subject="x") == [Resource.schema("x")]
        assert self.of(Named.SCHEMA, subject="") == [CLUSTER], "the settings of the registry"
        assert self.of(Named.TARGET, target="") == [CLUSTER]
        assert self.of(Named.TARGET, target="shop") == [Resource.namespace("shop")]
        assert self.of(Named.TARGET, target="/shop/orders") == [ORDERS]
        assert self.of(Named.PLACE, subject="b2") == [CLUSTER]
        assert self.of(Named.PLACE, subject="/shop/orders") == [ORDERS]
        assert self.of(Named.BINDING, scope="cluster", name="ignored") == [CLUSTER]
        assert self.of(Named.BINDING, scope="namespace", name="/shop") == [Resource.namespace("shop")]
        assert self.of(Named.BINDING, scope="topic", name="/shop/orders") == [ORDERS]
        with pytest.raises(InvalidArgumentError, match="'queue' is unknown"):
            self.of(Named.BINDING, scope="queue", name="x")

    def test_numbers_that_belong_to_nothing_have_no_resources(self) -> None:
        assert self.of(Named.PRODUCER, topic="/shop/orders") == [ORDERS]
        assert self.of(Named.PRODUCER, topic="") == []
        assert self.of(Named.CONSUMER, consumer_id=1) == []
        assert self.of(Named.SCHEMA_NUMBER, number=1) == []
        assert self.of(Named.SCHEMA_NUMBER, number=8) == [Resource.schema("a"), Resource.schema("b")]
        assert self.of(Named.SCHEMA_NUMBER, number=9) == [CLUSTER], "no subject has it any more"
        assert self.of(Named.STAGES, producer="other") == []

    def test_a_schema_is_readable_by_who_may_read_one_of_its_subjects(self) -> None:
        rights = Rights()
        bind(rights, "service:a", "viewer", "schema:b")
        bind(rights, "service:all", "viewer", "cluster")
        rule, request = RULES[SchemaMethod.GET], SimpleNamespace
        found = [
            [judge(rule, service(name), rights, request(number=number), Nothing()) for number in (7, 8, 9)]
            for name in ("a", "all", "none")
        ]
        assert found == [
            [Verdict.ALLOWED, Verdict.ALLOWED, Verdict.HIDDEN],
            [Verdict.ALLOWED] * 3,
            [Verdict.DENIED] * 3,
        ]

    def test_stages_have_the_topics_of_all_of_them(self) -> None:
        expected = [Resource.topic("/shop/a"), Resource.topic("/shop/b")]
        assert self.of(Named.STAGES, producer="job", stage_ids=[1], write_id="w") == expected
        assert self.of(Named.STAGES, producer="job", stage_ids=[1]) == []

    @pytest.mark.parametrize("topic", ["", "orders", "/shop", "/shop/a#b", "/shop/a/b", "//x", "/shop/*"])
    def test_an_invalid_topic_has_no_rights(self, topic: str) -> None:
        for named, fields in (
            (Named.TOPIC, {"topic": topic}),
            (Named.TOPIC, {"topics": ["/shop/orders", topic]}),
            (Named.SUBSCRIPTION, {"topic": topic, "subscription": "s"}),
            (Named.SUBSCRIPTION, {"topic": topic, "subscription": "s", "reader": True}),
            (Named.BINDING, {"scope": "topic", "name": topic}),
        ):
            with pytest.raises(InvalidNameError):
                self.of(named, **fields)

    @pytest.mark.parametrize("name", ["", "a b", "a/b"])
    def test_an_invalid_subscription_has_no_rights(self, name: str) -> None:
        with pytest.raises(InvalidNameError):
            self.of(Named.SUBSCRIPTION, topic="/shop/orders", subscription=name)

    def test_what_the_operation_knows_is_not_read_from_the_request(self) -> None:
        for named in (Named.DEAD_LETTERS, Named.ANYTHING):
            with pytest.raises(InternalError, match="not in the request"):
                self.of(named)


@given(
    names=st.lists(st.sampled_from(["/n/a", "/n/ab", "/m/a"]), min_size=1, max_size=3),
    scope=st.sampled_from(["cluster", "namespace:n", "/n/a", "/n/a*", "topic:/n*", "/n/a#s"]),
)
def test_a_list_is_filtered_and_never_denied_if_it_has_visible_items(names: list[str], scope: str) -> None:
    rights = Rights()
    bind(rights, "service:a", "viewer", scope)
    rule = RULES[api.Method.LIST_TOPICS]
    items = [Resource.topic(name) for name in names]
    seen = rights.visible(service("a"), P.DESCRIBE, items)
    verdict = judge(rule, service("a"), rights, api.ListTopics(""), BOOK)
    assert verdict is Verdict.FILTERED
    for each in seen:
        inside = judge(rule, service("a"), rights, api.ListTopics(each.name.split("/")[1]), BOOK)
        assert inside is Verdict.FILTERED


def test_admin_protocols_have_the_described_services() -> None:
    """A method that upstream describes and this table lacks would be denied: that is noticed here, without a broker."""
    for module in (danube_admin_pb2, danube_api_pb2, danube_auth_pb2, danube_schema_pb2):
        for described in module.DESCRIPTOR.services_by_name.values():
            for method in described.methods:
                assert f"/{described.full_name}/{method.name}" in RULES
