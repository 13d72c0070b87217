"""``danube policies``: limits, rates, time to live and retention, for the broker, a namespace or a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._completion import complete_change, complete_policy, complete_topic
from danube.cli._context import ContextOption, UrlOption
from danube.cli._output import Output, OutputOption, print_json, show_rows
from danube.cli._policy_values import parse_changes, parse_names, show_policies

if TYPE_CHECKING:
    from danube.model.policy_api import PolicyReport

__all__ = ["policies_app"]

policies_app = typer.Typer(
    no_args_is_help=True, help="Show and change limits, rates, time to live and retention of topics."
)

_BROKER: Final = "broker"
_TARGET_HELP: Final = "broker, a namespace (with a slash before it if you like), or /namespace/topic."

_Target = Annotated[str, typer.Argument(metavar="TARGET", help=_TARGET_HELP, autocompletion=complete_topic)]


@policies_app.command("show")
def show(
    target: Annotated[
        str, typer.Argument(metavar="[TARGET]", help=_TARGET_HELP, autocompletion=complete_topic)
    ] = _BROKER,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the policies in effect for a target, and the level that sets each of them.

    Policies of a topic override those of its namespace, which override those of the broker. A policy that no level sets
    is shown as "-": then the broker's limits apply.
    """
    _show(run_with_client(lambda client: client.admin.policies(_address(target)), url, context), output)


@policies_app.command("set")
def set_policies(
    target: _Target,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="Such as max_producers=10 message_ttl=7d publish_rate=100/s.",
            autocompletion=complete_change,
        ),
    ],
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set policies of a target; others stay as they are.

    They take effect immediately, for everything below the target. Rates are messages or bytes per second (100/s,
    10MiB/s, or both with a comma); sizes and times have units (1MiB, 12h); a retention is an age, a size, the word
    acknowledged, or several of these with commas (7d,10GiB). "none" removes a rate, a time to live or a retention that
    a level above has set.
    """
    plain = parse_changes(changes)
    _show(run_with_client(lambda client: client.admin.change_policies(_address(target), **plain), url, context), output)


@policies_app.command("unset")
def unset_policies(
    target: _Target,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Such as max_producers.", autocompletion=complete_policy)
    ],
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove policies of a target: those of the level above apply again."""
    plain = dict.fromkeys(parse_names(names))
    _show(run_with_client(lambda client: client.admin.change_policies(_address(target), **plain), url, context), output)


def _address(target: str) -> str:
    """Return the broker's name of a target; ``/broker`` is a namespace of that name."""
    if target == _BROKER:
        return ""
    return target[1:] if target.startswith("/") and "/" not in target[1:] else target


def _show(report: PolicyReport, output: Output) -> None:
    if output is Output.JSON:
        print_json({**to_plain(report), "target": report.target or _BROKER})
    else:
        show_rows(show_policies(report.effective, report.sources), ["policy", "value", "from"], output)
