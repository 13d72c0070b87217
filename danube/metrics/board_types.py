"""The description of boards: rows of panels with queries. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["Board", "Form", "Panel", "Query", "Row"]


class Form(Enum):
    """How a panel shows its queries, in Grafana's words."""

    GRAPH = "timeseries"
    STAT = "stat"
    TABLE = "table"


class Query(NamedTuple):
    """One query of a panel."""

    expression: str
    legend: str = ""


class Panel(NamedTuple):
    """One panel."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    """Grafana's name: ``s``, ``bytes``, ``Bps``, ``ops``, ``percentunit``, ``short``."""
    form: Form = Form.GRAPH
    description: str = ""
    warn: float | None = None
    """From this value on it is shown in another colour."""


class Row(NamedTuple):
    """A row of panels of the same width."""

    title: str
    panels: tuple[Panel, ...]


class Board(NamedTuple):
    """One board."""

    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[str, ...] = ()
    """Beside ``instance``: ``topic``, ``subscription``."""
