"""Options without Typer: what :func:`read_plain` reads is what Typer reads, and all the rest it leaves to Typer."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from danube.cli._plain_options import read_plain, with_environment
from danube.cli.app import app
from danube.cli.serve import serve
from danube.model.errors import ConfigurationError
from danube.model.policies import Durability

COMMAND = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
NAMES = sorted(name for each in COMMAND.params for name in (*each.opts, *each.secondary_opts))
VALUES = [
    "127.0.0.1:0",
    "none",
    "disk",
    "DISK",
    "remote",
    "",
    " ",
    "-",
    "--",
    "-1",
    "--listen",
    "a=b",
    "=",
    "64MiB",
    "\u00fc",
    "\udcff",
    "x\ny",
]
WORDS = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(VALUES),
    st.builds("{}={}".format, st.sampled_from(NAMES), st.sampled_from(VALUES)),
    st.sampled_from(["--help", "-h", "--debug", "--nope", "-cfile", "--lis", "x"]),
)
PAIRS = st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)).map(list)


def by_typer(words: list[str]) -> dict[str, Any] | None:
    """Return what Typer reads; None if it refuses the words, or shows the help."""
    try:
        read = COMMAND.make_context("serve", list(words)).params
    except Exception as error:
        if not hasattr(error, "exit_code"):
            raise
        return None
    return {name: value for name, value in read.items() if value is not None and value != ()}


@given(st.one_of(st.lists(WORDS, max_size=5), st.lists(PAIRS, max_size=4).map(lambda pairs: list(chain(*pairs)))))
def test_a_plain_command_line_is_read_as_typer_reads_it(words: list[str]) -> None:
    read = read_plain(serve, words)
    assert read is None or read == by_typer(words)


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ([], {}),
        (
            ["--listen", "127.0.0.1:0", "--data-dir=d", "--listen=[::]:1"],
            {"listen": ["127.0.0.1:0", "[::]:1"], "data_dir": "d"},
        ),
        (["-c", "x.toml", "--durability", "os"], {"config": "x.toml", "durability": Durability.OS}),
        (["--auto-create"], {"auto_create": True}),
        (["--no-auto-create"], {"auto_create": False}),
        (["--log-level", "info", "--log-level", "debug"], {"log_level": "debug"}),
    ],
)
def test_what_is_read_without_typer(words: list[str], read: dict[str, Any]) -> None:
    assert read_plain(serve, words) == read == by_typer(words)


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--listen"], ["--listen", "--data-dir"], ["--nope", "1"], ["x"], ["--durability", "most"], ["-cx"]],
)
def test_what_is_left_to_typer(words: list[str]) -> None:
    assert read_plain(serve, words) is None


def test_every_option_is_shown_in_the_help() -> None:
    shown = CliRunner().invoke(app, ["serve", "--help"]).output
    assert [name for name in NAMES if name not in shown] == []
    assert "Durability" not in shown
    assert "<none|os|disk|remote>" in shown


def test_variables_stand_for_options_that_are_not_given(monkeypatch):
    for name, value in (
        ("DATA_DIR", "/data"),
        ("LISTEN", "a:1, b:2"),
        ("AUTO_CREATE", "no"),
        ("DURABILITY", "OS"),
        ("LOG_LEVEL", ""),
        ("INSECURE", "1"),
    ):
        monkeypatch.setenv(f"DANUBE_{name}", value)
    assert with_environment(serve, {"data_dir": "/mine", "log_level": None}) == {
        "data_dir": "/mine",
        "listen": ["a:1", "b:2"],
        "auto_create": False,
        "durability": Durability.OS,
    }
    for name, value in (("AUTO_CREATE", "maybe"), ("DURABILITY", "paper")):
        monkeypatch.setenv(f"DANUBE_{name}", value)
        with pytest.raises(ConfigurationError, match=f"DANUBE_{name}='{value}' is not one of"):
            with_environment(serve, {})
        monkeypatch.delenv(f"DANUBE_{name}")


def test_the_data_directory_has_the_name_of_its_setting_too():
    assert read_plain(serve, ["--data-directory", "/d"]) == {"data_dir": "/d"}
