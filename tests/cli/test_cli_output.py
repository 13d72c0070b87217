"""Tables, raw lines and JSON show the same rows."""

from __future__ import annotations

import json

import pytest
import typer

from danube.cli import _root
from danube.cli._bench import percentiles
from danube.cli._output import Output, human_bytes, human_rate, show_record, show_rows
from danube.cli._produced import Tally
from danube.client import OffsetRange, RangeReceipt
from danube.model.errors import TopicNotFoundError

ROWS = [
    {"topic": "/default/a-rather-long-name-" + "x" * 90, "end_offset": 12_345, "ok": True, "subs": ["a", "b"]},
    {"topic": "/default/[bold]b", "end_offset": 1, "ok": False, "subs": []},
]


def test_a_table_keeps_a_row_on_one_line(capsys):
    show_rows(ROWS, ["topic", "end_offset", "ok", "subs"], Output.TABLE)
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["topic", "end", "offset", "ok", "subs"]
    assert first.split() == [ROWS[0]["topic"], "12345", "yes", "a,", "b"]
    assert second.split() == ["/default/[bold]b", "1", "no", "-"]


def test_raw_is_tab_separated(capsys):
    show_rows(ROWS[1:], ["topic", "end_offset", "ok", "subs"], Output.RAW)
    assert capsys.readouterr().out == "/default/[bold]b\t1\tno\t-\n"
    show_record({"a": None, "b": 1.5, "c": {"d": 1}}, Output.RAW)
    assert capsys.readouterr().out == 'a\t-\nb\t1.500\nc\t{"d":1}\n'


def test_json_has_every_field(capsys):
    show_rows(ROWS, ["topic"], Output.JSON)
    assert json.loads(capsys.readouterr().out) == ROWS
    show_record(ROWS[0], Output.JSON)
    assert json.loads(capsys.readouterr().out) == ROWS[0]


def test_a_record_is_aligned(capsys):
    show_record({"a": 1, "long_name": "x"}, Output.TABLE)
    assert capsys.readouterr().out == "a          1\nlong_name  x\n"


def test_units():
    assert human_bytes(1023) == "1023 B"
    assert human_bytes(1536) == "1.5 KiB"
    assert human_bytes(5 * 2**40) == "5.0 TiB"
    assert human_rate(1_000, 0.5, "messages") == "2,000 messages/s"
    assert human_rate(0, 0.0, "messages") == "0 messages/s"


def test_percentiles_are_nearest_ranks():
    samples = [number / 1_000 for number in range(1, 1_001)]
    assert percentiles(samples[::-1], "x") == {
        "x_p50_ms": 500.0,
        "x_p99_ms": 990.0,
        "x_p99_9_ms": 999.0,
        "x_max_ms": 1_000.0,
    }
    assert set(percentiles([0.25], "x").values()) == {250.0}


def test_a_stored_message_without_a_known_offset_still_counts():
    tally = Tally()
    tally.add(RangeReceipt([OffsetRange("/d/t", -1, 3)]), 30)
    assert tally.summary()["topics"] == [{"topic": "/d/t", "messages": 3, "first_offset": None, "last_offset": None}]
    tally.add(RangeReceipt([OffsetRange("/d/t", 7, 2), OffsetRange("/d/t", -1, 1)]), 30)
    assert tally.summary()["topics"] == [{"topic": "/d/t", "messages": 6, "first_offset": 7, "last_offset": 8}]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TopicNotFoundError("there is no topic /d/t;\n create it"), 66),
        (ExceptionGroup("tasks", [ExceptionGroup("more", [TopicNotFoundError("gone")])]), 66),
        (FileNotFoundError(2, "No such file or directory", "lines"), 1),
        (KeyboardInterrupt(), 130),
        (BaseExceptionGroup("tasks", [KeyboardInterrupt()]), 130),
        (BrokenPipeError(), 0),
    ],
)
def test_errors_become_one_line_and_an_exit_code(error, code):
    from typer.testing import CliRunner

    app = typer.Typer(cls=_root.RootGroup, callback=_root.root, pretty_exceptions_enable=False)

    @app.command("fail")
    def fail():
        raise error

    result = CliRunner().invoke(app, ["fail"])
    assert result.exit_code == code
    assert result.stderr.count("\n") == (1 if code in (1, 66) else 0)
    assert "Traceback" not in result.output
