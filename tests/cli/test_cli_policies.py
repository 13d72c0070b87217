"""Policies on the command line: their notation, and the commands with a real broker."""

from __future__ import annotations

import json

import pytest
from brokers import BrokerProcess
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from danube.cli._policy_values import (
    SUBSCRIPTION_POLICIES,
    TOPIC_POLICIES,
    parse_changes,
    parse_names,
    parse_rate,
    show_policies,
)
from danube.cli._quota_values import QUOTAS, parse_quotas
from danube.cli.app import app
from danube.model.errors import InvalidArgumentError
from danube.model.policies import (
    Rate,
    Retention,
    SchemaFraming,
    SchemaPayloads,
    SchemaValidation,
    SubscriptionPolicy,
    TopicPolicies,
    change_policy,
)
from danube.model.quotas import NamespaceQuota


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        yield running
        assert running.terminate() == 0


def run(broker, *arguments, code=0):
    done = CliRunner().invoke(app, arguments, env={"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent"})
    assert done.exit_code == code, done.output
    return done


def table(done):
    """Return a table of policies as a dict."""
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    return {name: (value, level) for name, value, level in rows}


# --- How they are written --------------------------------------------------------------------------------------------


def test_every_policy_can_be_written():
    assert set(TOPIC_POLICIES) == set(TopicPolicies.__struct_fields__)
    assert set(SUBSCRIPTION_POLICIES) == set(SubscriptionPolicy.__struct_fields__)


def test_values():
    assert parse_changes(
        [
            "max_producers=10",
            "max-message-bytes=1MiB",
            "message_ttl=7d",
            "retention=12h,10GiB,acknowledged",
            "publish_rate=100/s,1.5MiB/s",
            "dispatch_rate = 64KiB/s",
        ]
    ) == {
        "max_producers": 10,
        "max_message_bytes": 2**20,
        "message_ttl_s": 604800.0,
        "retention": {"max_age_s": 43200.0, "max_bytes": 10 * 2**30, "acknowledged": True},
        "publish_rate": {"messages_per_s": 100.0, "bytes_per_s": 1.5 * 2**20},
        "dispatch_rate": {"bytes_per_s": 65536.0},
    }
    assert parse_changes(["publish_rate=none", "retention=none", "message_ttl_s=none"]) == {
        "publish_rate": {},
        "retention": {},
        "message_ttl_s": 0.0,
    }
    assert parse_rate("2.5") == {"messages_per_s": 2.5}
    assert parse_names(["message-ttl", "max_message"]) == ["message_ttl_s", "max_message_bytes"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_producer=1", "did you mean 'max_producers'?"),
        ("message_tll=1d", "did you mean 'message_ttl_s'?"),
        ("colour=red", "known are max_producers, "),
        ("max_producers", "not name=value"),
        ("max_producers=none", "max_producers: 'none' is not a number"),
        ("max_producers=-1", "not a number"),
        ("max_message_bytes=big", "max_message_bytes: 'big' is not a size"),
        ("message_ttl=soon", "message_ttl_s: 'soon' is not a length of time"),
        ("publish_rate=fast", "publish_rate: 'fast' is not a rate"),
        ("publish_rate=100/m", "is not a rate"),
        ("publish_rate=1/s,2/s", "is not a rate"),
        ("publish_rate=", "is not a rate"),
        ("retention=all", "length of time"),
    ],
)
def test_wrong_policy_values_are_named(text, said):
    with pytest.raises(InvalidArgumentError) as caught:
        parse_changes([text])
    assert said in str(caught.value)


def test_nothing_is_given_twice():
    with pytest.raises(InvalidArgumentError, match="given twice"):
        parse_changes(["message_ttl=1d", "message_ttl_s=2d"])


_seconds = st.integers(0, 10**8) | st.integers(0, 10**6).map(lambda ms: ms / 1000)
_rates = st.builds(Rate, st.integers(0, 10**9).map(float) | st.floats(1e-9, 1e12), st.integers(0, 2**60).map(float))


