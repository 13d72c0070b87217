"""The publish rates of namespaces at this broker: all topics of a namespace with such a quota share one pace."""

from __future__ import annotations

from collections.abc import Callable

from danube.broker.runtime.publish_rate import Pace
from danube.model import Rate

__all__ = ["NamespaceRates"]


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


def _no_rate(_namespace: str) -> None:
    """Initially no namespace has a rate."""
