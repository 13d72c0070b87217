"""Asks the brokers for everything that needs attention: for ``danube explain`` and ``danube mcp``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from danube.cli._overview import Problem, Whole, problems, wholes, worst_first
from danube.model.errors import PermissionDeniedError
from danube.model.names import split_partition

if TYPE_CHECKING:
    from danube.client import Client

__all__ = ["Everything", "Patience", "look", "look_at_topic"]


class Patience(NamedTuple):
    """How old the oldest message of a subscription may be, in seconds: with consumers, and without."""

    present_s: float
    absent_s: float


class Everything(NamedTuple):
    """What was found."""

    problems: list[Problem]
    """What is not well, in the order in which it is shown."""
    subscriptions: list[Whole]
    """All of them."""
    topics: int
    """Number of topics; counted only if there is no subscription."""


async def look(client: Client, patience: Patience) -> Everything:
    """Return everything at all brokers that needs attention."""
    overview = await client.admin.overview(patience_s=patience.present_s, absent_patience_s=patience.absent_s)
    findings = await client.admin.findings()
    silent = {*overview.silent, *findings.silent}
    warnings = [f"broker {broker} does not answer: what it serves is not shown" for broker in sorted(silent)]
    try:
        warnings += (await client.admin.cluster_status()).warnings
    except PermissionDeniedError:
        warnings += []  # callers that may not describe the cluster see what is theirs
    if findings.more:
        warnings.append(f"there are {findings.more:,} further findings, not shown")
    found = wholes(overview.subscriptions)
    topics = 0 if found else len(await client.admin.topic_names())
    return Everything(problems(found, findings.findings, warnings), found, topics)


async def look_at_topic(client: Client, topic: str, patience: Patience) -> tuple[list[Whole], list[Problem]]:
    """Return the subscriptions of a topic, the worst first, and what is not well about the topic itself.

    Raises:
        TopicNotFoundError: it does not exist.
    """
    overview = await client.admin.overview(
        topic=topic, patience_s=patience.present_s, absent_patience_s=patience.absent_s
    )
    base = _base(topic)
    findings = [each for each in (await client.admin.findings()).findings if each.topic and _base(each.topic) == base]
    return worst_first(wholes(overview.subscriptions)), problems((), findings)


def _base(topic: str) -> str:
    return (split_partition(topic) or (topic, 0))[0]