@given(
    st.builds(
        TopicPolicies,
        max_producers=st.none() | st.integers(0, 10**6),
        max_message_bytes=st.none() | st.integers(1, 2**40),
        message_ttl_s=st.none() | _seconds.map(float),
        retention=st.none() | st.builds(Retention, _seconds.map(float), st.integers(0, 2**62), st.booleans()),
        publish_rate=st.none() | _rates,
        dispatch_rate=st.none() | _rates,
        schema_validation=st.none() | st.sampled_from(SchemaValidation),
        schema_payloads=st.none() | st.sampled_from(SchemaPayloads),
        schema_framing=st.none() | st.sampled_from(SchemaFraming),
    )
)
def test_shown_policy_values_can_be_typed_again(policies):
    shown = {row["policy"]: row["value"] for row in show_policies(policies, {})}
    typed = parse_changes([f"{name}={value}" for name, value in shown.items() if value != "-"])
    assert change_policy(TopicPolicies(), typed) == policies


# --- What the commands do --------------------------------------------------------------------------------------------


def test_levels(broker):
    run(broker, "namespaces", "create", "shop")
    run(broker, "topics", "create", "/shop/orders", "--partitions", "2")
    run(broker, "policies", "set", "broker", "max_producers=9", "max_consumers=8")
    run(broker, "policies", "set", "shop", "max_producers=7", "publish_rate=1000/s")
    found = table(run(broker, "policies", "set", "/shop/orders", "publish-rate=none", "message_ttl=90m"))
    assert found["max_consumers"] == ("8", "broker")
    assert found["max_producers"] == ("7", "namespace")
    assert found["publish_rate"] == ("none", "topic")
    assert found["message_ttl_s"] == ("90m", "topic")
    assert found["retention"] == ("-", "-")
    assert table(run(broker, "policies", "show", "/shop/orders")) == found
    shown = json.loads(run(broker, "policies", "show", "/shop/orders", "-o", "json").stdout)
    assert shown["effective"]["max_producers"] == 7
    assert shown["own"]["max_producers"] is None
    assert shown["sources"]["max_producers"] == "namespace"
    found = table(run(broker, "policies", "unset", "shop", "max_producers", "publish_rate"))
    assert found["max_producers"] == ("9", "broker")
    run(broker, "policies", "unset", "broker", "max_producers", "max_consumers")
    assert json.loads(run(broker, "policies", "show", "-o", "json").stdout)["target"] == "broker"
    assert run(broker, "policies", "show", "broker", "-o", "raw").stdout.startswith("max_producers\t-\t-\n")


def test_a_namespace_may_be_called_broker(broker):
    run(broker, "namespaces", "create", "broker")
    run(broker, "policies", "set", "/broker", "max_producers=3")
    assert table(run(broker, "policies", "show", "/broker"))["max_producers"] == ("3", "namespace")
    assert table(run(broker, "policies", "show", "broker"))["max_producers"] == ("-", "-")


def test_targets_that_do_not_exist(broker):
    run(broker, "policies", "show", "nowhere", code=66)
    run(broker, "policies", "set", "/default/nowhere", "max_producers=1", code=66)
    assert "did you mean" in run(broker, "policies", "unset", "broker", "max_producer", code=65).stderr


def test_the_policy_of_a_subscription(broker):
    run(broker, "produce", "/default/p", "-m", "one")
    run(broker, "subscriptions", "policy", "/default/p", "s", code=66)
    run(broker, "consume", "/default/p", "-s", "s", "-t", "key-shared", "-e")
    shown = run(broker, "subscriptions", "policy", "/default/p", "s").stdout
    assert "ack_timeout_s           30s\n" in shown
    options = ["--max-redelivery", "none", "--ack-timeout", "none", "--backoff", "fixed", "--redelivery-delay", "0.5s"]
    options += ["--max-redelivery-delay", "2m", "--poison", "dead-letter", "--dead-letter-topic", "/default/graves"]
    options += ["--max-unacked", "100", "--unmatched", "skip", "--dispatch-rate", "100/s,1MiB/s"]
    shown = dict(
        line.split("\t")
        for line in run(broker, "subscriptions", "policy", "/default/p", "s", *options, "-o", "raw").stdout.splitlines()
    )
    assert shown == {
        "max_redelivery_count": "none",
        "ack_timeout_s": "none",
        "backoff": "fixed",
        "redelivery_delay_s": "0.5s",
        "max_redelivery_delay_s": "2m",
        "poison": "dead_letter",
        "dead_letter_topic": "/default/graves",
        "max_unacked_messages": "100",
        "unmatched": "skip",
        "dispatch_rate": "100/s,1MiB/s",
    }
    changed = ["--dispatch-rate", "inherit", "--dead-letter-topic", "none", "--max-redelivery", "3"]
    found = json.loads(run(broker, "subscriptions", "policy", "/default/p", "s", *changed, "-o", "json").stdout)
    assert (found["topic"], found["subscription"]) == ("/default/p", "s")
    assert (found["dispatch_rate"], found["dead_letter_topic"], found["max_redelivery_count"]) == (None, "", 3)
    assert found["ack_timeout_s"] == 0
    run(broker, "subscriptions", "policy", "/default/p", "s", "--max-redelivery", "often", code=65)
    run(broker, "subscriptions", "policy", "/default/p", "s", "--poison", "shrug", code=2)


