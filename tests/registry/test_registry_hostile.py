"""Requests that no client sends: whatever comes, the answer is an error in JSON, and never a failure of the broker."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
import trio
from http_callers import Running, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from registry_harness import Rest, avro, descriptor

from danube.http import Dialect, Response, problem_of
from danube.model import errors
from danube.model.errors import DanubeError, InvalidArgumentError
from danube.registry.errors import CONTENT_TYPE, failure_of, refusal, reworded
from danube.registry.routes import ROUTES
from danube.registry.target import registry_target

WORDS = ["orders", "latest", "-1", "1", "0", "99999999999", "true", "default", "serialized", "é", "/a/b", ":.:x", "%"]
SCHEMAS = [
    avro(),
    avro("Order", ("id", "string")),
    descriptor(),
    "{",
    '"string"',
    "",
    "[" * 2_000,
    '{"$ref":"file:///etc/passwd"}',
]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "schema": st.sampled_from(SCHEMAS) | values,
        "schemaType": st.sampled_from(["AVRO", "JSON", "PROTOBUF", "x"]) | values,
        "references": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["a", "Order"]), "subject": st.sampled_from(["orders", "x"])}
            )
        )
        | values,
        "metadata": values | st.just({"properties": {"a": "b"}}),
        "ruleSet": values,
        "id": st.integers(-3, 2**40) | values,
        "version": st.integers(-3, 2**40) | values,
        "compatibility": st.sampled_from(["FULL", "none", "x"]) | values,
        "compatibilityPolicy": st.sampled_from(["LENIENT", "x"]) | values,
        "mode": st.sampled_from(["IMPORT", "READWRITE", "READONLY", "READONLY_OVERRIDE", "x"]) | values,
    },
)
queries = st.dictionaries(
    st.sampled_from(
        ["deleted", "deletedOnly", "permanent", "force", "format", "limit", "offset", "subject", "subjectPrefix", "key"]
    ),
    st.sampled_from(WORDS) | st.text(st.characters(codec="utf-8", exclude_characters="\\"), max_size=5),
    max_size=3,
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, Any]:
    route = draw(st.sampled_from(ROUTES))
    segments = [
        quote(draw(st.sampled_from(WORDS) | st.text(max_size=6)), safe="") if each.startswith("{") else each
        for each in route.segments
    ]
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in draw(queries).items())
    target = "/" + "/".join(segments) + (f"?{query}" if query else "")
    return route.method, target, draw(bodies | values) if route.method in ("POST", "PUT") else None


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(st.lists(requests(), min_size=1, max_size=6))
def test_any_sequence_of_requests_is_answered_without_a_failure(sent: list[tuple[str, str, Any]]) -> None:
    async def play() -> None:
        rest = Rest()
        await rest.send("POST", "/subjects/orders/versions", {"schema": avro()})
        for method, target, body in sent:
            try:
                found = await rest.send(method, target, body)
            except InvalidArgumentError:
                registry_target_refuses(target)
                continue
            assert found.status < 500, (method, target, body, found)
            if found.status >= 400:
                assert found.value.keys() == {"error_code", "message"}
                assert str(found.value["error_code"]).startswith(str(found.status))

    trio.run(play)


@pytest.mark.parametrize(
    "body",
    [
        rb'{"schema":"\ud800"}',
        rb'{"schema":"\"string\"","metadata":{"properties":{"a":"\ud800"}}}',
        rb'{"schema":"\"string\"","references":[{"name":"\ud800","subject":"\ud800"}]}',
        rb'{"schema":"\"string\"","ruleSet":{"a":' + b"[" * 900 + b"]" * 900 + b"}}",
        rb'{"schema":"\"string\"","schemaType":"\ud800"}',
        b'{"schema":"\xff"}',
        b"",
    ],
)
async def test_odd_bodies_are_refused(body: bytes) -> None:
    rest = Rest()
    for target in ("/subjects/a/versions", "/compatibility/subjects/a/versions"):
        found = await rest.send("POST", target, body or b" ")
        assert 400 <= found.status < 500, found


def registry_target_refuses(target: str) -> None:
    with pytest.raises(InvalidArgumentError):
        registry_target(target.encode())


async def answers(running: Running, *raw: bytes) -> list[tuple[int, Any]]:
    found = []
    for each in raw:
        async with running.caller() as caller:
            await caller.send(each)
            answer = await caller.answer()
            assert answer.headers["content-type"] == CONTENT_TYPE
            found.append((answer.status, json.loads(answer.body)["error_code"]))
    return found


async def test_what_the_server_refuses_itself_is_worded_like_the_rest() -> None:
    rest = Rest()
    async with serving(rest.face.http, http_max_header_bytes=2_000) as running:
        running.server.dialect = rest.face.http_dialect
        head = b"Host: localhost\r\n"
        assert await answers(
            running,
            b"GET /../etc HTTP/1.1\r\n" + head + b"\r\n",
            b"GET /subjects/%zz HTTP/1.1\r\n" + head + b"\r\n",
            b"GET /subjects/%00 HTTP/1.1\r\n" + head + b"\r\n",
            b"BREW /subjects HTTP/1.1\r\n" + head + b"\r\n",
            b"GET / HTTP/1.1\r\n" + head + b"X: " + b"x" * 3_000 + b"\r\n\r\n",
            b"POST /subjects/a HTTP/1.1\r\n" + head + b"Content-Length: 99999999\r\n\r\n",
        ) == [(400, 400), (400, 400), (400, 400), (405, 405), (431, 431), (413, 413)]
        async with running.caller() as caller:
            assert (await caller.ask("GET", "//subjects/")).body == b"[]"
            assert (await caller.ask("HEAD", "/subjects")).status == 200


async def test_a_bug_is_told_in_json_without_its_text() -> None:
    async def broken(_request: object) -> Response:
        raise ValueError("a secret")

    async with serving(broken) as running:
        running.server.dialect = Dialect(registry_target, reworded)
        async with running.caller() as caller:
            found = await caller.ask("GET", "/subjects")
        assert found.status == 500
        assert json.loads(found.body)["error_code"] == 500
        assert b"secret" not in found.body


def test_mistakes_are_never_tried_again_and_passing_failures_are() -> None:
    """Clients repeat requests with these statuses, up to their limit."""
    repeated = {408, 429, 500, 502, 503, 504}
    for name in errors.__all__:
        kind = getattr(errors, name)
        if not (isinstance(kind, type) and issubclass(kind, DanubeError)):
            continue
        found = failure_of(kind("what"))
        assert refusal(found).status == found.http
        if issubclass(kind, errors.InvalidArgumentError | errors.NotFoundError | errors.PermissionDeniedError):
            assert found.http not in repeated, name
        if issubclass(kind, errors.UnavailableError | errors.DeadlineExceededError):
            assert found.http in repeated, name
    assert reworded(problem_of(errors.NotFoundError("gone"))).status == 404
