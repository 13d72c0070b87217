"""``danube doctor``: checks whether this machine is fit to run a broker."""

from __future__ import annotations

from typing import Annotated

import typer

from danube.cli._output import Output, OutputOption, show_rows

__all__ = ["doctor"]


def doctor(
    data_dir: Annotated[
        str, typer.Option(metavar="DIRECTORY", help="Data directory of the broker; made if missing.")
    ] = "./danube-data",
    output: OutputOption = Output.TABLE,
) -> None:
    """Check disk, clock and limits of this machine for a broker. Exit code 1 when a check fails.

    Needs no running broker and changes nothing but a temporary file in the data directory.
    """
    from danube.broker.doctor import doctor as run_checks

    checks = run_checks(data_dir)
    rows = [
        {
            "check": check.name,
            "ok": check.ok,
            "detail": check.detail,
            "remedy": "" if check.ok else check.remedy,
        }
        for check in checks
    ]
    show_rows(rows, ["check", "ok", "detail", "remedy"], output)
    if not all(check.ok for check in checks):
        raise typer.Exit(1)
