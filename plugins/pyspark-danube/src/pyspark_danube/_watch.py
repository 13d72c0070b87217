"""Caches the states of a streaming query's topics, updated by a long poll of the broker.

Spark asks an idle source for its latest offset a hundred times a second. The answer comes from memory, which is
updated by a thread that makes one call to the broker after the other: a long poll that ends when a log has grown beyond
its known end. The broker answers a few milliseconds after a change was acknowledged, and does nothing until then.

Spark does not reliably report the end of a query. So the thread, and that of the connection, are daemons, which end
with the process. If the broker is unavailable for five minutes, the query fails; it continues from its checkpoint when
it is started again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from danube.model.errors import DanubeError, DataLossError, TopicNotFoundError
from danube.model.policies import Durability
from pyspark_danube._connecting import enter_client
from pyspark_danube._logs import BrokerLogs, log_states
from pyspark_danube._positions import LogKey

if TYPE_CHECKING:
    from danube.client.sync import Client
    from danube.model.query_api import LogState
    from pyspark_danube._options import ReadOptions

__all__ = ["Logs", "Watch"]

_POLL_S = 15.0
"""Maximum wait of one call. Without new messages, changes by retention and new topic ids are noticed this late."""
_PATIENCE_S = 300.0
"""How long the broker may be unavailable before the query fails."""
_PAUSE_S = 1.0
"""Pause between two attempts when the broker, or a topic, is unavailable."""
_NEVER: Final = 2**63 - 1
"""Known end of logs that store nothing: they never grow beyond it."""

logger = logging.getLogger("pyspark_danube")


@dataclass(frozen=True)
class Logs:
    """The logs of a query at one moment."""

    version: int
    """Incremented at each change."""
    states: dict[LogKey, LogState]


class Watch:
    """The logs of one query. Created in the driver's process for the source; all methods are thread-safe."""

    def __init__(self, options: ReadOptions, *, patience_s: float = _PATIENCE_S) -> None:
        """Connect, and begin to watch.

        Args:
            options: broker and topics of the query. Unless ``fail_on_data_loss`` is set, a topic may be deleted while
                the query runs.
            patience_s: how long the broker may be unavailable before :attr:`logs` raises.

        Raises:
            ConnectionLostError: no broker answers.
            TopicNotFoundError: a named topic does not exist, and ``fail_on_data_loss`` is set. A pattern need not match
                any topic yet.
            FailedPreconditionError: a named topic stores nothing, and ``fail_on_data_loss`` is set.
        """
        self._options = options
        self._topics = list(options.topics)
        self._pattern = options.topics_pattern
        self._may_vanish = not options.fail_on_data_loss
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._logs = Logs(0, {})
        self._ends: dict[str, int] = {}
        """Known end of each plain topic or partition that the broker has named, even of those that store nothing:
        a missing one counts as a change, and is reported at once."""
        self._failure: DanubeError | None = None
        self._stack = ExitStack()
        self.client: Client = enter_client(
            self._stack, options.servers, reconnect_timeout_s=patience_s, request_timeout_s=min(30.0, patience_s)
        )
        """The connection, also used for other calls."""
        if self._may_vanish:
            # A query that continues after its topic was deleted must also continue after a restart.
            self.refresh()
        else:
            self.begin()
        threading.Thread(target=self._run, name="danube-watch", daemon=True).start()

    @property
    def logs(self) -> Logs:
        """The known logs.

        Raises:
            DanubeError: the reason why they are no longer known.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            return self._logs

    def begin(self) -> Logs:
        """Query the broker now, for a query that has read nothing yet: a missing topic is then an error.

        Raises:
            TopicNotFoundError: a named topic does not exist; the message has the most similar name.
            FailedPreconditionError: a named topic stores nothing.
            DanubeError: the broker does not answer.
        """
        if not self._topics:
            return self.refresh()
        return self._replace(log_states(BrokerLogs(self.client), self._options).values())

    def refresh(self) -> Logs:
        """Query the broker now.

        Raises:
            DanubeError: it does not answer, or a topic is gone.
        """
        return self._replace(self._query())

    def _run(self) -> None:
        away_since: float | None = None
        while True:
            began = time.monotonic()
            try:
                with self._lock:
                    known = self._ends
                self._replace(self._query(known))
                away_since = None
            except DanubeError as error:
                if away_since is None:
                    away_since = began
                if not error.retryable or time.monotonic() - away_since > self._patience_s:
                    with self._lock:
                        self._failure = error
                    return
                logger.warning("the broker is unavailable (%s); waiting for it", error.message)
                time.sleep(_PAUSE_S)

    def _query(self, known: dict[str, int] | None = None) -> list[LogState]:
        """Return the states; with ``known``, as soon as they have changed."""
        wait_s = 0.0 if known is None else _POLL_S
        try:
            return self.client.logs.states(self._topics, pattern=self._pattern, beyond=known, timeout_s=wait_s)
        except TopicNotFoundError as error:
            if not self._may_vanish:
                raise DataLossError(
                    f"{error.message}: it was deleted while the query was running; with the option failOnDataLoss=false"
                    " the query continues with its other topics, and with this one when it exists again"
                ) from error
        # A topic was deleted. Return the others; the topic may be created again.
        if known is not None:
            time.sleep(_PAUSE_S)
        found: list[LogState] = []
        for topic in self._topics:
            try:
                found += self.client.logs.states([topic])
            except TopicNotFoundError:
                logger.debug("topic %s does not exist", topic)
        return found

    def _replace(self, states: Iterable[LogState]) -> Logs:
        """Store an answer of the broker. A log that stores nothing is left out.

        Two answers may arrive out of order; the next one, which follows at once, corrects that.
        """
        new: dict[LogKey, LogState] = {}
        ends: dict[str, int] = {}
        for state in states:
            readable = state.durability != Durability.NONE
            ends[state.name] = state.end_offset if readable else _NEVER
            if readable:
                new[LogKey(state.topic, state.partition)] = state
        with self._lock:
            self._ends = ends
            if new != self._logs.states:
                self._logs = Logs(self._logs.version + 1, new)
            return self._logs
