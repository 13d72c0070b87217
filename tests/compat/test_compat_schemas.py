"""The schema registry as official clients and tools use it, over their stubs: what upstream's clients rely on."""

from __future__ import annotations

import itertools
import json
from typing import Any

import grpc
import pytest
from upstream_stubs import TIMEOUT_S, Upstream, fails

from danube.compat.proto import danube_api_pb2 as api
from danube.compat.proto import danube_schema_pb2 as pb

_numbers = itertools.count()


@pytest.fixture
def subject() -> str:
    return f"subject-{next(_numbers)}"


def call(upstream: Upstream, method: str, request: Any) -> Any:
    return getattr(upstream.schemas, method)(request, timeout=TIMEOUT_S)


def register(upstream: Upstream, subject: str, schema: Any, kind: str = "json_schema", **more: Any) -> Any:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    request = pb.RegisterSchemaRequest(subject=subject, schema_type=kind, schema_definition=text.encode(), **more)
    return call(upstream, "RegisterSchema", request)


def set_mode(upstream: Upstream, subject: str, mode: str) -> Any:
    request = pb.SetCompatibilityModeRequest(subject=subject, compatibility_mode=mode)
    return call(upstream, "SetCompatibilityMode", request)


def check(upstream: Upstream, subject: str, schema: Any, kind: str = "json_schema", **more: Any) -> Any:
    request = pb.CheckCompatibilityRequest(
        subject=subject, new_schema_definition=json.dumps(schema).encode(), schema_type=kind, **more
    )
    return call(upstream, "CheckCompatibility", request)


def person(*required: str, optional: tuple[str, ...] = ()) -> dict[str, Any]:
    properties = {name: {"type": "string"} for name in (*required, *optional)}
    return {"type": "object", "properties": properties, "required": list(required)}


def test_all_versions_of_a_subject_have_one_id(upstream: Upstream, subject: str) -> None:
    first = register(upstream, subject, person("name"), description="people", tags=["a", "b"], created_by="ann")
    assert first.schema_id > 0
    assert (first.version, first.is_new_version) == (1, True)
    again = register(upstream, subject, person("name"), "JSON")
    assert (again.schema_id, again.version, again.is_new_version) == (first.schema_id, 1, False)
    assert again.fingerprint == first.fingerprint
    second = register(upstream, subject, person("name", optional=("email",)))
    assert (second.schema_id, second.version, second.is_new_version) == (first.schema_id, 2, True)

    latest = call(upstream, "GetLatestSchema", pb.GetLatestSchemaRequest(subject=subject))
    assert (latest.schema_id, latest.version, latest.subject) == (first.schema_id, 2, subject)
    assert (latest.schema_type, latest.compatibility_mode) == ("json_schema", "backward")
    for version, expected in ((None, 2), (1, 1), (2, 2)):
        found = call(upstream, "GetSchema", pb.GetSchemaRequest(schema_id=first.schema_id, version=version))
        assert (found.schema_id, found.version) == (first.schema_id, expected)
    found = call(upstream, "GetSchema", pb.GetSchemaRequest(schema_id=first.schema_id, version=1))
    assert json.loads(found.schema_definition) == person("name"), "as it was registered"
    assert (found.description, found.created_by, list(found.tags)) == ("people", "ann", ["a", "b"])
    assert found.created_at > 1_000_000_000
    versions = call(upstream, "ListVersions", pb.ListVersionsRequest(subject=subject)).versions
    assert [(each.version, each.schema_id) for each in versions] == [(1, first.schema_id), (2, first.schema_id)]
    listed = {each.subject: each for each in call(upstream, "ListSubjects", pb.ListSubjectsRequest()).subjects}
    assert (listed[subject].latest_version, listed[subject].schema_id) == (2, first.schema_id)


@pytest.mark.parametrize(
    ("mode", "old", "new", "is_fine"),
    [
        ("BACKWARD", person("name"), person("name", optional=("email",)), True),
        ("full", person("name"), person("name", optional=("email",)), True),
        ("backward", person("name", "age"), person("name"), False),
        ("FULL", person("name", "age"), person("name"), False),
        ("forward", person("name"), person("name", "age"), False),
        ("FORWARD", person("name", optional=("email",)), person("name"), True),
        ("none", person("name"), {"type": "array"}, True),
        ("backward", {"properties": {"a": {"const": 1}}}, {"properties": {"a": {"const": 2}}}, True),
    ],
)
def test_json_schemas_are_compared_by_upstreams_rule(
    upstream: Upstream, subject: str, mode: str, old: Any, new: Any, is_fine: bool
) -> None:
    register(upstream, subject, old)
    set_mode(upstream, subject, mode)
    checked = check(upstream, subject, new)
    assert checked.is_compatible is is_fine
    assert bool(checked.errors) is not is_fine
    assert check(upstream, subject, new, compatibility_mode="NONE").is_compatible
    if is_fine:
        assert register(upstream, subject, new).version == 2
    else:
        fails("FAILED_PRECONDITION", lambda: register(upstream, subject, new), subject, "compatible")


