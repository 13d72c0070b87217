"""The keep-alives of a member's callers, until the leader has answered them. Pure: the time is passed in."""

from __future__ import annotations

from typing import NamedTuple

from danube.metadata._requests import lease_ended
from danube.metadata.raft.calls import Renewal
from danube.metadata.raft.messages import KeepAlive, KeepAliveReply

__all__ = ["Renewals"]


class _Asked(NamedTuple):
    since: float
    calls: list[Renewal]


class Renewals:
    """The book of a member's keep-alives: all that wait at one moment share a message."""

    def __init__(self) -> None:
        self._queue: list[Renewal] = []
        self._asked: dict[int, _Asked] = {}
        self._tokens = 0

    def add(self, call: Renewal) -> None:
        """Queue a keep-alive."""
        self._queue.append(call)

    def to_send(self, term: int, now: float) -> KeepAlive | None:
        """Return the message of all that are queued, for the leader of this term; None if there are none."""
        if not self._queue:
            return None
        queue, self._queue = self._queue, []
        calls = [each for each in queue if each.is_open]
        if not calls:
            return None
        self._tokens += 1
        self._asked[self._tokens] = _Asked(now, calls)
        return KeepAlive(term, self._tokens, tuple(dict.fromkeys(each.lease for each in calls)))

    def send_again(self, *, before: float | None = None) -> None:
        """Queue again what was not answered: all, or what was sent up to a time."""
        for token, asked in list(self._asked.items()):
            if before is None or asked.since <= before:
                del self._asked[token]
                self._queue += asked.calls

    def answered(self, reply: KeepAliveReply) -> None:
        """Answer the callers of a message; nothing if it was sent again meanwhile."""
        found = self._asked.pop(reply.token, None)
        if found is None:
            return
        for call in found.calls:
            if call.lease in reply.ended:
                call.fail(lease_ended(call.lease))
            else:
                call.answer(None)
