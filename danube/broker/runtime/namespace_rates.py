"""The rates of namespaces at this broker.

All topics of a namespace with a quota of publishing share one pace, and all subscriptions and readers of one with a
quota of delivery share one bucket.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from danube.broker.runtime.publish_rate import Pace
from danube.broker.runtime.token_bucket import SharedBucket
from danube.model import Rate

__all__ = ["NamespaceDeliveries", "NamespaceRates"]


class NamespaceRates:
    """The paces of namespaces; see the module.

    Attributes:
        rate_of: returns the publish rate in the quota of a namespace; None: it has none. Set by the owner.
    """

    def __init__(self) -> None:
        self.rate_of: Callable[[str], Rate | None] = _no_rate
        self._paces: dict[str, tuple[Rate, Pace]] = {}

    def of_topic(self, topic: str) -> Pace | None:
        """Return the pace that a topic shares, at the rate that its namespace has now; None if it has none.

        Producers that wait for a pace that is not used any more may publish.
        """
        namespace = topic.split("/", 2)[1]
        rate = self.rate_of(namespace)
        known = self._paces.get(namespace)
        if not rate:
            if known is not None:
                known[1].change(None)
                del self._paces[namespace]
            return None
        if known is not None and known[0] == rate:
            return known[1]
        if known is not None:
            known[1].change(rate)
        pace = known[1] if known is not None else Pace(rate)
        self._paces[namespace] = rate, pace
        return pace


class NamespaceDeliveries:
    """The buckets of namespaces; see the module.

    Attributes:
        rate_of: returns the dispatch rate in the quota of a namespace; None: it has none. Set by the owner.
    """

    def __init__(self) -> None:
        self.rate_of: Callable[[str], Rate | None] = _no_rate
        self._buckets: dict[str, SharedBucket] = {}

    def of_topic(self, topic: str) -> SharedBucket | None:
        """Return the bucket that a topic shares, at the rate that its namespace has now; None if it has none."""
        namespace = topic.split("/", 2)[1]
        rate = self.rate_of(namespace)
        if not rate:
            self._buckets.pop(namespace, None)
            return None
        bucket = self._buckets.get(namespace)
        if bucket is None:
            bucket = self._buckets[namespace] = SharedBucket(rate, trio.current_time())
        elif bucket.rate != rate:
            bucket.change(rate, trio.current_time())
        return bucket


def _no_rate(_namespace: str) -> None:
    """Initially no namespace has a rate."""
