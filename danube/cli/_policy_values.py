"""Policies in the notation of the command line: ``publish_rate=100/s,1MiB/s``, ``message_ttl=7d``, ``retention=none``.

Output can be used as input, with the same meaning. A name may be written with dashes, and without the unit at its end
(``message_ttl`` for ``message_ttl_s``); the output shows the API's own name.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec

from danube.cli._durations import parse_duration
from danube.model.errors import ConfigurationError, InvalidArgumentError
from danube.model.policies import Rate, Retention, SchemaFraming, SchemaPayloads, SchemaValidation

__all__ = [
    "SUBSCRIPTION_POLICIES",
    "TOPIC_POLICIES",
    "Kind",
    "parse_changes",
    "parse_names",
    "parse_rate",
    "show_policies",
]

_NONE: Final = "none"
_SIZES: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_DURATIONS: Final = (("d", 86400), ("h", 3600), ("m", 60))
_MOST_DIGITS: Final = 18
"""Maximum digits of a count, which has to fit into 64 bits."""


class Kind(NamedTuple):
    """The notation of the values of a policy."""

    parse: Callable[[str], Any]
    """Converts text to a plain value; raises InvalidArgumentError or ConfigurationError."""
    show: Callable[[Any], str]
    """Converts a value to text."""


# --- Numbers, sizes, times -------------------------------------------------------------------------------------------


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise InvalidArgumentError(f"{text!r} is not a number; to remove a policy, use `danube policies unset`")
    return int(text)


def _digits(number: float) -> str:
    """Format a number with all its digits, without an exponent, so that it reads back unchanged."""
    return str(int(number)) if number == int(number) else f"{Decimal(repr(number)):f}"


def _parse_size(text: str) -> int:
    from danube.broker.runtime.config import parse_size

    return parse_size(text)


def _show_size(size: float) -> str:
    for unit, factor in _SIZES:
        if size >= factor and size % factor == 0:
            return f"{_digits(size // factor)}{unit}"
    return f"{_digits(size)}B"


def _parse_duration(text: str) -> float:
    """Parse a duration; ``none`` is 0."""
    return 0.0 if text == _NONE else parse_duration(text)


def _show_duration(seconds: float) -> str:
    for unit, factor in _DURATIONS:
        if seconds >= factor and seconds % factor == 0:
            return f"{_digits(seconds // factor)}{unit}"
    return f"{_digits(seconds)}s"


# --- Rates -----------------------------------------------------------------------------------------------------------


def parse_rate(text: str) -> dict[str, float]:
    """Parse ``100/s``, ``1MiB/s``, both with a comma between them, or ``none``; return the fields of a Rate.

    A number is messages, a number with a unit (``B``, ``KiB``, ``MB`` ...) is bytes.

    Raises:
        InvalidArgumentError: the text is not a rate.
    """
    rate: dict[str, float] = {}
    for part in [] if text == _NONE else text.split(","):
        amount, slash, second = part.strip().partition("/")
        try:
            if slash and second.strip() != "s":
                raise ValueError(second)
            name = "bytes_per_s" if amount.strip()[-1:].isalpha() else "messages_per_s"
            value = float(_parse_size(amount)) if name == "bytes_per_s" else float(amount)
            if name in rate:
                raise ValueError(name)
            rate[name] = value
        except (ValueError, ConfigurationError):
            raise InvalidArgumentError(
                f"{text!r} is not a rate; write messages or bytes a second, for example 100/s, 10MiB/s, or"
                " 100/s,10MiB/s; or none for no limit"
            ) from None
    return rate


def _show_rate(rate: Rate) -> str:
    parts = []
    if rate.messages_per_s:
        parts.append(f"{_digits(rate.messages_per_s)}/s")
    if rate.bytes_per_s:
        parts.append(f"{_show_size(rate.bytes_per_s)}/s")
    return ",".join(parts) or _NONE


# --- Retention -------------------------------------------------------------------------------------------------------


def _parse_retention(text: str) -> dict[str, Any]:
    """Parse ``7d``, ``10GiB``, ``acknowledged``, several with commas between them, or ``none`` (which keeps all)."""
    rules: dict[str, Any] = {}
    for part in [] if text == _NONE else text.split(","):
        word = part.strip()
        if word == "acknowledged":
            rules["acknowledged"] = True
        elif word[-1:] in ("b", "B"):
            rules["max_bytes"] = _parse_size(word)
        else:
            rules["max_age_s"] = parse_duration(word)
    return rules


def _show_retention(rules: Retention) -> str:
    parts = []
    if rules.max_age_s:
        parts.append(_show_duration(rules.max_age_s))
    if rules.max_bytes:
        parts.append(_show_size(rules.max_bytes))
    if rules.acknowledged:
        parts.append("acknowledged")
    return ",".join(parts) or _NONE


# --- The policies ----------------------------------------------------------------------------------------------------


def _show_text(value: str) -> str:
    return value or "-"


def _show_bound(count: int) -> str:
    return _NONE if count == -1 else str(count)


def _show_optional_duration(seconds: float) -> str:
    return _show_duration(seconds) if seconds else _NONE


def _one_of(choices: type[enum.StrEnum], what: str) -> Kind:
    known = [each.value for each in choices]

    def parse(text: str) -> str:
        if text not in known:
            raise InvalidArgumentError(f"{text!r} is no {what}; use one of: {', '.join(known)}")
        return text

    return Kind(parse, str)


_COUNT: Final = Kind(_parse_count, str)
_RATE: Final = Kind(parse_rate, _show_rate)
_OPTIONAL_DURATION: Final = Kind(_parse_duration, _show_optional_duration)

TOPIC_POLICIES: Final[Mapping[str, Kind]] = {
    "max_producers": _COUNT,
    "max_subscriptions": _COUNT,
    "max_consumers": _COUNT,
    "max_consumers_per_subscription": _COUNT,
    "max_message_bytes": Kind(_parse_size, _show_size),
    "message_ttl_s": _OPTIONAL_DURATION,
    "retention": Kind(_parse_retention, _show_retention),
    "publish_rate": _RATE,
    "dispatch_rate": _RATE,
    "schema_validation": _one_of(SchemaValidation, "validation of schemas"),
    "schema_payloads": _one_of(SchemaPayloads, "place where payloads are checked"),
    "schema_framing": _one_of(SchemaFraming, "framing of payloads"),
}
"""Every field of :class:`danube.model.TopicPolicies`."""

SUBSCRIPTION_POLICIES: Final[Mapping[str, Callable[[Any], str]]] = {
    "max_redelivery_count": _show_bound,
    "ack_timeout_s": _show_optional_duration,
    "backoff": str,
    "redelivery_delay_s": _show_duration,
    "max_redelivery_delay_s": _show_duration,
    "poison": str,
    "dead_letter_topic": _show_text,
    "max_unacked_messages": str,
    "unmatched": str,
    "dispatch_rate": _show_rate,
}
"""The format of every field of :class:`danube.model.SubscriptionPolicy`."""


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``name=value`` texts; return plain values by the API's names.

    Raises:
        InvalidArgumentError: an unknown name (the message names the nearest), a repeated one, or an invalid value.
    """
    changes: dict[str, Any] = {}
    for text in texts:
        left, equals, right = text.partition("=")
        if not equals:
            raise InvalidArgumentError(f"{text!r} is not name=value, for example publish_rate=100/s")
        name = _find(left)
        if name in changes:
            raise InvalidArgumentError(f"{name} is given twice; give it once")
        try:
            changes[name] = TOPIC_POLICIES[name].parse(right.strip())
        except (InvalidArgumentError, ConfigurationError) as error:
            raise InvalidArgumentError(f"{name}: {error}") from error
    return changes


