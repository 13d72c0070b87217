"""``danube check``: one line and an exit code for monitoring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from danube.cli._client import run_with_client
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import parse_duration
from danube.cli._failures import flatten
from danube.cli._names import full_name
from danube.model.errors import DanubeError, InvalidArgumentError, Status

if TYPE_CHECKING:
    from danube.cli._overview import Whole
    from danube.client import Client
    from danube.model.api import BrokerInfo
    from danube.model.overview_api import Finding

__all__ = ["check"]

_AWAY = (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)


def check(
    lag: Annotated[
        str,
        typer.Option(metavar="N", help="Unacknowledged messages of one subscription: CRITICAL, or WARNING,CRITICAL."),
    ] = "",
    age: Annotated[
        str, typer.Option(metavar="TIME", help="Age of the oldest unacknowledged message: 5m, or WARNING,CRITICAL.")
    ] = "",
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Look at the subscriptions of this topic only.")] = "",
    subscription: Annotated[
        str, typer.Option("-s", "--subscription", metavar="NAME", help="Look at subscriptions of this name only.")
    ] = "",
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Check the brokers for a monitoring system: prints one line with figures, in the notation of Nagios.

    The exit code is 0 (OK), 1 (WARNING: something needs attention), 2 (CRITICAL: a level is exceeded, a topic has
    stopped, or no broker answers) or 3 (UNKNOWN: the check itself is wrong, or not permitted).
    """
    from danube.cli import _verdict

    try:
        levels = (
            _verdict.parse_level("--lag", [_number(each) for each in lag.split(",")]) if lag else _verdict.Level(),
            _verdict.parse_level("--age", [parse_duration(each) for each in age.split(",")])
            if age
            else _verdict.Level(),
        )
        only = full_name(topic, url, context) if topic else None
        info, found, findings = run_with_client(lambda client: _look(client, only), url, context)
        chosen = [each for each in found if not subscription or each.subscription == subscription]
        status, line = _verdict.verdict_of(info, chosen, findings, *levels)
    except (DanubeError, OSError, BaseExceptionGroup) as error:
        found_error = flatten(error)
        if not isinstance(found_error, DanubeError | OSError):
            raise
        away = isinstance(found_error, OSError) or found_error.status in _AWAY
        status = _verdict.Status.CRITICAL if away else _verdict.Status.UNKNOWN
        line = _verdict.line_of(status, str(found_error))
    print(line)
    raise typer.Exit(int(status))


async def _look(client: Client, topic: str | None) -> tuple[BrokerInfo, list[Whole], list[Finding]]:
    from danube.cli._overview import wholes
    from danube.model.overview_api import Finding

    info = await client.admin.info()
    overview = await client.admin.overview(topic=topic)
    answer = await client.admin.findings()
    silent = [
        Finding(broker=broker, kind="silent", subject=broker, sentence=f"broker {broker} does not answer")
        for broker in sorted({*overview.silent, *answer.silent})
    ]
    return info, wholes(overview.subscriptions), [*silent, *answer.findings]


def _number(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit() and len(text) <= 18):
        raise InvalidArgumentError(f"--lag {text!r} is not a number of messages")
    return int(text)
