"""Operations: the use cases of a broker, shared by all protocols; take plain values and return API structs.

This package does not know the wire. A protocol converts its requests to these calls, and their results and errors to
its own.
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
    """All operations of a broker.

    Args:
        directory: of the topics.
        info: returns the status of the broker.
    """

    def __init__(self, directory: Directory, info: Callable[[], api.BrokerInfo]) -> None:
        self.info = info
        self.topics = TopicOperations(directory)
        self.policies = PolicyOperations(directory)
        self.subscriptions = SubscriptionOperations(directory, self.policies)
        self.storages = StorageOperations(directory)
        self.logs = LogOperations(directory)
