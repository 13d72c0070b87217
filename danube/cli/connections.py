"""``danube connections``: lists the open connections of the brokers, and ends one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import human_duration
from danube.cli._output import Output, OutputOption, human_bytes, show_rows

if TYPE_CHECKING:
    from danube.model.connection_api import ConnectionInfo

__all__ = ["connections_app"]

connections_app = typer.Typer(no_args_is_help=True, help="List the open connections of the brokers, and end one.")

_COLUMNS = ["id", "peer", "protocol", "client", "principal", "streams", "received", "sent", "for"]


@connections_app.command("list")
def list_connections(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the open connections of all brokers: peer, protocol, client, caller, traffic and age."""
    found = run_with_client(lambda client: client.admin.list_connections(), url, context)
    if output is Output.JSON:
        show_rows([to_plain(row) for row in found], _COLUMNS, output)
        return
    columns = _COLUMNS if any(row.principal for row in found) else [each for each in _COLUMNS if each != "principal"]
    show_rows([_row(row, time.time(), output) for row in found], columns, output)


@connections_app.command("kill")
def kill_connection(
    connection: Annotated[str, typer.Argument(metavar="ID", help="As listed, for example b1-12.")],
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """End a connection. Its client gets its messages again elsewhere, and may connect again."""
    run_with_client(lambda client: client.admin.kill_connection(connection), url, context)
    print(f"ended connection {connection}")


def _row(found: ConnectionInfo, now_s: float, output: Output) -> dict[str, Any]:
    age_s = max(0.0, now_s - found.since_us / 1e6)
    plain = output is Output.RAW
    return {
        "id": found.id,
        "peer": found.peer,
        "protocol": found.protocol,
        "client": found.client or None,
        "principal": found.principal or None,
        "streams": found.streams,
        "received": found.received_bytes if plain else human_bytes(found.received_bytes),
        "sent": found.sent_bytes if plain else human_bytes(found.sent_bytes),
        "for": age_s if plain else human_duration(age_s),
    }
