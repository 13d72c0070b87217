"""Combines the services of the admin port: the package ``danube_admin``, for upstream's command lines and tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danube.compat.admin_cluster import BrokerAdmin, ClusterAdmin
from danube.compat.admin_topics import NamespaceAdmin, TopicAdmin
from danube.compat.relay import Relay
from danube.compat.security_admin import SecurityAdmin
from danube.wire import Service

if TYPE_CHECKING:
    from danube.broker.faces import Served

__all__ = ["admin_services"]


def admin_services(broker: Served, relay: Relay) -> Service:
    """Return the methods, by path.

    Args:
        broker: this broker.
        relay: for calls about topics of other brokers.
    """
    return {
        **BrokerAdmin(broker).service(),
        **ClusterAdmin(broker).service(),
        **NamespaceAdmin(broker).service(),
        **TopicAdmin(broker, relay).service(),
        **SecurityAdmin(broker).service(),
    }
