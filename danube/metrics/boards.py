"""Boards for Grafana, made from a compact description. Pure.

A :class:`Board` has rows of panels, a panel has queries. :func:`board_json` lays them out on the grid of 24 columns,
and returns what Grafana imports. Queries use three variables of a board: ``$instance`` (the brokers), ``$topic`` and
``$subscription``; all of them are expressions, ``.+`` for all.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from danube.metrics.board_table import BOARDS
from danube.metrics.board_types import Board, Form, Panel

__all__ = ["BOARDS", "board_json"]

_COLUMNS: Final = 24
_HEIGHT: Final = 8
_SCHEMA: Final = 39
"""Version of Grafana's model that is written: that of Grafana 10 and 11, which convert it."""
_FAMILIES: Final = {
    "instance": "danube_build_info",
    "topic": "danube_topic_stopped",
    "subscription": "danube_subscription_lag_messages",
}
"""Series from which the values of a variable are taken."""
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class _Place(NamedTuple):
    x: int
    y: int
    width: int
    height: int

    def grid(self) -> dict[str, int]:
        return {"x": self.x, "y": self.y, "w": self.width, "h": self.height}


def board_json(board: Board) -> bytes:
    """Return a board as indented JSON."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in board.rows:
        panels.append(_row(len(panels) + 1, row.title, _Place(0, top, _COLUMNS, 1)))
        top += 1
        height = 4 if all(panel.form is Form.STAT for panel in row.panels) else _HEIGHT
        width = _COLUMNS // len(row.panels)
        for index, panel in enumerate(row.panels):
            panels.append(_panel(len(panels) + 1, panel, _Place(index * width, top, width, height)))
        top += height
    return msgspec.json.format(
        msgspec.json.encode(
            {
                "title": f"Danube / {board.title}",
                "uid": f"danube-{board.title.lower()}",
                "tags": ["danube"],
                "description": board.description,
                "timezone": "browser",
                "schemaVersion": _SCHEMA,
                "editable": True,
                "refresh": "15s",
                "time": {"from": "now-1h", "to": "now"},
                "templating": {"list": _variables(board)},
                "links": [
                    {
                        "type": "dashboards",
                        "title": "Danube",
                        "tags": ["danube"],
                        "asDropdown": True,
                        "includeVars": True,
                    }
                ],
                "panels": panels,
            }
        ),
        indent=2,
    )


def _variables(board: Board) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    ]
    return found + [_variable(name) for name in ("instance", *board.variables)]


def _variable(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": "Broker" if name == "instance" else name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({_FAMILIES[name]}, {name})", "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
    }


def _row(number: int, title: str, place: _Place) -> dict[str, Any]:
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place.grid(), "panels": []}


def _panel(number: int, panel: Panel, place: _Place) -> dict[str, Any]:
    instant = panel.form is not Form.GRAPH
    return {
        "id": number,
        "type": panel.form.value,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place.grid(),
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                "instant": instant,
                "range": not instant,
                "format": "table" if panel.form is Form.TABLE else "time_series",
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    found: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.warn is not None:
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}, {"color": "orange", "value": panel.warn}]
        found["thresholds"] = {"mode": "absolute", "steps": steps}
        found["color"] = {"mode": "thresholds"} if panel.form is Form.STAT else {"mode": "palette-classic"}
    if panel.form is Form.GRAPH:
        found["custom"] = {"fillOpacity": 10, "showPoints": "never", "lineWidth": 1}
    return found


def _options(panel: Panel) -> dict[str, Any]:
    if panel.form is Form.GRAPH:
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.form is Form.STAT:
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"}
    return {"showHeader": True, "sortBy": [{"displayName": "Value", "desc": True}]}
