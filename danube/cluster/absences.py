"""For how long brokers have been away, as this broker has seen it. Pure: times are passed in.

The metadata say who has a session, not since when a broker has none: its key vanishes with the session. So each broker
notes when it first saw another one without a session. One that was away before this broker started, has been away for
longer than this says.
"""

from __future__ import annotations

from collections.abc import Mapping

from danube.cluster.records import BrokerRecord, SessionRecord

__all__ = ["Absences"]


class Absences:
    """The brokers without a session: since when, and where they were before. Names are those of brokers (``b1``)."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._last: dict[str, SessionRecord] = {}

    def note(self, brokers: Mapping[str, BrokerRecord], sessions: Mapping[str, SessionRecord], now: float) -> None:
        """Look at the tables; to be called whenever they have changed, and before the answers are used."""
        for name, session in sessions.items():
            self._since.pop(name, None)
            self._last[name] = session
        for name in brokers:
            if name not in sessions:
                self._since.setdefault(name, now)
        if len(self._since) + len(self._last) > len(brokers):  # some may have been forgotten
            for noted in (self._since, self._last):
                for name in [each for each in noted if each not in brokers and each not in sessions]:
                    del noted[name]

    def away_s(self, name: str, now: float) -> float | None:
        """Return for how long a broker has been without a session, at least; None: it has one, or is unknown."""
        since = self._since.get(name)
        return None if since is None else max(0.0, now - since)

    def last_session(self, name: str) -> SessionRecord | None:
        """Return the last session of a broker that this one has seen."""
        return self._last.get(name)