def test_avro_and_types_without_a_definition(upstream: Upstream, subject: str) -> None:
    field = {"name": "a", "type": "string"}
    record = {"type": "record", "name": "R", "fields": [field]}
    register(upstream, subject, record, "avro")
    longer = {**record, "fields": [field, {"name": "b", "type": "int", "default": 0}]}
    assert register(upstream, subject, longer, "avro").version == 2
    for kind, shown in (("string", "string"), ("bytes", "bytes"), ("number", "number"), ("int64", "number")):
        name = f"{subject}-{kind}"
        register(upstream, name, "", kind)
        found = call(upstream, "GetLatestSchema", pb.GetLatestSchemaRequest(subject=name))
        assert (found.schema_type, found.schema_definition) == (shown, b"")


def test_mistakes_are_final_and_name_the_thing(upstream: Upstream, subject: str) -> None:
    fails("INVALID_ARGUMENT", lambda: register(upstream, subject, "{"), "JSON")
    fails("INVALID_ARGUMENT", lambda: register(upstream, subject, "x", "xml"), "xml")
    request = pb.RegisterSchemaRequest(subject=subject, schema_type="avro", schema_definition=b"\xff\xfe")
    fails("INVALID_ARGUMENT", lambda: call(upstream, "RegisterSchema", request), "UTF-8")
    fails("NOT_FOUND", lambda: call(upstream, "GetLatestSchema", pb.GetLatestSchemaRequest(subject=subject)), subject)
    fails("NOT_FOUND", lambda: call(upstream, "ListVersions", pb.ListVersionsRequest(subject=subject)), subject)
    fails("NOT_FOUND", lambda: call(upstream, "GetSchema", pb.GetSchemaRequest(schema_id=10**9)), "1000000000")
    fails("NOT_FOUND", lambda: check(upstream, subject, {}), subject)
    fails("NOT_FOUND", lambda: set_mode(upstream, subject, "none"), subject)
    fails("INVALID_ARGUMENT", lambda: set_mode(upstream, subject, "sideways"), "sideways")
    number = register(upstream, subject, {}).schema_id
    missing = pb.GetSchemaRequest(schema_id=number, version=99)
    fails("NOT_FOUND", lambda: call(upstream, "GetSchema", missing), "99")


def test_a_deleted_version_is_not_the_latest_and_is_still_found(upstream: Upstream, subject: str) -> None:
    number = register(upstream, subject, person("name")).schema_id
    register(upstream, subject, person("name", optional=("email",)))
    request = pb.DeleteSchemaVersionRequest(subject=subject, version=2)
    assert call(upstream, "DeleteSchemaVersion", request).success
    assert call(upstream, "GetLatestSchema", pb.GetLatestSchemaRequest(subject=subject)).version == 1
    assert call(upstream, "GetSchema", pb.GetSchemaRequest(schema_id=number, version=2)).version == 2
    versions = call(upstream, "ListVersions", pb.ListVersionsRequest(subject=subject)).versions
    assert [each.version for each in versions] == [1]
    fails("NOT_FOUND", lambda: call(upstream, "DeleteSchemaVersion", request), "deleted already")


# --- Topics


def configure(upstream: Upstream, topic: str, subject: str, policy: str, **more: Any) -> Any:
    request = pb.ConfigureTopicSchemaRequest(topic_name=topic, schema_subject=subject, validation_policy=policy, **more)
    return call(upstream, "ConfigureTopicSchema", request)


def config_of(upstream: Upstream, topic: str) -> tuple[str, str, int]:
    found = call(upstream, "GetTopicSchemaConfig", pb.GetTopicSchemaConfigRequest(topic_name=topic))
    return found.schema_subject, found.validation_policy, found.schema_id


def test_the_first_producer_with_a_subject_gives_it_to_its_topic(upstream: Upstream, topic: str, subject: str) -> None:
    number = register(upstream, subject, person("name")).schema_id
    other = f"{subject}-other"
    register(upstream, other, person("name"))
    unknown = api.SchemaReference(subject="nobody")
    fails("FAILED_PRECONDITION", lambda: upstream.create(topic, schema_ref=unknown), "nobody", "not found")
    upstream.create(topic, "plain")
    assert config_of(upstream, topic) == ("", "none", 0)
    upstream.create(topic, "a", schema_ref=api.SchemaReference(subject=subject))
    upstream.create(topic, "b", schema_ref=api.SchemaReference(subject=subject, pinned_version=1))
    assert config_of(upstream, topic) == (subject, "none", number)
    reference = api.SchemaReference(subject=other)
    details = fails("FAILED_PRECONDITION", lambda: upstream.create(topic, "c", schema_ref=reference), "cannot use")
    assert f"uses schema subject {subject!r}" in details
    upstream.create(topic, "plain-again")


