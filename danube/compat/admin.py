"""Combines the services of the admin port: the package ``danube_admin``, for upstream's command lines and tools.

``SecurityAdmin`` is not implemented yet. Every client that can connect to this broker has all permissions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danube.compat.admin_cluster import BrokerAdmin, ClusterAdmin
from danube.compat.admin_methods import methods
from danube.compat.admin_topics import NamespaceAdmin, TopicAdmin
from danube.wire import Service

if TYPE_CHECKING:
    from danube.broker.faces import Served

__all__ = ["admin_services"]


def admin_services(broker: Served) -> Service:
    """Return the methods, by path."""
    return {
        **BrokerAdmin(broker).service(),
        **ClusterAdmin().service(),
        **NamespaceAdmin(broker).service(),
        **TopicAdmin(broker).service(),
        **methods("SecurityAdmin", {}, "this broker has no access control yet: all clients have all permissions"),
    }
