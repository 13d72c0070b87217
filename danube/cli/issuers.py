"""``danube issuers``: the keys with which teams sign tokens of their own."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated, Final

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import human_duration, parse_duration
from danube.cli._moments import OnOption, RoleOption, ceiling_text, make_ceiling
from danube.cli._output import Output, OutputOption, show_rows
from danube.model.errors import InvalidArgumentError

__all__ = ["issuers_app"]

issuers_app = typer.Typer(no_args_is_help=True, help="Manage the keys with which teams sign tokens of their own.")

_PUBLIC: Final = ".pub"


@issuers_app.command("keygen")
def generate_key(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The private key; the public one is FILE.pub.")],
) -> None:
    """Create a key pair on this machine; the private key stays with the team."""
    from danube.security.keys import signing_key

    key = signing_key(secrets.token_bytes(32))
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
        opened.write(key.private_pem())
    Path(file + _PUBLIC).write_text(key.public_pem(), "ascii")
    print(f"created {file} and {file}{_PUBLIC}, key {key.kid}")


@issuers_app.command("add")
def add_issuer(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the team; the issuer of its tokens.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The public key (Ed25519, PEM).")],
    role: RoleOption = None,
    namespace: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="As --on namespace:NAME; repeat for more.")
    ] = None,
    on: OnOption = None,
    longest: Annotated[str, typer.Option(metavar="TIME", help="Longest life of its tokens.")] = "30d",
    description: Annotated[str, typer.Option(help="A description, for lists.")] = "",
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Accept tokens that a team signs with its own key.

    They may do what their principals may, and no more than these roles allow within these scopes.
    """
    from danube.security.keys import ed25519_public

    ceiling = make_ceiling(role, [*(f"namespace:{each}" for each in namespace or ()), *(on or ())])
    if ceiling is None:
        raise InvalidArgumentError("the key of a team needs a ceiling: give --role, and --namespace or --on")
    public = ed25519_public(Path(file).read_text("ascii", "replace"))
    longest_life_s = parse_duration(longest)
    run_with_client(
        lambda client: client.security.add_issuer(
            name, public, ceiling, longest_life_s=longest_life_s, description=description
        ),
        url,
        context,
    )
    print(f"added {name}")


@issuers_app.command("list")
def list_issuers(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the keys whose tokens are accepted: those of the cluster, and of teams."""
    found = run_with_client(lambda client: client.security.issuers(), url, context)
    if output is Output.JSON:
        show_rows([to_plain(row) for row in found], [], output)
        return
    rows = [
        {
            "id": row.kid,
            "name": row.name,
            "longest": human_duration(row.longest_life_s),
            "ceiling": ceiling_text(row.ceiling),
            "description": row.description,
        }
        for row in found
    ]
    show_rows(rows, ["id", "name", "longest", "ceiling", "description"], output)


@issuers_app.command("remove")
def remove_issuer(
    kid: Annotated[str, typer.Argument(metavar="ID", help="Of the key, as `danube issuers list` shows it.")],
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Accept no more tokens of a key; streams that were opened with one end within a second."""
    run_with_client(lambda client: client.security.drop_issuer(kid), url, context)
    print(f"removed {kid}")
