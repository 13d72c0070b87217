"""``danube subscriptions policy``: shows and changes the failure policy and the rates of a subscription."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from danube.cli._choices import choice_option
from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import parse_duration
from danube.cli._names import SubscriptionArgument, TopicArgument
from danube.cli._output import Output, OutputOption, print_json, show_record
from danube.cli._policy_values import SUBSCRIPTION_POLICIES, parse_rate
from danube.model.errors import InvalidArgumentError
from danube.model.policies import Backoff, PoisonPolicy, SubscriptionPolicy, Unmatched

if TYPE_CHECKING:
    from danube.client import Client
    from danube.model.api import SubscriptionInfo

__all__ = ["add_commands"]

_NONE: Final = "none"


def add_commands(subscriptions: typer.Typer) -> None:
    """Add the command of this module to ``danube subscriptions``."""
    subscriptions.command("policy")(policy)


def policy(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    max_redelivery: Annotated[
        str | None, typer.Option(metavar="N", help="A message that fails more often is poison; none: never.")
    ] = None,
    ack_timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="A message that is not acknowledged in this time fails; none: never."),
    ] = None,
    backoff: Annotated[Backoff | None, typer.Option(help="How the pause grows with the failures.")] = None,
    redelivery_delay: Annotated[str | None, typer.Option(metavar="TIME", help="Pause after the first failure.")] = None,
    max_redelivery_delay: Annotated[str | None, typer.Option(metavar="TIME", help="Longest pause.")] = None,
    poison: Annotated[
        PoisonPolicy | None,
        choice_option(
            PoisonPolicy,
            help="For a poison message: stop there, treat it as acknowledged, or copy it to the dead-letter topic.",
        ),
    ] = None,
    dead_letter_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Where copies go; none: TOPIC-SUBSCRIPTION-dlq.")
    ] = None,
    max_unacked: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Maximum of delivered, unacknowledged messages; 0: default.")
    ] = None,
    unmatched: Annotated[
        Unmatched | None, typer.Option(help="Key-shared: what to do with keys that no consumer's filters match.")
    ] = None,
    dispatch_rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="100/s, 1MiB/s, or both; none: no limit; inherit: the topic's.")
    ] = None,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show or change how a subscription treats its messages.

    Policies without an option are unchanged. A change takes effect immediately in all partitions, also for messages in
    flight.
    """
    changes: dict[str, Any] = {}
    if max_redelivery is not None:
        changes["max_redelivery_count"] = -1 if max_redelivery == _NONE else _count(max_redelivery)
    if ack_timeout is not None:
        changes["ack_timeout_s"] = 0.0 if ack_timeout == _NONE else parse_duration(ack_timeout)
    if backoff is not None:
        changes["backoff"] = backoff.value
    if redelivery_delay is not None:
        changes["redelivery_delay_s"] = parse_duration(redelivery_delay)
    if max_redelivery_delay is not None:
        changes["max_redelivery_delay_s"] = parse_duration(max_redelivery_delay)
    if poison is not None:
        changes["poison"] = poison.value
    if dead_letter_topic is not None:
        changes["dead_letter_topic"] = "" if dead_letter_topic == _NONE else dead_letter_topic
    if max_unacked is not None:
        changes["max_unacked_messages"] = max_unacked
    if unmatched is not None:
        changes["unmatched"] = unmatched.value
    if dispatch_rate is not None:
        changes["dispatch_rate"] = None if dispatch_rate == "inherit" else parse_rate(dispatch_rate)

    async def work(client: Client) -> list[SubscriptionInfo]:
        if changes:
            return await client.admin.change_subscription_policy(topic, subscription, **changes)
        return await client.admin.describe_subscription(topic, subscription)

    found = run_with_client(work, url, context)[0].policy  # the same in all partitions
    if output is Output.JSON:
        print_json({"topic": topic, "subscription": subscription, **to_plain(found)})
    else:
        show_record(_shown(found), output)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidArgumentError(f"--max-redelivery {text!r} is neither a number nor none")
    return int(text)


def _shown(found: SubscriptionPolicy) -> dict[str, str]:
    texts = {}
    for name, show in SUBSCRIPTION_POLICIES.items():
        value = getattr(found, name)
        texts[name] = "inherit" if value is None else show(value)
    return texts