def test_subscriptions_show_what_became_of_messages(broker):
    run(broker, "produce", "/default/seen", "-m", "one", "-m", "two")
    run(broker, "consume", "/default/seen", "-s", "s", "--start", "earliest", "-n", "1")
    header, row = run(broker, "subscriptions", "list", "/default/seen").stdout.splitlines()
    for column in ("backlog", "waiting", "delayed", "poisoned", "dead-lettered", "expired", "consumers"):
        assert column in header
    assert row.split()[:6] == ["/default/seen", "s", "exclusive", "1", "2", "1"]
    found = json.loads(run(broker, "subscriptions", "describe", "/default/seen", "s", "-o", "json").stdout)
    assert found[0]["policy"]["max_redelivery_count"] == 5
    assert found[0]["dead_lettered_messages"] == 0


# --- Quotas of namespaces --------------------------------------------------------------------------------------------


def test_every_quota_can_be_written():
    assert set(QUOTAS) == set(NamespaceQuota.__struct_fields__)
    assert parse_quotas(["max-topics=5"]) == {"max_topics": 5}
    for texts, what in (
        (["max_topics"], "not name=value"),
        (["max_topics=1", "max_topics=2"], "given twice"),
        (["max_topics=none"], "quota unset NAME"),
        (["publish_rate=x"], "publish_rate: 'x' is not a rate"),
        (["max_topic=1"], "did you mean 'max_topics'"),
        (["max_stored_bytes=much"], "max_stored_bytes: "),
        (["x=1"], "known are max_topics"),
    ):
        with pytest.raises(InvalidArgumentError, match=what):
            parse_quotas(texts)


def test_quotas_of_namespaces(broker):
    run(broker, "namespaces", "create", "tenant")
    assert table(run(broker, "namespaces", "quota", "show", "tenant")) == {
        "max_topics": ("-", "0"),
        "publish_rate": ("-", "-"),
        "dispatch_rate": ("-", "-"),
        "max_stored_bytes": ("-", "0B"),
        "max_connections": ("-", "0"),
        "max_subjects": ("-", "0"),
    }
    settings = "max_topics=1 publish-rate=9/s,1MiB/s dispatch_rate=5/s max_stored_bytes=1GiB max_connections=7"
    settings += " max_subjects=1"
    done = run(broker, "namespaces", "quota", "set", "tenant", *settings.split())
    assert table(done) == {
        "max_topics": ("1", "0"),
        "publish_rate": ("9/s,1MiB/s", "-"),
        "dispatch_rate": ("5/s", "-"),
        "max_stored_bytes": ("1GiB", "0B"),
        "max_connections": ("7", "0"),
        "max_subjects": ("1", "0"),
    }
    run(broker, "topics", "create", "/tenant/a")
    refused = run(broker, "topics", "create", "/tenant/b", code=75)
    assert "quota max_topics is 1" in refused.output
    run(broker, "schemas", "register", "/tenant/a-value", "--type", "string")
    refused = run(broker, "schemas", "register", "/tenant/b-value", "--type", "string", code=75)
    assert "quota max_subjects is 1" in refused.output
    run(broker, "schemas", "register", "tenant/b-value", "--type", "string")  # it is of no namespace
    shown = json.loads(run(broker, "namespaces", "quota", "show", "tenant", "-o", "json").stdout)
    rate = {"messages_per_s": 9, "bytes_per_s": 2**20}
    quota = {"max_topics": 1, "publish_rate": rate, "max_stored_bytes": 2**30, "max_connections": 7}
    quota |= {"dispatch_rate": {"messages_per_s": 5, "bytes_per_s": 0}, "max_subjects": 1}
    used = {"topics": 1, "stored_bytes": 0, "connections": 0, "subjects": 1}
    assert shown == {"namespace": "tenant", "quota": quota, **used}
    run(broker, "namespaces", "quota", "unset", "tenant", "max_topics")
    run(broker, "topics", "create", "/tenant/b")
