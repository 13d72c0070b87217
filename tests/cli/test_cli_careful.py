"""Commands that destroy something ask on a terminal, and say before what they would do; errors suggest names."""

from __future__ import annotations

import datetime
import os
import pty
import subprocess
import sys

import pytest
from brokers import BrokerProcess
from typer.testing import CliRunner

from danube.cli._durations import parse_duration
from danube.cli._nearest import nearest
from danube.cli._positions import parse_position
from danube.cli.app import app
from danube.model.errors import InvalidArgumentError

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        yield running
        assert running.terminate() == 0


def run(broker, *arguments, code=0, **environment):
    env = {"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent", **environment}
    done = CliRunner().invoke(app, arguments, env=env)
    assert done.exit_code == code, done.output
    return done


def at_a_terminal(broker, answer, *arguments):
    """Run a command at a terminal, type an answer, and return what was shown and the exit code."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent", "TERM": "dumb"}
    command = [sys.executable, "-m", "danube", *arguments]
    os.write(ours, answer.encode())
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the terminal has no other side any more
                break
            if not data:
                break
            shown += data
        code = process.wait(PATIENCE_S)
    os.close(ours)
    return shown.decode().replace("\r\n", "\n"), code


def fill(broker, topic, count):
    run(broker, "topics", "create", topic)
    for subscription in ("audit", "billing"):
        run(broker, "consume", topic, "-s", subscription, "--start", "earliest", "--until-caught-up")
    for number in range(count):
        run(broker, "produce", topic, "-m", str(number))


def test_purging_a_schema_names_the_topics_whose_messages_may_have_it(broker):
    registered = run(broker, "schemas", "register", "/default/kept-value", "--type", "string").stdout
    number = registered.split("id ")[1].split()[0]
    shown, code = at_a_terminal(broker, "n\n", "schemas", "purge", number)
    assert (code, "No topic has a subject that had it" in shown) == (1, True)
    for topic in ("kept", "also-kept", "other"):
        run(broker, "topics", "create", f"/default/{topic}")
    run(broker, "schemas", "bind", "/default/kept", "/default/kept-value")
    run(broker, "schemas", "bind", "/default/also-kept", "/default/kept-value")
    run(broker, "schemas", "delete", "/default/kept-value")
    run(broker, "schemas", "delete", "/default/kept-value", "--permanent")
    shown, code = at_a_terminal(broker, "n\n", "schemas", "purge", number)
    assert code == 1
    told = " ".join(shown.split())
    assert f"Remove schema {number}? Messages with this id, of any topic, can no longer be decoded." in told
    assert "Its subject is, or was, that of /default/also-kept, /default/kept. [y/N]" in told
    assert f"removed schema {number}" in at_a_terminal(broker, "y\n", "schemas", "purge", number)[0]


def test_deleting_asks_at_a_terminal(broker):
    fill(broker, "orders", 3)
    shown, code = at_a_terminal(broker, "n\n", "topics", "delete", "orders")
    assert "Delete /default/orders with 3 messages (" in shown
    assert ") and 2 subscriptions (audit, billing)? [y/N]" in shown
    assert "nothing was changed" in shown
    assert code == 1
    shown, code = at_a_terminal(broker, "n\n", "subscriptions", "delete", "orders", "audit")
    assert "Delete audit of /default/orders, which has 3 unacknowledged messages and 0 connected consumers?" in shown
    assert code == 1
    shown, code = at_a_terminal(broker, "y\n", "subscriptions", "seek", "orders", "billing", "2")
    assert "/default/orders: from 0 to 2 of 3; 2 messages are skipped" in shown
    assert "moved billing of /default/orders to 2" in shown
    assert code == 0
    shown, code = at_a_terminal(broker, "", "subscriptions", "delete", "orders", "audit", "--yes")
    assert shown.endswith("deleted audit of /default/orders\n")
    assert "[y/N]" not in shown
    run(broker, "topics", "delete", "orders")  # without a terminal nothing is asked
    run(broker, "namespaces", "create", "old")
    assert "[y/N]" in at_a_terminal(broker, "n\n", "namespaces", "delete", "old")[0]
    run(broker, "namespaces", "delete", "old", "-y")


def test_seeking_by_numbers_times_and_without_effect(broker):
    fill(broker, "seeks", 5)
    seek = ("subscriptions", "seek", "seeks", "billing")
    assert run(broker, *seek, "latest", "--dry-run").stdout == (
        "would move billing of /default/seeks\n  /default/seeks: from 0 to 5 of 5; 5 messages are skipped\n"
    )
    skip = ("subscriptions", "skip", "seeks", "billing")
    assert run(broker, *skip, "2", "--dry-run").stdout == (
        "would skip messages of billing of /default/seeks\n"
        "  /default/seeks: 2 messages are skipped, between 0 and 1 of 5\n"
    )
    assert run(broker, *skip, "2").stdout == "skipped 2 messages of billing of /default/seeks\n"
    assert "from 2 to 1 of 5; 1 message comes again" in run(broker, *seek, "--by", "-1", "--dry-run").stdout
    assert "from 2 to 0 of 5; 2 messages come again" in run(broker, *seek, "--to", "2h ago", "--dry-run").stdout
    assert "back by 1,000 messages" in run(broker, *seek, "--by", "-1000").stdout
    assert "from 0 to 0 of 5; nothing changes" in run(broker, *seek, "earliest", "--dry-run").stdout
    run(broker, *seek, "4")
    shown, code = at_a_terminal(broker, "n\n", *skip, "9")
    assert "/default/seeks: 1 message is skipped, between 4 and 4 of 5" in shown
    assert "Skip them? [y/N]" in shown
    assert code == 1
    assert "skipped 1 message of" in at_a_terminal(broker, "y\n", *skip, "9")[0]
    assert run(broker, *skip, "9").stdout == (
        "billing of /default/seeks has no unacknowledged messages: nothing to skip\n"
    )
    assert "/default/seeks: nothing to skip" in run(broker, *skip, "1", "--dry-run").stdout
    assert "give one of POSITION" in run(broker, *seek, code=65).stderr
    assert "give one of POSITION" in run(broker, *seek, "3", "--by", "3", code=65).stderr


def test_a_wrong_name_suggests_the_nearest(broker):
    fill(broker, "payments", 0)
    assert "did you mean '/default/payments'?" in run(broker, "topics", "describe", "/default/paymnts", code=66).stderr
    error = run(broker, "subscriptions", "describe", "payments", "biling", code=66).stderr
    assert "did you mean 'billing'?" in error
    assert "did you mean" not in run(broker, "topics", "describe", "zzz", code=66).stderr
    assert nearest("/shop/payments", ["/default/payments", "/x/y"]) == "/default/payments"
    assert nearest("/default/a", []) is None


def test_dead_letters_before_the_first_failure(broker):
    fill(broker, "letters", 1)
    policy = ("subscriptions", "policy", "letters", "billing")
    run(broker, *policy, "--poison", "block")
    error = run(broker, "dlq", "list", "letters-billing-dlq").stderr
    assert "copies nothing to /default/letters-billing-dlq" in error
    run(broker, *policy, "--poison", "dead_letter", "--max-redelivery", "0")
    done = run(broker, "dlq", "list", "letters-billing-dlq")
    assert "nothing has failed yet" in done.stderr
    assert done.stdout == ""
    assert run(broker, "dlq", "list", "letters-billing-dlq", "-o", "json").stdout == "[]\n"
    rows = [line.split() for line in run(broker, "dlq", "list").stdout.splitlines()]
    assert ["/default/letters-billing-dlq", "0", "0", "B", "/default/letters", "billing"] in rows
    run(broker, "dlq", "list", "none-dlq", code=66)


def test_times_need_a_unit():
    assert parse_duration("7d") == 7 * 86_400
    assert parse_duration("0") == 0
    with pytest.raises(InvalidArgumentError, match="'7' has no unit: write 7s for seconds"):
        parse_duration("7")


def test_positions_before_now():
    before = parse_position("90m ago")
    assert isinstance(before, datetime.datetime)
    age = datetime.datetime.now(datetime.UTC) - before
    assert datetime.timedelta(minutes=90) <= age < datetime.timedelta(minutes=95)
    for wrong in ("soon ago", "7 ago", "9999999999w ago"):
        with pytest.raises(InvalidArgumentError):
            parse_position(wrong)


def test_a_bare_name_is_in_the_namespace_of_the_context(broker, tmp_path):
    where = {"XDG_CONFIG_HOME": str(tmp_path), "DANUBE_URL": ""}
    run(broker, "namespaces", "create", "shop")
    run(broker, "context", "add", "here", broker.url, "--namespace", "shop", **where)
    assert "created /shop/tills" in run(broker, "topics", "create", "tills", **where).stdout
    assert "/shop/tills" in run(broker, "topics", "describe", "tills", "--context", "here", **where).stdout
    by_variable = {**where, "DANUBE_CONTEXT": "here"}
    assert "/shop/tills" in run(broker, "topics", "describe", "tills", **by_variable).stdout


def test_a_subscription_is_created_before_its_consumer(broker):
    run(broker, "topics", "create", "/default/early")
    made = run(broker, "subscriptions", "create", "/default/early", "billing", "-t", "shared")
    assert made.stdout == "subscription billing of /default/early (shared): 0 messages to deliver\n"
    run(broker, "produce", "/default/early", "-m", "kept", "-a", "source=web", "-a", "trace=a=b")
    again = run(broker, "subscriptions", "create", "/default/early", "billing", "-t", "shared")
    assert again.stdout == "subscription billing of /default/early (shared): 1 message to deliver\n"
    consume = ("consume", "/default/early", "-s", "billing", "-t", "shared", "-n", "1", "--format", "%v %a")
    assert run(broker, *consume).stdout == 'kept {"source":"web","trace":"a=b"}\n'


@pytest.mark.parametrize("given", [("x",), ("=x",), ("a=1", "a=2")])
def test_odd_attributes_are_refused(broker, given):
    options = [word for each in given for word in ("--attribute", each)]
    assert "--attribute" in run(broker, "produce", "/default/odd", "-m", "x", *options, code=2).stderr
