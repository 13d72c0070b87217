"""``danube keys``: creates, lists and deletes API keys."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import parse_duration
from danube.cli._moments import OnOption, RoleOption, ceiling_text, make_ceiling, moment
from danube.cli._output import Output, OutputOption, show_rows

__all__ = ["keys_app"]

keys_app = typer.Typer(no_args_is_help=True, help="Create, list and delete API keys.")


@keys_app.command("create")
def create_key(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="The owner: user:NAME or service:NAME.")],
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it lasts, such as 90d. [forever]")
    ] = None,
    role: RoleOption = None,
    on: OnOption = None,
    description: Annotated[str, typer.Option(help="A description, for lists.")] = "",
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Create an API key, and print it: it is shown this once, and stored nowhere.

    It may do what its owner may; with --role and --on no more than these roles allow there.
    """
    ceiling = make_ceiling(role, on or [])
    life_s = None if expires is None else parse_duration(expires)
    new = run_with_client(
        lambda client: client.security.create_key(subject, ceiling=ceiling, life_s=life_s, description=description),
        url,
        context,
    )
    print(new.text)
    print(f"key {new.id} of {subject}, expires {moment(new.expires_us)}", file=sys.stderr)


@keys_app.command("list")
def list_keys(
    subject: Annotated[str, typer.Option(metavar="SUBJECT", help="Only those of this owner.")] = "",
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the API keys, without their secrets."""
    found = run_with_client(lambda client: client.security.keys(subject), url, context)
    if output is Output.JSON:
        show_rows([to_plain(row) for row in found], [], output)
        return
    rows = [
        {
            "id": row.id,
            "subject": row.subject,
            "expires": moment(row.expires_us),
            "ceiling": ceiling_text(row.ceiling),
            "description": row.description,
        }
        for row in found
    ]
    show_rows(rows, ["id", "subject", "expires", "ceiling", "description"], output)


@keys_app.command("delete")
def delete_key(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `danube keys list` shows it.")],
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Delete an API key: it is accepted no more, and streams that were opened with it end within a second."""
    run_with_client(lambda client: client.security.drop_key(key_id), url, context)
    print(f"deleted {key_id}")
