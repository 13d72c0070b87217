"""Handlers of compatibility levels, policies and modes. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from danube.model.errors import InvalidArgumentError, SchemaSettingNotFoundError
from danube.registry.errors import RegistryError
from danube.registry.requests import Call
from danube.schema.book import Book, Change
from danube.schema.modes import Level, Mode, Policy, parse_level, parse_mode, parse_policy
from danube.schema.records import Settings

__all__ = ["drop_config", "drop_mode", "put_config", "put_mode", "show_config", "show_mode"]

_UNSUPPORTED: Final = (
    "alias",
    "compatibilityGroup",
    "defaultMetadata",
    "overrideMetadata",
    "defaultRuleSet",
    "overrideRuleSet",
)


class ConfigBody(msgspec.Struct, frozen=True, rename="camel"):
    """Settings of a subject, or of the registry; those that are not given stay as they are."""

    compatibility: str | None = None
    compatibility_level: str | None = None
    """The same; some clients send back what they have got."""
    compatibility_policy: str | None = None
    alias: Any = None
    compatibility_group: Any = None
    default_metadata: Any = None
    override_metadata: Any = None
    default_rule_set: Any = None
    override_rule_set: Any = None


class ModeBody(msgspec.Struct, frozen=True):
    """A mode."""

    mode: str | None = None


def show_config(book: Book, call: Call) -> Any:
    """``GET /config[/{subject}]``.

    Raises:
        RegistryError: 40408: the subject has no level of its own, and that of the registry is not asked for.
    """
    subject = call.subject_or_all
    own = book.own_settings(subject)
    if subject is None:
        return _config(own.level or Level.BACKWARD, own.policy)
    if own.level is None and not call.flag("defaultToGlobal"):
        raise RegistryError(404, 40408, f"subject {subject!r} has no compatibility level of its own")
    return _config(book.level(subject), book.policy(subject))


def put_config(book: Book, call: Call) -> tuple[Any, Change]:
    """``PUT /config[/{subject}]``.

    Raises:
        RegistryError: 42203: the level or the policy is unknown; 42205: a setting is not supported.
    """
    body = call.decoded(ConfigBody)
    for name in _UNSUPPORTED:
        if getattr(body, name if name == "alias" else _snake(name)) is not None:
            raise RegistryError(422, 42205, f"the setting {name} is not supported; leave it out")
    word = body.compatibility if body.compatibility is not None else body.compatibility_level
    try:
        level = None if word is None else parse_level(word)
        policy = None if body.compatibility_policy is None else parse_policy(body.compatibility_policy)
    except InvalidArgumentError as error:
        raise RegistryError(422, 42203, error.message) from error
    if level is None and policy is None:
        raise RegistryError(422, 42203, "the compatibility level is missing; send it as the field 'compatibility'")
    answer: dict[str, str] = {}
    if level is not None:
        answer["compatibility"] = level.title
    if policy is not None:
        answer["compatibilityPolicy"] = policy.name
    return answer, book.set_compatibility(call.subject_or_all, level=level, policy=policy)


def drop_config(book: Book, call: Call) -> tuple[Any, Change]:
    """``DELETE /config[/{subject}]``: the level; the answer is the one that was removed."""
    subject = call.subject_or_all
    own = book.own_settings(subject)
    try:
        change = book.set_level(subject, None)
    except SchemaSettingNotFoundError as error:
        raise RegistryError(404, 40408, error.message) from error
    assert own.level is not None
    return _config(own.level, own.policy), change


def show_mode(book: Book, call: Call) -> Any:
    """``GET /mode[/{subject}]``.

    Raises:
        RegistryError: 40409: the subject has no mode of its own, and that of the registry is not asked for.
    """
    subject = call.subject_or_all
    own = book.own_settings(subject)
    if subject is None:
        return _mode(own)
    if own.mode is None and not call.flag("defaultToGlobal"):
        raise RegistryError(404, 40409, f"subject {subject!r} has no mode of its own")
    return {"mode": book.mode(subject).name}


def put_mode(book: Book, call: Call) -> tuple[Any, Change]:
    """``PUT /mode[/{subject}]``.

    Raises:
        RegistryError: 42204: there is no such mode, or not of a subject.
    """
    word = call.decoded(ModeBody).mode
    if word is None:
        raise RegistryError(422, 42204, "the mode is missing; send it as the field 'mode'")
    try:
        mode = parse_mode(word)
    except InvalidArgumentError as error:
        raise RegistryError(422, 42204, error.message) from error
    subject = call.subject_or_all
    if mode is Mode.READONLY_OVERRIDE and subject is not None:
        raise RegistryError(422, 42204, "READONLY_OVERRIDE is a mode of the whole registry, not of a subject")
    return {"mode": mode.name}, book.set_mode(subject, mode, force=call.flag("force"))


def drop_mode(book: Book, call: Call) -> tuple[Any, Change]:
    """``DELETE /mode[/{subject}]``; the answer is the mode that was removed."""
    subject = call.subject_or_all
    own = book.own_settings(subject)
    try:
        change = book.set_mode(subject, None)
    except SchemaSettingNotFoundError as error:
        raise RegistryError(404, 40409, error.message) from error
    return _mode(own), change


def _config(level: Level, policy: Policy | None) -> dict[str, str]:
    """Return a level, and the policy unless it is Confluent's default."""
    found = {"compatibilityLevel": level.title}
    if policy not in (None, Policy.STRICT):
        found["compatibilityPolicy"] = policy.name
    return found


def _mode(own: Settings) -> dict[str, str]:
    return {"mode": (own.mode or Mode.READWRITE).name}


def _snake(name: str) -> str:
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name)
