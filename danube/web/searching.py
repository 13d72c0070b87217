"""The handler that searches a topic, in a process of its own; see :mod:`danube.web.search`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import trio

from danube.http import Response, TextSink
from danube.model.errors import UnavailableError
from danube.model.secret import Secret
from danube.web.administration import Handler, event_stream
from danube.web.caller import ApiCall
from danube.web.inner import token_of
from danube.web.messages import parse_positions

if TYPE_CHECKING:
    from danube.broker.faces import Served
    from danube.web.bodies import SearchMessages
    from danube.web.search.pool import SearchPool

__all__ = ["HANDLERS", "Searches"]


class Searches:
    """The search processes of one broker; there are none before the first search. :meth:`run` must run meanwhile."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker
        self._nursery: trio.Nursery | None = None
        self._pool: SearchPool | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the processes until cancelled; then all of them are ended."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = self._pool = None

    def pool(self) -> SearchPool:
        """Return the pool of processes.

        Raises:
            UnavailableError: the broker is shutting down.
        """
        if self._nursery is None:
            raise UnavailableError("the broker is shutting down; try again")
        if self._pool is None:
            from danube.web.search.pool import SearchPool  # not every broker is searched

            self._pool = SearchPool(self._broker, self._nursery)
        return self._pool


async def search_messages(call: ApiCall) -> Response:
    """Search a topic, by a stream of events."""
    from danube.web.search.jobs import Job
    from danube.web.search.planning import plan_search

    body: SearchMessages = call.body
    pool = call.searches.pool()
    pool.check_room()
    token = token_of(call.request.headers.get("authorization"))
    async with call.client() as client:  # errors become a status, which a stream that has begun has no more
        start = parse_positions(body.start)
        parts = await plan_search(client, call.topic, body.filter, start, direct=True)
    job = Job(
        filter=body.filter,
        parts=parts,
        max_matches=body.max_matches,
        max_bytes=body.max_bytes,
        max_s=body.max_s,
        payload_bytes=body.payload_bytes,
        max_batch_bytes=call.broker.runtime.limits.max_batch_bytes,
    )

    async def stream(sink: TextSink) -> None:
        await pool.search(job, call.request, None if token is None else Secret(token), sink)

    return event_stream(stream)


HANDLERS: Final[Mapping[str, Handler]] = {search_messages.__name__: search_messages}
"""By the operation of the route."""
