"""Decisions with their reasons, as data and as a sentence. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from danube.security.permissions import Permission
from danube.security.roles import Binding
from danube.security.scopes import Resource, ScopeKind

__all__ = ["Decision", "Reason", "Source", "name_of"]


class Reason(Enum):
    """Why a decision was made."""

    GRANTED = "granted"
    """A binding grants the permission."""
    NOT_GRANTED = "not granted"
    """No binding does."""
    SUSPENDED = "suspended"
    """The principal, or one of its groups, is suspended."""
    LIMITED = "limited"
    """A binding grants the permission, but the credentials are limited to fewer."""
    PROTECTED = "protected"
    """Only brokers may do that, whatever is granted."""
    BROKER = "broker"
    """Brokers have the permission BrokerInternal, and no other one."""


class Source(NamedTuple):
    """A binding of the principal, and what it grants."""

    binding: Binding
    permissions: Permission

    def __str__(self) -> str:
        return f"{', '.join(self.binding.roles)} ({self.binding.id}, {self.binding.scope})"


class Decision(NamedTuple):
    """A decision and why it was made."""

    is_allowed: bool
    why: Reason
    permission: Permission
    resource: Resource
    source: Source | None = None
    """The binding that grants the permission on the resource."""
    suspended: str = ""
    """The suspended subject."""
    others: tuple[Source, ...] = ()
    """If it was not granted: bindings that grant other permissions on the resource."""
    elsewhere: tuple[Source, ...] = ()
    """If it was not granted: bindings that grant the permission on other resources."""

    @property
    def reason(self) -> str:
        """The reason as a sentence, for administrators. It contains no credentials."""
        what = f"{self.permission.title} on {name_of(self.resource)}"
        match self.why:
            case Reason.GRANTED:
                return f"{self.source} grants {what}"
            case Reason.LIMITED:
                return f"{self.source} grants {what}, but the credentials are limited to fewer permissions"
            case Reason.SUSPENDED:
                return f"{self.suspended} is suspended"
            case Reason.PROTECTED:
                return f"only brokers write to the namespace system, so no binding gives {what}"
            case Reason.BROKER:
                return "brokers have the permission BrokerInternal only"
            case Reason.NOT_GRANTED:
                others = (f"{each} grants {', '.join(each.permissions.titles) or 'nothing'}" for each in self.others)
                elsewhere = (
                    f"{each} grants {self.permission.title}, but not on {name_of(self.resource)}"
                    for each in self.elsewhere
                )
                return "; ".join([f"no binding grants {what}", *others, *elsewhere])


def name_of(resource: Resource) -> str:
    """Return a resource as messages to people name it."""
    return "the cluster" if resource.kind is ScopeKind.CLUSTER else str(resource)