def policy_names() -> list[str]:
    """Return the short names of the policies of topics, as they are completed: ``message_ttl``."""
    return [name.removesuffix("_s").removesuffix("_bytes") for name in TOPIC_POLICIES]


def parse_names(texts: Iterable[str]) -> list[str]:
    """Return the API's names of policies.

    Raises:
        InvalidArgumentError: an unknown name; the message names the nearest.
    """
    return [_find(text) for text in texts]


def _find(text: str) -> str:
    wanted = text.strip().replace("-", "_").lower()
    short = {name.removesuffix("_s").removesuffix("_bytes"): name for name in TOPIC_POLICIES}
    found = wanted if wanted in TOPIC_POLICIES else short.get(wanted)
    if found is not None:
        return found
    near = difflib.get_close_matches(wanted, [*TOPIC_POLICIES, *short], n=1)
    hint = f"did you mean {short.get(near[0], near[0])!r}?" if near else f"known are {', '.join(TOPIC_POLICIES)}"
    raise InvalidArgumentError(f"there is no policy {text!r}; {hint}")


def show_policies(values: msgspec.Struct, sources: Mapping[str, str]) -> list[dict[str, str]]:
    """Return a row with name, value and level for each policy of a :class:`danube.model.TopicPolicies`."""
    rows = []
    for name, kind in TOPIC_POLICIES.items():
        value = getattr(values, name)
        rows.append(
            {"policy": name, "value": "-" if value is None else kind.show(value), "from": sources.get(name, "-")}
        )
    return rows
