"""The pure parts of the HTTP API: twins, routes, lists, positions, settings, the guard."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.broker.runtime.config import make_config
from danube.http import Target, event_text, parse_target
from danube.http._negotiation import accepts_gzip, entity_tag, matches
from danube.http._problem import status_of
from danube.model import api, history_api, query_api, stage_api
from danube.model.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    JournalFullError,
    MessageTooLargeError,
    NotFoundError,
    PermissionDeniedError,
    StorageDeniedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from danube.model.ids import TopicId
from danube.model.policies import Durability, Retention, SubscriptionPolicy
from danube.model.secret import Secret
from danube.security.rights import RULES
from danube.web.face import _HANDLERS, check_rights
from danube.web.guard import check_caller, host_name
from danube.web.inner import token_of
from danube.web.lists import page_of
from danube.web.messages import Last, parse_positions, shown_positions
from danube.web.pipe import open_pipe
from danube.web.router import Router, values_of
from danube.web.routes import BY_OPERATION, ROUTES
from danube.web.settings import settings_of
from danube.web.twins import as_native, plain, twin, without

ROUTER = Router()
LARGE = 2**63 + 12345


def test_ids_are_texts_and_everything_else_keeps_its_name() -> None:
    info = api.TopicInfo(
        topic="/a/b",
        topic_id=TopicId(LARGE),
        partitions=0,
        durability=Durability.DISK,
        start_offset=1,
        end_offset=2,
        stored_bytes=3,
        producers=[],
        subscriptions=["s"],
        created_us=5,
    )
    found = json.loads(msgspec.json.encode(plain(info)))
    assert found["topic_id"] == str(LARGE)
    assert (found["durability"], found["subscriptions"], found["retention"]["max_age_s"]) == ("disk", ["s"], 0)
    assert list(found) == list(api.TopicInfo.__struct_fields__)
    assert msgspec.json.decode(msgspec.json.encode(plain(info)), type=twin(api.TopicInfo)).topic_id == str(LARGE)


@pytest.mark.parametrize(
    "kind",
    [
        api.BrokerInfo,
        api.SubscriptionList,
        history_api.StoragesStatus,
        query_api.LogStates,
        stage_api.StageList,
        api.CreateTopic,
    ],
)
def test_twins_follow_their_structs(kind: type[msgspec.Struct]) -> None:
    made = twin(kind)
    assert twin(kind) is made
    assert made.__struct_fields__ == kind.__struct_fields__
    assert not made.__struct_config__.array_like
    msgspec.json.schema(made)


def test_requests_become_native_ones() -> None:
    body = without(api.CreateTopic, "topic")
    decoded = msgspec.json.decode(b'{"partitions": 3, "retention": {"max_bytes": 7}}', type=body)
    assert as_native(decoded, api.CreateTopic, topic="/a/b") == api.CreateTopic(
        "/a/b", 3, None, "", Retention(max_bytes=7)
    )
    stranded = msgspec.json.decode(b'{"topic_ids": ["%d"]}' % LARGE, type=twin(history_api.ForgetStranded))
    assert as_native(stranded, history_api.ForgetStranded).topic_ids == [LARGE]
    with pytest.raises(InvalidArgumentError, match="64 bits"):
        as_native(twin(history_api.ForgetStranded)(topic_ids=[str(2**64)]), history_api.ForgetStranded)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"topic_ids": ["-1"]}', type=twin(history_api.ForgetStranded))


def test_each_route_has_a_handler_and_rights() -> None:
    assert {route.operation for route in ROUTES} == set(_HANDLERS) == set(BY_OPERATION)
    check_rights()
    open_to_all = {route.operation for route in ROUTES if not route.calls}
    assert open_to_all == {"livez", "readyz", "startupz", "openapi"}, "decide what a new route needs"
    for route in ROUTES:
        assert all(path in RULES for path in route.calls), route
        assert route.template.startswith("/api/v1/") or route.operation.endswith(("z", "metrics")), route


def test_each_route_is_in_the_document() -> None:
    text = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text("utf-8")
    shown = re.findall(r"^\| ([A-Z]+) \| `([^`]*)` \|", text, re.MULTILINE)
    assert shown == [(route.method, route.template.replace("{namespace}/{name}", "{ns}/{name}")) for route in ROUTES]


def matched(method: str, path: str) -> tuple[str, dict[str, str]] | None:
    found = ROUTER.match(method, parse_target(path.encode()))
    return None if found.route is None else (found.route.operation, dict(found.path))


def test_paths_mean_routes() -> None:
    topic = {"namespace": "ns", "name": "t"}
    for method, path, operation, values in (
        ("GET", "/livez", "livez", {}),
        ("GET", "/api/v1/topics/ns/t", "show_topic", topic),
        ("POST", "/api/v1/topics/ns/t:seal", "seal_topic", topic),
        ("GET", "/api/v1/topics/ns/t/messages", "read_messages", topic),
        ("GET", "/api/v1/topics/ns/t/messages:tail", "tail_messages", topic),
        ("GET", "/api/v1/topics/ns/t/messages/3/4", "read_message", topic | {"partition": "3", "offset": "4"}),
        ("POST", "/api/v1/topics/ns/t/subscriptions/s:pull", "pull_messages", topic | {"subscription": "s"}),
        ("GET", "/api/v1/topics/ns/t/subscriptions/a%3Apull", "show_subscription", topic | {"subscription": "a:pull"}),
        ("POST", "/api/v1/topics/ns/t/subscriptions/a%3Ab:ack", "ack_messages", topic | {"subscription": "a:b"}),
        ("GET", "/api/v1/topics/ns/t/subscriptions/a:b", "show_subscription", topic | {"subscription": "a:b"}),
        ("POST", "/api/v1/storages/default:check", "check_storage", {"storage": "default"}),
    ):
        assert matched(method, path) == (operation, values), path
    for method, path in (
        ("GET", "/"),
        ("GET", "/api/v1/topics/ns/t/subscriptions/s:pull"),
        ("POST", "/api/v1/topics/ns/t:"),
        ("POST", "/api/v1/topics/ns/:seal"),
        ("POST", "/api/v1/topics/ns/t/subscriptions/s:fly"),
        ("GET", "/api/v1/topics/ns/t/x"),
    ):
        assert matched(method, path) is None, path
    assert set(ROUTER.match("PUT", parse_target(b"/api/v1/topics")).methods) == {"GET", "POST"}


@given(st.text(min_size=1, max_size=30))
def test_any_subscription_can_be_named(name: str) -> None:
    quoted = "".join(f"%{byte:02X}" for byte in name.encode("utf-8", "surrogatepass"))
    try:
        target = parse_target(f"/api/v1/topics/ns/t/subscriptions/{quoted}".encode())
    except InvalidArgumentError:
        return
    found = ROUTER.match("GET", target)
    assert found.route is not None
    assert found.path["subscription"] == name


@given(st.binary(max_size=60))
def test_targets_are_decoded_or_refused(tail: bytes) -> None:
    try:
        target = parse_target(b"/" + tail)
    except InvalidArgumentError:
        return
    assert isinstance(target, Target)
    for segment in target.segments:
        assert segment
        assert segment.isprintable()
        assert ".." not in segment.split("/")


def test_parameters_have_kinds_and_bounds() -> None:
    route = BY_OPERATION["read_messages"]
    assert values_of(route, {"limit": "7"}, {})["limit"] == 7
    assert values_of(route, {}, {})["from"] == "earliest"
    for query in ({"limit": "0"}, {"limit": "1e3"}, {"limit": "٣"}, {"partition": "-1"}, {"color": "red"}):
        with pytest.raises(InvalidArgumentError):
            values_of(route, query, {})
    tail = BY_OPERATION["tail_messages"]
    assert values_of(tail, {}, {"last-event-id": "0:7"})["Last-Event-ID"] == "0:7"
    overview = BY_OPERATION["list_all_subscriptions"]
    assert [values_of(overview, {"unwell": each}, {})["unwell"] for each in ("1", "", "no")] == [True, True, False]


def test_positions() -> None:
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text, value in (
        ("earliest", "earliest"),
        ("17", 17),
        ("-5", Last(5)),
        ("@2026-01-31T12:00:00Z", moment),
        ("@2026-01-31T12:00", moment),
        ("0:5,2:7", {0: 5, 2: 7}),
    ):
        assert parse_positions(text) == value
    for text in ("", "-", "-0", "1.5", "@", "@9", "1:", ":1", "1:2,1:3", "1" * 20, "newest"):
        with pytest.raises(InvalidArgumentError):
            parse_positions(text)


@given(st.dictionaries(st.integers(0, 1000), st.integers(0, 2**60), min_size=1, max_size=20))
def test_shown_positions_are_parsed_again(positions: dict[int, int]) -> None:
    assert parse_positions(shown_positions(positions)) == positions


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 7), st.sampled_from(["", "size", "-size", "name"]))
def test_pages_are_the_list(sizes: list[int], limit: int, sort: str) -> None:
    rows = [{"name": f"n{number:03}", "size": size} for number, size in enumerate(sizes)]
    found: list[dict[str, Any]] = []
    query = {"limit": limit, "sort": sort, "cursor": ""}
    while True:
        page = page_of(rows, query, name=lambda row: str(row["name"]), fields=("name", "size"))
        assert page.total == len(rows)
        assert len(page.items) <= limit
        found += page.items
        if not page.next:
            break
        query["cursor"] = page.next
    assert sorted(found, key=lambda row: str(row["name"])) == rows
    if sort.endswith("size"):
        assert [row["size"] for row in found] == sorted(sizes, reverse=sort.startswith("-"))


def test_secrets_are_not_in_the_configuration() -> None:
    config = make_config(
        {
            "metadata": {
                "url": "etcd://user:hush@h:2379/p?password=hush",
                "options": {"password": "hush", "retries": 3},
            },
            "storages": {
                "cold": {"url": "s3://bucket/p?secret_key=hush", "options": {"session_token": "hush", "region": "eu"}},
            },
            "security": {"upstream": {"secret": "hush" * 10}},
            "tls": {"cert": "/etc/cert.pem", "key": "/etc/key.pem"},
        }
    )
    shown = settings_of(config)
    text = msgspec.json.encode(shown).decode()
    assert "hush" not in text
    found = {each.name: each.value for each in shown}
    assert found["metadata.url"] == "etcd://***@h:2379/p?password=***"
    assert found["metadata.options"] == {"password": "***", "retries": 3}
    assert found["storages"]["cold"]["options"] == {"session_token": "***", "region": "eu"}
    assert found["tls.key"] == "/etc/key.pem"
    assert found["security.upstream.secret"] == "***"

    class Odd(msgspec.Struct):
        color: Any = Secret("hush")

    assert settings_of(Odd())[0].value == "***"


def test_hosts() -> None:
    for host, name in (
        ("localhost", "localhost"),
        ("LOCALHOST.:80", "localhost"),
        ("127.0.0.1:8650", "127.0.0.1"),
        ("[::1]:8650", "::1"),
        ("[::1]", "::1"),
        ("[::1]x", ""),
        ("a:b", ""),
        ("", ""),
    ):
        assert host_name(host) == name, host
    assert check_caller("GET", {"host": "127.0.0.1"}, (), "http") is None
    for headers in ({}, {"host": ""}, {"host": "a.b"}, {"host": "localhost@evil"}, {"host": "127.0.0.1.nip.io"}):
        refused = check_caller("GET", headers, ("broker",), "http")
        assert refused is not None
        assert refused.status == 421
    navigates = {"host": "localhost", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert check_caller("GET", navigates, (), "http") is None, "a link may lead here"
    assert check_caller("POST", navigates, (), "http") is not None


def test_errors_have_statuses() -> None:
    for error, status in (
        (InvalidArgumentError("x"), 400),
        (MessageTooLargeError("x"), 413),
        (UnauthenticatedError("x"), 401),
        (PermissionDeniedError("x"), 403),
        (NotFoundError("x"), 404),
        (AlreadyExistsError("x"), 409),
        (FailedPreconditionError("x"), 409),
        (JournalFullError("x"), 429),
        (UnimplementedError("x"), 501),
        (StorageDeniedError("x"), 502),
        (UnavailableError("x"), 503),
        (DeadlineExceededError("x"), 504),
        (ValueError("x"), 500),
    ):
        assert status_of(error) == status


def test_events_are_lines() -> None:
    assert event_text(b"a\r\nb\rc", name="n", event_id="1", retry_ms=5) == (
        b"event: n\nid: 1\nretry: 5\ndata: a\ndata: b\ndata: c\n\n"
    )
    with pytest.raises(InvalidArgumentError):
        event_text(b"", event_id="1\ndata: smuggled")


def test_negotiation() -> None:
    for header, accepted in (
        ("gzip", True),
        ("br, GZIP ; q=0.1", True),
        ("*", True),
        ("", False),
        ("br", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("identity", False),
    ):
        assert accepts_gzip({"accept-encoding": header}) is accepted, header
    tag = entity_tag(b"x")
    assert matches(f'"other", {tag}', tag)
    assert matches(tag.removeprefix("W/"), tag)
    assert matches("*", tag)
    assert not matches(entity_tag(b"y"), tag)


def test_credentials_of_http() -> None:
    assert token_of(None) is None
    assert token_of("Bearer abc") == "abc"
    assert token_of("basic dXNlcjprZXk6MQ==") == "key:1"
    for header in ("", "Digest x", "Basic ???", "Basic dXNlcg==", "abc"):
        with pytest.raises(UnauthenticatedError):
            token_of(header)


async def test_a_pipe_carries_bytes_both_ways_and_bounds_them() -> None:
    ours, theirs = open_pipe()
    assert ours.send_now(b"hello") == 5
    assert await theirs.receive(3) == b"hel"
    assert await theirs.receive(99) == b"lo"
    sent = ours.send_now(bytes(1 << 20))
    assert 0 < sent < 1 << 20
    assert ours.send_now(b"x") == 0
    await theirs.close()
    assert len(await theirs.receive(1 << 20)) == sent
    assert await theirs.receive(1) == b""
    with pytest.raises(UnavailableError):
        ours.send_now(b"x")


def test_policies_are_their_own_twins() -> None:
    assert twin(SubscriptionPolicy) is SubscriptionPolicy
