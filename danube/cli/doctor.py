"""``danube doctor``: checks whether this machine is suitable for a broker, and the health of a running one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from danube.cli._context import ContextOption, UrlOption, resolve_url
from danube.cli._output import Output, OutputOption, show_rows

if TYPE_CHECKING:
    from danube.broker.doctor import Check

__all__ = ["doctor"]

_CONNECT_TIMEOUT_S = 2.0


def doctor(
    data_dir: Annotated[
        str, typer.Option(metavar="DIRECTORY", help="Data directory of the broker; created if missing.")
    ] = "./danube-data",
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check disk, clock and limits of this machine for a broker. The exit code is 1 if a check fails.

    Needs no running broker, and writes only a temporary file to the data directory. If a broker answers at the address
    that commands use, its sealing and its storages are checked, too.
    """
    from danube.broker.doctor import doctor as run_checks

    checks = run_checks(data_dir) + _ask_broker(resolve_url(url, context))
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


def _ask_broker(address: str) -> list[Check]:
    """Return the checks of the broker at an address; none if there is no broker."""
    import trio

    import danube
    from danube.broker.doctor import Check, check_broker
    from danube.cli._root import flatten
    from danube.model.errors import ConnectionLostError, DanubeError

    async def ask() -> list[Check]:
        connecting = danube.connect(
            address,
            connect_timeout_s=_CONNECT_TIMEOUT_S,
            request_timeout_s=_CONNECT_TIMEOUT_S,
            reconnect_timeout_s=_CONNECT_TIMEOUT_S,
        )
        async with connecting as client:
            try:
                return check_broker(await client.storages.status())
            except DanubeError as error:
                detail = f"{address}: the broker answers with an error: {error}"
                return [Check("broker", False, detail, "see the log of the broker")]

    try:
        return trio.run(ask)
    except (ConnectionLostError, BaseExceptionGroup) as error:
        if not isinstance(flatten(error), ConnectionLostError):
            raise
        return []
