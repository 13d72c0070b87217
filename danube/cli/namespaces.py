"""``danube namespaces``: list, create and delete namespaces, and their quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._completion import complete_namespace
from danube.cli._context import ContextOption, UrlOption
from danube.cli._output import Output, OutputOption, print_json, show_rows
from danube.cli._questions import YesOption, confirm
from danube.cli._quota_values import parse_quota_names, parse_quotas, show_quotas

if TYPE_CHECKING:
    from danube.model.quotas import QuotaReport

__all__ = ["namespaces_app"]

namespaces_app = typer.Typer(no_args_is_help=True, help="List, create and delete namespaces, and their quotas.")
_quota_app = typer.Typer(no_args_is_help=True, help="Show and change what a namespace may use at most.")
namespaces_app.add_typer(_quota_app, name="quota")

_Name = Annotated[str, typer.Argument(metavar="NAMESPACE", autocompletion=complete_namespace)]


@namespaces_app.command("list")
def list_namespaces(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the namespaces."""
    found = run_with_client(lambda client: client.admin.list_namespaces(), url, context)
    show_rows([{"namespace": name} for name in found], ["namespace"], output)


@namespaces_app.command("create")
def create_namespace(namespace: _Name, url: UrlOption = None, context: ContextOption = None) -> None:
    """Create a namespace."""
    run_with_client(lambda client: client.admin.create_namespace(namespace), url, context)
    print(f"created {namespace}")


@namespaces_app.command("delete")
def delete_namespace(
    namespace: _Name, yes: YesOption = False, url: UrlOption = None, context: ContextOption = None
) -> None:
    """Delete a namespace; it must be empty. On a terminal it asks first."""
    confirm(yes, lambda: f"Delete the namespace {namespace} with its policies and quotas?")
    run_with_client(lambda client: client.admin.delete_namespace(namespace), url, context)
    print(f"deleted {namespace}")


@_quota_app.command("show")
def show_quota(
    namespace: _Name, url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Show the quota of a namespace, and what it uses. "-" is no quota."""
    _show(run_with_client(lambda client: client.admin.quota(namespace), url, context), output)


@_quota_app.command("set")
def set_quota(
    namespace: _Name,
    changes: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="Such as max_topics=100 publish_rate=10MiB/s.")
    ],
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set quotas of a namespace; others stay as they are.

    max_topics is the number of plain topics and partitions, in the whole cluster; what exists stays, also if it is
    more. publish_rate is that of all producers of the namespace at each broker, dispatch_rate that of all its
    consumers: messages or bytes per second (100/s, 10MiB/s, or both with a comma); they are delayed, not refused.
    max_stored_bytes is what each broker stores for its topics. max_subjects is the number of subjects of the schema
    registry whose names begin with /NAMESPACE/, in the whole cluster. Quotas apply at once. With access control, this
    needs ManageNamespace on the cluster.
    """
    plain = parse_quotas(changes)
    _show(run_with_client(lambda client: client.admin.change_quota(namespace, **plain), url, context), output)


@_quota_app.command("unset")
def unset_quota(
    namespace: _Name,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Such as max_topics.")],
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove quotas of a namespace."""
    plain = dict.fromkeys(parse_quota_names(names))
    _show(run_with_client(lambda client: client.admin.change_quota(namespace, **plain), url, context), output)


def _show(report: QuotaReport, output: Output) -> None:
    if output is Output.JSON:
        print_json(to_plain(report))
    else:
        show_rows(show_quotas(report), ["quota", "value", "used"], output)
