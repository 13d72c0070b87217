"""Help in sections, ``danube help X``, other names of commands, and completion of names in shells."""

from __future__ import annotations

import time

import pytest
import trio
from brokers import BrokerProcess
from typer.testing import CliRunner

import danube
from danube.cli import _completion
from danube.cli._root import ALIASES, GROUPS
from danube.cli.app import COMMANDS, app


def run(*arguments, code=0, **environment):
    env = {"XDG_CONFIG_HOME": "/nonexistent", "COLUMNS": "80", **environment}
    done = CliRunner().invoke(app, arguments, env=env, prog_name="danube")
    assert done.exit_code == code, done.output
    return done


def test_every_command_is_in_one_section():
    placed = [name for group in GROUPS.values() for name in group]
    assert len(placed) == len(set(placed))
    assert set(COMMANDS) <= set(placed)
    shown = run("--help").stdout
    positions = [shown.index(f"\n{title}:\n") for title in GROUPS]
    assert positions == sorted(positions)
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    assert "\nCommands:" not in shown


def test_help_shows_what_the_option_shows():
    for words in (["topics"], ["topics", "create"], ["namespaces", "quota", "set"], ["explain"]):
        assert run("help", *words).stdout.split() == run(*words, "--help").stdout.split()
    assert "\nMessages:\n" in run("help").stdout
    assert "there is no command 'topics nope'" in run("help", "topics", "nope", code=65).stderr
    assert "there is no command 'explain x'" in run("help", "explain", "x", code=65).stderr


def test_other_names():
    assert set(ALIASES.values()) <= set(COMMANDS)
    assert not set(ALIASES) & set(COMMANDS)
    for alias, name in ALIASES.items():
        assert run(alias, "--help").stdout.split()[3:] == run(name, "--help").stdout.split()[3:]
    assert "List topics" in run("topic", "ls", "--help").stdout
    assert "Show one topic" in run("topics", "show", "--help").stdout
    assert "Delete a topic" in run("topics", "rm", "--help").stdout
    assert "Show the policies in effect" in run("policies", "show", "--help").stdout


# --- Completion


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        trio.run(fill, running.url)
        yield running
        assert running.terminate() == 0


async def fill(url):
    async with danube.connect(url) as client:
        for topic in ("/default/orders", "/default/other", "/default/jobs"):
            await client.admin.create_topic(topic)
        for name in ("billing", "audit"):
            async with client.consumer("/default/orders", subscription=name):
                pass


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(_completion, "LIMIT_S", 30.0)  # of a busy machine


def complete(line, shell="bash", **environment):
    words = line.split(" ")
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    return run(_DANUBE_COMPLETE=f"complete_{shell}", **asked, **environment)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("danube topics describe /default/o", ["/default/orders", "/default/other"]),
        ("danube topics describe or", ["orders"]),
        ("danube topic describe /x", []),
        ("danube subscriptions explain orders ", ["audit", "billing"]),
        ("danube explain /default/orders b", ["billing"]),
        ("danube explain none ", []),
        ("danube namespaces delete d", ["default"]),
        ("danube policies unset default max_p", ["max_producers"]),
        ("danube policies set default message_", ["message_ttl="]),
        ("danube connections ", ["list", "kill"]),
    ],
)
def test_names_complete(broker, line, names):
    assert sorted(complete(line, DANUBE_URL=broker.url).stdout.split()) == sorted(names)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_names_complete_in_other_shells(broker, shell):
    assert "orders" in complete("danube topics describe or", shell, DANUBE_URL=broker.url).stdout
    assert "jobs" not in complete("danube topics describe or", shell, DANUBE_URL=broker.url).stdout


def test_the_broker_is_that_of_the_command(broker):
    line = f"danube --url {broker.url} topics describe or"
    assert complete(line, DANUBE_URL="danube://127.0.0.1:1").stdout.split() == ["orders"]


def test_contexts_complete(broker, tmp_path):
    where = {"XDG_CONFIG_HOME": str(tmp_path)}
    run("context", "add", "staging", broker.url, **where)
    run("context", "add", "live", broker.url, **where)
    assert complete("danube top --context st", **where).stdout.split() == ["staging"]
    assert complete("danube topics describe --context live or", **where).stdout.split() == ["orders"]
    (tmp_path / "danube" / "contexts.toml").write_text("no toml")
    assert complete("danube top --context st", **where).output.strip() == ""


def test_completion_is_silent_and_bounded(monkeypatch):
    monkeypatch.setattr(_completion, "LIMIT_S", 0.2)
    begin = time.monotonic()
    for line in ("danube topics describe or", "danube explain orders ", "danube namespaces delete d"):
        assert complete(line, DANUBE_URL="danube://127.0.0.1:1").output.strip() == ""
        assert complete(line, DANUBE_URL="danube://192.0.2.1:6650").output.strip() == ""  # nothing answers there
    assert time.monotonic() - begin < 30
