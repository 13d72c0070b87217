"""``danube cheat``: each line is a command that exists, with options that it has, and fits a terminal."""

from __future__ import annotations

import shlex

import pytest
import typer
from typer.testing import CliRunner

from danube.cli._cheats import CHEATS
from danube.cli.app import app

LINES = [(theme, cheat) for theme, cheats in CHEATS.items() for cheat in cheats]


def parsed(words):
    """Parse a command line as ``danube`` does, without running it; return the names of the commands."""
    context = typer.main.get_command(app).make_context("danube", list(words))
    names = []
    while hasattr(context.command, "resolve_command"):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
        names.append(name)
    return names


@pytest.mark.parametrize(("theme", "cheat"), LINES, ids=[cheat.line for _, cheat in LINES])
def test_each_line_is_a_command(theme, cheat, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    first, *words = shlex.split(cheat.line)
    assert first == "danube"
    assert parsed(words)
    assert len(f"  {cheat.line}") <= 80
    assert len(f"  # {cheat.what}") <= 80


@pytest.mark.parametrize("words", [("topics", "nope"), ("explain", "--nope"), ("topics", "create"), ("nope",)])
def test_the_check_can_fail(words):
    with pytest.raises(Exception, match=r"nope|Missing parameter"):
        parsed(words)


def test_all_themes_or_one():
    def run(*words, code=0):
        done = CliRunner().invoke(app, ["cheat", *words])
        assert done.exit_code == code, done.output
        return done

    shown = run().stdout
    assert [line for line in shown.splitlines() if line and not line.startswith(" ")] == list(CHEATS)
    one = run("failures").stdout
    assert one.startswith("failures\n  # what needs attention\n  danube explain\n")
    assert one in shown + "\n"
    assert "did you mean 'messages'?" in run("mesages", code=65).stderr
    assert "there are: messages, topics," in run("x", code=65).stderr
