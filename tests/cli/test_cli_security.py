"""The commands about access control, with a real broker that does not enforce it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from brokers import BrokerProcess
from typer.testing import CliRunner

from danube.cli.app import app
from danube.security.api_keys import parse_api_key
from danube.security.jws import parse_token


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        yield running
        assert running.terminate() == 0


def run(broker, *arguments, code=0, stdin=None):
    url = broker.url if broker is not None else "danube://127.0.0.1:1"
    environment = {"DANUBE_URL": url, "XDG_CONFIG_HOME": "/nonexistent"}
    done = CliRunner().invoke(app, arguments, env=environment, input=stdin)
    assert done.exit_code == code, done.output
    return done


def test_grants(broker):
    granted = run(broker, "grant", "producer", "to", "service:orders-api", "on", "/shop/orders*").stdout
    assert granted == "service:orders-api has producer on topic:/shop/orders* (binding b-1)\n"
    run(broker, "grant", "viewer,consumer", "to", "service:orders-api", "on", "/shop/orders*")
    rows = json.loads(run(broker, "security", "bindings", "--subject", "service:orders-api", "-o", "json").stdout)
    assert [(row["id"], row["roles"]) for row in rows] == [("b-1", ["producer", "viewer", "consumer"])]
    left = run(broker, "revoke", "viewer,consumer", "from", "service:orders-api", "on", "/shop/orders*").stdout
    assert left == "service:orders-api has producer (binding b-1) on /shop/orders*\n"
    explained = run(broker, "security", "explain", "service:orders-api", "consume", "/shop/orders").stdout
    assert explained == (
        "denied: no binding grants Consume on /shop/orders; producer (b-1, topic:/shop/orders*) grants Lookup, Produce,"
        " Describe, ReadSchema\n"
    )
    assert run(broker, "security", "explain", "service:orders-api", "produce", "/shop/orders").stdout.startswith(
        "allowed: producer (b-1, "
    )
    me = "user:anonymous: the broker has no access control, so every caller may do everything\n"
    assert run(broker, "security", "whoami").stdout == me
    assert json.loads(run(broker, "security", "whoami", "-o", "json").stdout)["secured"] is False
    done = run(broker, "revoke", "all", "from", "service:orders-api", "on", "/shop/orders*").stdout
    assert done == "service:orders-api has no role on /shop/orders*\n"
    failed = run(broker, "revoke", "all", "from", "service:orders-api", "on", "/shop/orders*", code=66).stderr
    assert "no binding grants a role to service:orders-api" in failed


@pytest.mark.parametrize(
    "words",
    [
        ("grant", "producer", "service:x", "on", "/a/b"),
        ("grant", "producer", "to", "service:x"),
        ("grant", "to", "service:x", "on", "/a/b"),
        ("grant", "producer", "to", "service:x", "on", "/a/b", "please"),
        ("grant", "producer", "from", "service:x", "on", "/a/b"),
        ("grant", "producer", "to", "x", "on", "/a/b"),
        ("grant", "flyer", "to", "service:x", "on", "/a/b"),
        ("grant", "producer", "to", "service:x", "on", "b"),
    ],
)
def test_a_grant_that_cannot_be_read_is_refused(broker, words):
    assert run(broker, *words, code=65).stderr.startswith("error: ")


def test_roles_and_principals(broker):
    assert run(broker, "roles", "create", "tap", "Lookup,Consume", "--description", "reads").stdout == "created tap\n"
    rows = json.loads(run(broker, "roles", "list", "-o", "json").stdout)
    assert rows[0]["name"] == "admin"
    assert rows[-1]["permissions"] == ["Lookup", "Consume"]
    assert "built in" in run(broker, "roles", "list").stdout
    run(broker, "roles", "delete", "tap")
    assert "unknown permission 'Fly'" in run(broker, "roles", "create", "tap", "Fly", code=65).stderr
    run(broker, "principals", "suspend", "service:gone", "--reason", "left")
    assert "left" in run(broker, "principals", "list").stdout
    run(broker, "principals", "resume", "service:gone")
    assert "service:gone" not in run(broker, "principals", "list").stdout


def test_quotas_of_principals(broker):
    settings = "max_streams=50 calls-per-s=100/s publish_bytes_per_s=10MiB/s"
    shown = run(broker, "principals", "quota", "set", "service:busy", *settings.split()).stdout
    assert [line.split() for line in shown.splitlines()] == [
        ["quota", "value"],
        ["max_streams", "50"],
        ["calls_per_s", "100"],
        ["publish_bytes_per_s", "10MiB/s"],
        ["consume_bytes_per_s", "-"],
    ]
    run(broker, "principals", "quota", "unset", "service:busy", "max_streams", "publish_bytes_per_s")
    assert json.loads(run(broker, "principals", "quota", "show", "service:busy", "-o", "json").stdout) == {
        "max_streams": None,
        "calls_per_s": 100.0,
        "publish_bytes_per_s": None,
        "consume_bytes_per_s": None,
    }
    assert "service:busy" in run(broker, "principals", "list").stdout
    for wrong, says in (
        ("max_stream=1", "did you mean 'max_streams'"),
        ("calls_per_s=0.5", "calls_per_s = 0.5 must be at least 1"),
        ("calls_per_s=fast", "is not a rate of calls"),
        ("max_streams", "is not name=value, for example max_streams=100"),
    ):
        assert says in run(broker, "principals", "quota", "set", "service:busy", wrong, code=65).stderr
    assert "is a group" in run(broker, "principals", "quota", "show", "group:all", code=65).stderr
    run(broker, "principals", "quota", "unset", "service:busy", "calls_per_s")
    assert "service:busy" not in run(broker, "principals", "list").stdout


def test_an_api_key_is_printed_once(broker):
    made = run(
        broker, "keys", "create", "service:api", "--expires", "90d", "--role", "producer", "--on", "/shop/orders"
    )
    key = parse_api_key(made.stdout.strip())
    assert f"key {key.id} of service:api, expires 20" in made.stderr
    assert made.stdout.strip() not in made.stderr
    listed = run(broker, "keys", "list")
    assert key.id in listed.stdout
    assert "Lookup, Produce, Describe, ReadSchema on topic:/shop/orders" in listed.stdout
    (row,) = json.loads(run(broker, "keys", "list", "--subject", "service:api", "-o", "json").stdout)
    assert row["id"] == key.id
    assert "hash" not in row
    run(broker, "keys", "delete", key.id)
    assert run(broker, "keys", "list", "-o", "raw").stdout == ""
    assert "give both --role and --on" in run(broker, "keys", "create", "service:api", "--role", "x", code=65).stderr


def test_a_team_signs_its_own_tokens(broker, tmp_path):
    file = str(tmp_path / "shop")
    assert "key " in run(None, "issuers", "keygen", file).stdout
    assert Path(file).stat().st_mode & 0o777 == 0o600
    assert run(None, "issuers", "keygen", file, code=1).stderr.startswith("error: ")
    add = ("issuers", "add", "shop-team", f"{file}.pub", "--namespace", "shop", "--role", "producer,consumer")
    assert run(broker, *add, "--longest", "30d").stdout == "added shop-team\n"
    assert "namespace:shop" in run(broker, "issuers", "list").stdout
    (row,) = json.loads(run(broker, "issuers", "list", "-o", "json").stdout)
    sign = ("tokens", "create", "service:api", "--key", file, "--issuer", "shop-team", "--may", "Produce:/shop/orders")
    made = run(None, *sign, "--expires", "1d")
    claims = parse_token(made.stdout.strip(), 8192)
    assert (claims.kid, claims.claims["iss"], claims.claims["aud"]) == (row["kid"], "shop-team", "danube")
    assert claims.claims["may"] == ["Produce:/shop/orders"]
    assert run(broker, "tokens", "revoke", "-", "--reason", "lost", stdin=made.stdout).stdout == (
        f"revoked {claims.claims['jti']}\n"
    )
    assert "lost" in run(broker, "tokens", "list").stdout
    assert json.loads(run(broker, "tokens", "list", "-o", "json").stdout)[0]["reason"] == "lost"
    assert run(broker, "issuers", "remove", row["kid"]).stdout == f"removed {row['kid']}\n"
    for words, said in (
        (("tokens", "create", "service:api", "--key", file), "--key needs --issuer"),
        (("tokens", "create", "group:api", "--key", file, "--issuer", "t"), "is a group"),
        (("tokens", "create", "service:api", "--issuer", "t"), "--issuer is for tokens"),
        (("tokens", "revoke", "-"), "standard input has no token"),
        (("issuers", "add", "t", f"{file}.pub"), "needs a ceiling"),
        (("issuers", "add", "t", file, "--namespace", "shop", "--role", "viewer"), "not a public key"),
    ):
        assert said in run(broker, *words, code=65, stdin="x").stderr
    assert "signs no tokens" in run(broker, "tokens", "create", "service:api", code=78).stderr
