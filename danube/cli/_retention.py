"""Options for the rules of a retention, and their description in words."""

from __future__ import annotations

from typing import Annotated

import typer

from danube.cli._durations import human_duration, parse_duration
from danube.cli._output import human_bytes
from danube.model.policies import Retention

__all__ = ["DeleteAcknowledgedOption", "MaxAgeOption", "MaxBytesOption", "describe_retention", "read_retention"]

MaxAgeOption = Annotated[
    str | None,
    typer.Option("--max-age", metavar="TIME", help="Delete messages older than this, for example 12h or 7d."),
]
MaxBytesOption = Annotated[
    str | None,
    typer.Option(
        "--max-bytes", metavar="SIZE", help="Delete the oldest messages beyond this total size, for example 10GiB."
    ),
]
DeleteAcknowledgedOption = Annotated[
    bool, typer.Option("--delete-acknowledged", help="Delete messages that all subscriptions have acknowledged.")
]


def read_retention(max_age: str | None, max_bytes: str | None, delete_acknowledged: bool) -> Retention | None:
    """Return the rules given by the options; None if there are none.

    Raises:
        InvalidArgumentError: an invalid age, or a rule of 0.
        ConfigurationError: an invalid size.
    """
    from danube.broker.runtime.config import parse_size
    from danube.model.errors import InvalidArgumentError

    if max_age is None and max_bytes is None and not delete_acknowledged:
        return None
    age_s = 0.0 if max_age is None else parse_duration(max_age)
    size = 0 if max_bytes is None else parse_size(max_bytes)
    if (max_age is not None and not age_s) or (max_bytes is not None and not size):
        raise InvalidArgumentError("a rule of 0 would keep nothing; to keep everything, give no rule (or --clear)")
    return Retention(age_s, size, delete_acknowledged)


def describe_retention(rules: Retention) -> str:
    """Describe in a few words which messages are deleted."""
    words = []
    if rules.max_age_s:
        words.append(f"messages older than {human_duration(rules.max_age_s)}")
    if rules.max_bytes:
        words.append(f"the oldest beyond {human_bytes(rules.max_bytes)}")
    if rules.acknowledged:
        words.append("acknowledged messages")
    return f"deletes {', '.join(words)}" if words else "everything is kept"
