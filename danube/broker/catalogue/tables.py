"""The tables of the catalogue: mirrors of its rows in the metadata store, which follow the changes of all brokers.

Keys::

    /policies/broker                           TopicPolicies of the whole broker
    /namespaces/{namespace}                    NamespaceRecord
    /topics/{namespace}/{topic}                TopicRecord; a partitioned topic is one record
    /subscriptions/{topic id}/{subscription}   SubscriptionRecord; has no table, see
                                               :mod:`danube.broker.catalogue.subscription_rows`
    /withheld/{storage}/{namespace}/{topic}    TopicRecord of a topic of a bucket that is not served: its name is taken
    /storages/{storage}                        identity of the marker by which it is recognized (text); one that is not
                                               shared is called {storage}@{broker} there
    /assignments/{topic id}                    the owner of a topic or partition, see danube.cluster.records
    /creating/{namespace}/{topic}              CreatingRecord, while the assignments of many partitions are written
    /deleted/{first topic id}                  DeletedRecord of a topic; until the journals or wals note that, too
    /gaps/{topic id}/{start}                   GapRecord, see danube.cluster.gaps
    /writers/{broker}/catalogue                guard of this broker's changes of all but subscriptions
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from danube.cluster.gaps import GAPS, GapRecord, is_gap_name
from danube.cluster.records import CREATING, DELETED, TOPICS, CreatingRecord, DeletedRecord, is_topic_key, is_topic_name
from danube.metadata import MetadataStore, RowChange, Table, TextNames
from danube.model import TopicPolicies
from danube.model.records import NamespaceRecord, TopicRecord, encode_briefly

__all__ = ["Tables"]


def _is_one_part(name: str) -> bool:
    return "/" not in name


class Tables:
    """The tables; see the module.

    Args:
        store: the metadata.
        on_namespace, on_topic, on_storage, on_policies, on_gap: called for each change of such a row; must not raise.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        on_namespace: Callable[[RowChange[NamespaceRecord]], None],
        on_topic: Callable[[RowChange[TopicRecord]], None],
        on_storage: Callable[[RowChange[str]], None],
        on_policies: Callable[[RowChange[TopicPolicies]], None],
        on_gap: Callable[[RowChange[GapRecord]], None],
    ) -> None:
        self.namespaces = Table(
            store, "/namespaces/", NamespaceRecord, watched=True, on_change=on_namespace, is_name=_is_one_part
        )
        self.topics = Table(
            store,
            TOPICS,
            TopicRecord,
            watched=True,
            on_change=on_topic,
            packed=TextNames(),
            encode_packed=encode_briefly,
            is_name=is_topic_name,
        )
        self.storages = Table(
            store, "/storages/", str, encode=str.encode, decode=bytes.decode, watched=True, on_change=on_storage
        )
        self.policies = Table(
            store, "/policies/", TopicPolicies, watched=True, on_change=on_policies, is_name=_is_one_part
        )
        self.withheld = Table(store, "/withheld/", TopicRecord, watched=True)
        self.creating = Table(store, CREATING, CreatingRecord, watched=True, is_name=is_topic_name)
        self.deleted = Table(store, DELETED, DeletedRecord, watched=True, is_name=is_topic_key)
        self.gaps = Table(store, GAPS, GapRecord, watched=True, on_change=on_gap, is_name=is_gap_name)

    @property
    def every(self) -> tuple[Table[Any], ...]:
        """All of them."""
        return (
            self.namespaces,
            self.topics,
            self.storages,
            self.policies,
            self.withheld,
            self.creating,
            self.deleted,
            self.gaps,
        )
