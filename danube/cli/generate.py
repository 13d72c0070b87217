"""``danube generate``: prints files for Prometheus and Grafana."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["generate_app"]

generate_app = typer.Typer(no_args_is_help=True, help="Print files for Prometheus and Grafana.")

DEFAULT_TARGET = "127.0.0.1:8650"


@generate_app.command("dashboards")
def dashboards(
    directory: Annotated[
        Path, typer.Option("-d", "--directory", metavar="DIRECTORY", help="Where to write them; created if missing.")
    ] = Path("danube-dashboards"),
) -> None:
    """Write five boards for Grafana, one JSON file each; existing files are replaced. Import them in Grafana.

    Each board asks for its Prometheus data source.
    """
    from danube.metrics.boards import BOARDS, board_json

    directory.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        path = directory / f"{board.title.lower()}.json"
        path.write_bytes(board_json(board) + b"\n")
        print(path)


@generate_app.command("alerts")
def alerts() -> None:
    """Print rules for Prometheus: 15 alerts, each with the command that says more (annotation runbook)."""
    from danube.metrics.alerts import rules_file

    print(rules_file(), end="")


@generate_app.command("prometheus-config")
def prometheus_config(
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="HOST:PORT", help=f"HTTP port of a broker; repeatable. [{DEFAULT_TARGET}]"),
    ] = None,
    rules: Annotated[
        str, typer.Option("--rules", metavar="FILE", help="Name of the file of alerts.")
    ] = "danube-alerts.yml",
    token_file: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help="Token of a principal with the role metrics.")
    ] = "",
) -> None:
    """Print a configuration of Prometheus that scrapes brokers and evaluates the alerts."""
    from danube.metrics.scrape_config import scrape_config

    print(scrape_config(target or [DEFAULT_TARGET], rules=rules, token_file=token_file), end="")
