"""Permissions as bit flags; a set of permissions is an integer."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntFlag

from danube.model.errors import InvalidArgumentError

__all__ = ["Permission", "parse_permissions"]


class Permission(IntFlag):
    """Permissions. The first nine have the names and meanings of the upstream system."""

    LOOKUP = 1 << 0
    """See that a topic exists and where it is served."""
    PRODUCE = 1 << 1
    CONSUME = 1 << 2
    REPLICATE = 1 << 3
    MANAGE_NAMESPACE = 1 << 4
    MANAGE_TOPIC = 1 << 5
    MANAGE_SCHEMA = 1 << 6
    MANAGE_BROKER = 1 << 7
    MANAGE_CLUSTER = 1 << 8
    DESCRIBE = 1 << 9
    """See the settings and state of a resource, without its messages."""
    MANAGE_SUBSCRIPTION = 1 << 10
    READ_SCHEMA = 1 << 11
    MANAGE_SECURITY = 1 << 12
    READ_METRICS = 1 << 13
    BROKER_INTERNAL = 1 << 14
    """Calls between brokers. No role grants it: it is granted only by a broker's certificate."""

    @property
    def title(self) -> str:
        """The display name of a single permission, also used by upstream's tools: ``ManageTopic``."""
        assert self.name is not None
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def titles(self) -> tuple[str, ...]:
        """The display names of all permissions of a set, in order."""
        return tuple(each.title for each in Permission if each in self)


_BY_TITLE = {each.title.lower(): each for each in Permission}


def parse_permissions(titles: Iterable[str]) -> Permission:
    """Return the set of permissions with these names, ignoring case.

    Raises:
        InvalidArgumentError: there is no such permission, or roles cannot grant it.
    """
    found = Permission(0)
    for title in titles:
        permission = _BY_TITLE.get(title.lower())
        if permission is None or permission is Permission.BROKER_INTERNAL:
            known = ", ".join(each.title for each in Permission if each is not Permission.BROKER_INTERNAL)
            raise InvalidArgumentError(f"unknown permission {title!r}; the permissions are: {known}")
        found |= permission
    return found
