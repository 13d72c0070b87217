"""``danube principals``: lists, suspends and resumes users, services and groups; their quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._output import Output, OutputOption, print_json, show_rows
from danube.cli._quota_values import PRINCIPAL_QUOTAS, parse_quota_names, parse_quotas, show_principal_quotas

if TYPE_CHECKING:
    from danube.model.quotas import PrincipalQuota

__all__ = ["principals_app"]

principals_app = typer.Typer(no_args_is_help=True, help="List, suspend and resume users, services and groups.")

_quota_app = typer.Typer(no_args_is_help=True, help="Show and change what a user or a service may use at most.")
principals_app.add_typer(_quota_app, name="quota")

_Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="user:NAME, service:NAME or group:NAME.")]


@principals_app.command("list")
def list_principals(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the subjects with a binding, an API key or a suspension."""
    rows = [to_plain(row) for row in run_with_client(lambda client: client.security.principals(), url, context)]
    show_rows(rows, ["subject", "suspended", "bindings", "keys", "description"], output)


@principals_app.command("suspend")
def suspend_principal(
    subject: _Subject,
    reason: Annotated[str, typer.Option(help="Why, for lists.")] = "",
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Take all rights from a subject until it is resumed; its open streams end within a second."""
    run_with_client(lambda client: client.security.suspend(subject, reason), url, context)
    print(f"suspended {subject}")


@principals_app.command("resume")
def resume_principal(subject: _Subject, url: UrlOption = None, context: ContextOption = None) -> None:
    """End a suspension: the subject has again what its bindings grant."""
    run_with_client(lambda client: client.security.resume(subject), url, context)
    print(f"resumed {subject}")


@_quota_app.command("show")
def show_quota(
    subject: _Subject, url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Show the quota of a user or a service. "-" is no quota."""
    _show(run_with_client(lambda client: client.security.quota(subject), url, context), output)


@_quota_app.command("set")
def set_quota(
    subject: _Subject,
    changes: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="Such as max_streams=50 publish_bytes_per_s=10MiB/s.")
    ],
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set quotas of a user or a service; others stay as they are.

    max_streams is the number of open producers and consumers at each broker, calls_per_s the rate of other calls there;
    official clients send each message in a call. More are refused; what is open stays. publish_bytes_per_s and
    consume_bytes_per_s (10MiB/s) delay what all its producers send and all its consumers are sent there. Quotas apply
    at once.
    """
    plain = parse_quotas(changes, PRINCIPAL_QUOTAS)
    _show(run_with_client(lambda client: client.security.change_quota(subject, **plain), url, context), output)


@_quota_app.command("unset")
def unset_quota(
    subject: _Subject,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Such as max_streams.")],
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove quotas of a user or a service."""
    plain = dict.fromkeys(parse_quota_names(names, PRINCIPAL_QUOTAS))
    _show(run_with_client(lambda client: client.security.change_quota(subject, **plain), url, context), output)


def _show(quota: PrincipalQuota, output: Output) -> None:
    if output is Output.JSON:
        print_json(to_plain(quota))
    else:
        show_rows(show_principal_quotas(quota), ["quota", "value"], output)
