"""Use cases: what callers of any protocol may ask of a broker, with plain values in and structs of the API out.

Nothing here knows the wire. A protocol turns its requests into these calls, and their answers and errors into its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from danube.broker.operations.logs import LogOperations
from danube.broker.operations.policies import PolicyOperations
from danube.broker.operations.storages import StorageOperations
from danube.broker.operations.subscriptions import SubscriptionOperations
from danube.broker.operations.topics import TopicOperations

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.model import api

__all__ = ["Operations"]


class Operations:
    """All of them.

    Args:
        directory: of the topics.
        info: returns what the broker says about itself.
    """

    def __init__(self, directory: Directory, info: Callable[[], api.BrokerInfo]) -> None:
        self.info = info
        self.topics = TopicOperations(directory)
        self.policies = PolicyOperations(directory)
        self.subscriptions = SubscriptionOperations(directory, self.policies)
        self.storages = StorageOperations(directory)
        self.logs = LogOperations(directory)
