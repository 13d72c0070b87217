"""``danube definitions``: namespaces, topics, policies and subscriptions as a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from danube.cli._client import run_with_client
from danube.cli._context import ContextOption, UrlOption
from danube.cli._questions import YesOption, confirm

if TYPE_CHECKING:
    from danube.client import Client
    from danube.model.definitions import Definitions, Plan

__all__ = ["definitions_app"]

definitions_app = typer.Typer(no_args_is_help=True, help="Keep namespaces, topics and subscriptions in a file.")

_File = Annotated[str, typer.Argument(metavar="FILE", help="JSON, as export writes it; - is the standard input.")]
_Prune = Annotated[bool, typer.Option("--prune", help="Delete what the file does not have.")]


@definitions_app.command("export")
def export(url: UrlOption = None, context: ContextOption = None) -> None:
    """Print what there is as JSON: namespaces, topics, their policies, and subscriptions with theirs."""
    import msgspec

    async def work(client: Client) -> Definitions:
        from danube.client.definitions import export_definitions

        return await export_definitions(client)

    found = run_with_client(work, url, context)
    print(msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=2).decode())


@definitions_app.command("plan")
def plan(file: _File, prune: _Prune = False, url: UrlOption = None, context: ContextOption = None) -> None:
    """Show what apply would do. The exit code is 1 if the file wants what cannot be reached."""
    found = _plan(file, prune, url, context)
    _show(found)
    if found.conflicts:
        raise typer.Exit(1)


@definitions_app.command("apply")
def apply(
    file: _File, prune: _Prune = False, yes: YesOption = False, url: UrlOption = None, context: ContextOption = None
) -> None:
    """Make it as the file says. What the file does not mention stays, unless --prune is given.

    Policies of a namespace or a topic that are in the file are all that it has of its own; those of subscriptions are
    changed as far as they are named. On a terminal it asks before it deletes. Without --prune it may be repeated at any
    time. If a step fails, those before it stay done.
    """
    found = _plan(file, prune, url, context)
    _show(found)
    if any(step.action == "delete" for step in found.steps) and not found.conflicts:
        confirm(yes, lambda: "Delete what is marked with -?")

    async def work(client: Client) -> None:
        from danube.client.definitions import apply_plan

        await apply_plan(client, found)

    run_with_client(work, url, context)
    print(f"{len(found.steps)} steps done" if found.steps else "it is so already")


def _plan(file: str, prune: bool, url: str | None, context: str | None) -> Plan:
    from danube.model.definitions import read_definitions
    from danube.model.errors import InvalidArgumentError

    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        what = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidArgumentError(f"{file} cannot be read: {what}; write it with danube definitions export") from error
    wanted = read_definitions(data)

    async def work(client: Client) -> Plan:
        from danube.client.definitions import make_plan

        return await make_plan(client, wanted, prune=prune)

    return run_with_client(work, url, context)


def _show(found: Plan) -> None:
    from danube.model.definitions import described

    for line in described(found.steps, found.conflicts):
        print(line)