def test_partitions_share_the_subject(upstream: Upstream, topic: str, subject: str) -> None:
    register(upstream, subject, person("name"))
    upstream.native(lambda client: client.admin.create_topic(topic, partitions=2))
    for index in (0, 1):
        upstream.create(f"{topic}-part-{index}", schema_ref=api.SchemaReference(subject=subject))
        assert config_of(upstream, f"{topic}-part-{index}")[0] == subject
    assert config_of(upstream, topic)[0] == subject


def test_a_topic_is_configured_by_tools(upstream: Upstream, topic: str, subject: str) -> None:
    update = pb.UpdateTopicValidationPolicyRequest(topic_name=topic, validation_policy="warn")
    fails("NOT_FOUND", lambda: call(upstream, "UpdateTopicValidationPolicy", update), topic)
    upstream.create(topic)
    fails("FAILED_PRECONDITION", lambda: call(upstream, "UpdateTopicValidationPolicy", update), topic)
    fails("NOT_FOUND", lambda: configure(upstream, topic, subject, "warn"), subject)
    number = register(upstream, subject, person("name")).schema_id
    fails("INVALID_ARGUMENT", lambda: configure(upstream, topic, subject, "always"), "always")
    fails("NOT_FOUND", lambda: configure(upstream, "/default/nothing", subject, "warn"), "/default/nothing")
    assert config_of(upstream, topic) == ("", "none", 0), "none of these has changed it"
    assert configure(upstream, topic, subject, "ENFORCE").success
    assert config_of(upstream, topic) == (subject, "enforce", number)
    assert call(upstream, "UpdateTopicValidationPolicy", update).success
    assert config_of(upstream, topic) == (subject, "warn", number)


def test_payloads_are_validated_by_the_broker(upstream: Upstream, topic: str, subject: str) -> None:
    number = register(upstream, subject, person("name")).schema_id
    sender = upstream.create(topic, schema_ref=api.SchemaReference(subject=subject)).producer_id

    def validated() -> bool:
        found = call(upstream, "GetTopicSchemaConfig", pb.GetTopicSchemaConfigRequest(topic_name=topic))
        return found.enable_payload_validation

    good, bad = b'{"name": "Ada"}', b'{"name": 1}'
    assert not validated()
    upstream.send(topic, sender, payload=bad, schema_id=number, schema_version=1)
    assert configure(upstream, topic, subject, "enforce", enable_payload_validation=True).success
    assert validated()
    upstream.send(topic, sender, payload=good, schema_id=number, schema_version=1)
    fails(
        "FAILED_PRECONDITION",
        lambda: upstream.send(topic, sender, payload=bad, schema_id=number, schema_version=1),
        "message 0 of the batch does not fit schema",
    )
    update = pb.UpdateTopicValidationPolicyRequest(topic_name=topic, validation_policy="enforce")
    assert call(upstream, "UpdateTopicValidationPolicy", update).success
    assert not validated(), "the request cannot leave it out"
    upstream.send(topic, sender, payload=bad, schema_id=number, schema_version=1)


def test_messages_have_the_ids_that_they_were_sent_with(upstream: Upstream, topic: str, subject: str) -> None:
    number = register(upstream, subject, person("name")).schema_id
    register(upstream, f"{subject}-a-copy", person("name"))
    register(upstream, subject, person("name", optional=("email",)))
    sender = upstream.create(topic, schema_ref=api.SchemaReference(subject=subject)).producer_id
    sent = [(number, 1), (number, 2), (number, 1), (10**9, 3), (0, 0)]
    consumer = upstream.subscribe(topic).consumer_id
    for schema_id, version in sent:
        fields = {"schema_id": schema_id, "schema_version": version} if schema_id else {}
        upstream.send(topic, sender, **fields)
    with upstream.receiving(consumer) as stream:
        found = [next(stream) for _ in sent]
    assert [(each.schema_id, each.schema_version) for each in found] == sent
    assert not found[-1].HasField("schema_id")


def test_enforced_topics_take_messages_of_their_subject_only(upstream: Upstream, topic: str, subject: str) -> None:
    number = register(upstream, subject, person("name")).schema_id
    sender = upstream.create(topic).producer_id
    configure(upstream, topic, subject, "enforce")
    upstream.send(topic, sender, schema_id=number, schema_version=1)
    fails("FAILED_PRECONDITION", lambda: upstream.send(topic, sender), "no schema")
    fails("FAILED_PRECONDITION", lambda: upstream.send(topic, sender, schema_id=number, schema_version=9), topic)
    with pytest.raises(grpc.RpcError):
        upstream.send(topic, sender, schema_id=10**9, schema_version=1)
    second = register(upstream, subject, person("name", optional=("email",)))
    upstream.send(topic, sender, schema_id=number, schema_version=second.version)
