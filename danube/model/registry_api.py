"""Names of what callers do by Confluent's REST interface, for the table of rights and the audit log."""

from __future__ import annotations

import msgspec

__all__ = ["RegistryMethod", "RegistryRequest"]


class RegistryMethod:
    """Paths in the table of rights. No port serves them as calls: requests of REST are judged by them."""

    INFO = "/danube.registry/Info"
    """Facts about the registry itself, and its settings."""
    FIND = "/danube.registry/Find"
    """Subjects, schemas by number, and lists; limited to what the caller may read."""
    READ = "/danube.registry/Read"
    """A subject, its versions and settings; comparing a schema with it."""
    REGISTER = "/danube.registry/Register"
    DELETE = "/danube.registry/Delete"
    CONFIGURE = "/danube.registry/Configure"
    """The settings of a subject."""
    CONFIGURE_ALL = "/danube.registry/ConfigureAll"
    """The settings of the registry."""


class RegistryRequest(msgspec.Struct, frozen=True):
    """A request of REST, as it is judged and noted in the audit log."""

    route: str
    """``POST /subjects/{subject}/versions``."""
    subject: str = ""
    """Empty: the request is not about one subject."""
