"""``danube doctor``: checks whether this machine is suitable for a broker, and the health of running ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from danube.cli._connecting import Target, find_target
from danube.cli._context import ContextOption, UrlOption
from danube.cli._output import Output, OutputOption, show_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danube.model.checks import Check

__all__ = ["doctor", "run_all"]

_CONNECT_TIMEOUT_S = 2.0
_DIRECTORY: Final = "./danube-data"
"""That of a broker without a configuration."""


def doctor(
    data_dir: Annotated[
        str | None,
        typer.Option(
            "--data-dir",
            "--data-directory",
            metavar="DIRECTORY",
            help="Data directory. [that of the broker that answers, if it runs on this machine; else ./danube-data]",
        ),
    ] = None,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Check the brokers of a cluster instead of this machine; one must answer."),
    ] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check disk, clock and limits of this machine for a broker. The exit code is 1 if a check fails.

    Needs no running broker, and writes only a temporary file to the data directory; it creates no directory. If a
    broker answers at the address that commands use, its sealing and its storages are checked, too.

    With --cluster, it visits all brokers of the cluster of that broker: whether they reach each other, their clocks,
    loops, sessions, metadata, versions, and shared storages.
    """
    if cluster:
        from danube.cli._cluster_doctor import check_cluster_at

        checks = check_cluster_at(find_target(url, context))
    else:
        checks = run_all(data_dir, url, context)
    rows = [
        {
            "check": check.name,
            "ok": check.ok,
            "detail": check.detail,
            "remedy": "" if check.ok else check.remedy,
        }
        for check in checks
    ]
    if output is Output.TABLE:
        _print_checks(checks)
    else:
        show_rows(rows, ["check", "ok", "detail", "remedy"], output)
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


def run_all(data_dir: str | None, url: str | None, context: str | None) -> list[Check]:
    """Return the checks of this machine, and of the broker if one answers.

    Args:
        data_dir: directory to check; None: that of the broker, or the default one.
        url, context: of the broker.
    """
    from danube.broker.doctor import doctor as run_checks

    directory, of_broker = _ask_broker(find_target(url, context))
    return run_checks(data_dir or directory or _DIRECTORY) + of_broker


def _print_checks(checks: Sequence[Check]) -> None:
    """Print a line for each check, and the remedy of a failed one below it."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{'ok    ' if check.ok else 'FAILED'}  {check.name:<{width}}  {check.detail}")
        if not check.ok and check.remedy:
            print(f"{'':{width + 8}}  > {check.remedy}")


def _ask_broker(target: Target) -> tuple[str, list[Check]]:
    """Return the data directory of a broker (empty if it is not on this machine), and its checks; none without one."""
    import trio

    from danube.broker.doctor import Check, check_broker
    from danube.cli._failures import flatten
    from danube.model.errors import ConnectionLostError, DanubeError

    async def ask() -> tuple[str, list[Check]]:
        connecting = target.connect(
            connect_timeout_s=_CONNECT_TIMEOUT_S,
            request_timeout_s=_CONNECT_TIMEOUT_S,
            reconnect_timeout_s=_CONNECT_TIMEOUT_S,
        )
        async with connecting as client:
            directory = ""
            try:
                info = await client.admin.info()
                directory = _on_this_machine(info.data_directory, info.pid)
                return directory, check_broker(await client.storages.status())
            except DanubeError as error:
                detail = f"{target.url}: the broker answers with an error: {error}"
                return directory, [Check("broker", False, detail, "see the log of the broker")]

    try:
        return trio.run(ask)
    except (ConnectionLostError, BaseExceptionGroup) as error:
        if not isinstance(flatten(error), ConnectionLostError):
            raise
        return "", []


def _on_this_machine(data_directory: str, pid: int) -> str:
    """Return the data directory of a process as a full path; empty if there is none of that name on this machine."""
    try:
        full = Path(f"/proc/{pid}/cwd").readlink() / data_directory
    except OSError:  # another machine, another user, or no such file system
        full = Path(data_directory)
    return str(full) if full.is_absolute() and full.is_dir() else ""
