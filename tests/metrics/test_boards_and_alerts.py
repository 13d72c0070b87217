"""Boards and alerts: their form, and that every series and command that they name exists."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest
import typer
from metrics.metrics_table import FILE, with_table

from danube.cli.app import app
from danube.metrics.alerts import ALERTS, Alert, rules_file
from danube.metrics.board_types import Board, Query
from danube.metrics.boards import BOARDS, board_json
from danube.metrics.families import FAMILIES, Kind
from danube.metrics.scrape_config import scrape_config

NAMES = {family.name: family for family in FAMILIES}
SELECTOR = re.compile(r"\b((?:danube|process)_\w+)(?:\{([^}]*)\})?")
SUFFIXES = ("_bucket", "_sum", "_count")
OWN_LABELS = {"instance", "job", "le"}


def queries(board: Board) -> list[Query]:
    return [query for row in board.rows for panel in row.panels for query in panel.queries]


def check_series(expression: str) -> None:
    """Check that an expression names series of the table only, with labels that they have."""
    found = SELECTOR.findall(expression)
    assert found, expression
    for name, matchers in found:
        family = NAMES.get(name)
        if family is None:
            suffix = next(each for each in SUFFIXES if name.endswith(each))
            family = NAMES[name.removesuffix(suffix)]
            assert family.kind is Kind.HISTOGRAM, name
        labels = set(re.findall(r"(\w+)(?:=~|!=|=)", matchers))
        assert labels <= {*family.labels, *OWN_LABELS}, expression


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.title)
def test_queries_name_series_that_exist(board: Board) -> None:
    for query in queries(board):
        check_series(query.expression)
        declared = {"instance", "__rate_interval", *board.variables}
        assert set(re.findall(r"\$(\w+)", query.expression)) <= declared, query.expression
        grouped = re.findall(r"by \(([^)]*)\)", query.expression)
        shown = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
        if grouped:
            assert shown <= {label.strip() for each in grouped for label in each.split(",")}, query


def test_all_five_boards_are_there() -> None:
    assert [board.title for board in BOARDS] == ["Overview", "Topics", "Subscriptions", "Journal", "History"]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.title)
def test_the_json_of_a_board(board: Board) -> None:
    found: dict[str, Any] = json.loads(board_json(board))
    assert found["uid"] == f"danube-{board.title.lower()}"
    assert found["schemaVersion"] >= 36
    panels = found["panels"]
    assert sorted(panel["id"] for panel in panels) == list(range(1, len(panels) + 1))
    places = [panel["gridPos"] for panel in panels]
    for place in places:
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y
    variables = [each["name"] for each in found["templating"]["list"]]
    assert variables == ["datasource", "instance", *board.variables]
    for panel in panels:
        if panel["type"] == "row":
            continue
        assert panel["type"] in {"timeseries", "stat", "table"}
        assert panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert refs == list("ABCDEFG"[: len(refs)])
        assert refs
        for target in panel["targets"]:
            assert target["instant"] is not target["range"]
    titles = [panel["title"] for panel in panels if panel["type"] != "row"]
    assert len(set(titles)) == len(titles)


def test_every_area_of_the_table_is_on_a_board() -> None:
    shown = {
        name.removesuffix("_bucket")
        for board in BOARDS
        for query in queries(board)
        for name, _ in SELECTOR.findall(query.expression)
    }
    missing = {family.name for family in FAMILIES} - shown
    areas = {family.area for family in FAMILIES if family.name in shown}
    assert {family.area for family in FAMILIES} - areas <= {
        NAMES["danube_consumer_bytes_out_total"].area,
        NAMES["danube_security_denials_total"].area,
    }
    assert len(missing) < len(FAMILIES) / 3, sorted(missing)


def test_the_alerts_are_those_of_the_manual() -> None:
    assert [alert.name for alert in ALERTS] == [
        "BrokerDown", "JournalFenced", "JournalNearlyFull", "PublishPaused", "SyncSlow", "LoopLag", "SubscriptionStuck",
        "SubscriptionBehind", "DeadLetters", "PoisonBlocked", "StorageFailing", "SealingBehind", "TopicStopped",
        "FdsNearlyUsed", "CertificateExpires",
    ]  # fmt: skip
    assert rules_file().count("- alert:") == 15


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_alerts_name_series_and_commands_that_exist(alert: Alert) -> None:
    if alert.name != "BrokerDown":  # the series of Prometheus itself
        check_series(alert.expression)
    program, *words = alert.runbook.split()
    assert program == "danube"
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands"), f"{alert.runbook!r} is not a whole command"
    options = {option for parameter in command.params for option in parameter.opts}
    arguments = [word for word in re.sub(r"\{\{.*?\}\}", "X", " ".join(words)).split() if not word.startswith("--")]
    assert {word for word in words if word.startswith("--")} <= options
    required = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    assert len(arguments) == len(required), alert.runbook


def test_a_configuration_of_prometheus() -> None:
    text = scrape_config(["a:1", "b:2"], rules="r.yml", token_file="/etc/token")
    assert '- targets: ["a:1", "b:2"]' in text
    assert 'credentials_file: "/etc/token"' in text
    assert "authorization" not in scrape_config(["a:1"], rules="r.yml")


def test_the_manual_has_the_table_of_series_and_all_alerts() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert text == with_table(text), "python -m tests.metrics.metrics_table writes it"
    rows = dict(re.findall(r"^\| (\w+) \| (critical|warning) \|", text, re.MULTILINE))
    assert rows == {alert.name: alert.severity.value for alert in ALERTS}
