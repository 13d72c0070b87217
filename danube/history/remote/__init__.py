"""Durability ``remote``: a journal whose commits are objects in a storage backend.

:class:`RemoteJournal` has the interface of the local journal; see :mod:`danube.history.remote.journal`.
"""

from __future__ import annotations

from danube.history.remote.claim import brokers_with_commits, highest_epoch
from danube.history.remote.format import (
    Change,
    RemoteState,
    SubscriptionDeleted,
    SubscriptionStored,
    TopicDeleted,
    TopicGone,
    TopicKept,
    TopicLeaving,
    TopicStored,
    TopicTaken,
    decode_change,
    encode_change,
    wal_place,
)
from danube.history.remote.journal import RemoteBroker, RemoteJournal
from danube.history.remote.replay import RemoteRecovered, RemoteTopicState

__all__ = [
    "Change",
    "RemoteBroker",
    "RemoteJournal",
    "RemoteRecovered",
    "RemoteState",
    "RemoteTopicState",
    "SubscriptionDeleted",
    "SubscriptionStored",
    "TopicDeleted",
    "TopicGone",
    "TopicKept",
    "TopicLeaving",
    "TopicStored",
    "TopicTaken",
    "decode_change",
    "encode_change",
    "brokers_with_commits",
    "highest_epoch",
    "wal_place",
]
