"""The native calls of one HTTP request: the guarded methods of the client port, with the caller's proof."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import trio

from danube.http import Request
from danube.model import api
from danube.model.errors import InternalError
from danube.model.ids import TopicId
from danube.model.names import partition_name, validate_topic
from danube.web.idempotency import KeyBook
from danube.web.inner import inner_client
from danube.web.matching import topic_ids_of
from danube.web.routes import Route
from danube.wire import Context
from danube.wire.codec import MSGPACK

if TYPE_CHECKING:
    from danube.broker.faces import Served
    from danube.client import Client
    from danube.web.pulls import Pulls
    from danube.web.searching import Searches
    from danube.web.session_table import Session
    from danube.web.sessions import Sessions

__all__ = ["ApiCall"]


class ApiCall:
    """One request, matched and decoded.

    Attributes:
        route: what it means.
        path: parameters of its path.
        values: parameters of its query, and declared headers.
        body: the decoded JSON body; None without one.
        broker: that serves it.
        pulls: the sessions of pullers.
        searches: the search processes.
        sessions: those of browsers.
        session: that of the browser that has sent the request; None: it has a proof of its own, or none.
        keys: the keys that repeated requests have used.
    """

    def __init__(
        self,
        broker: Served,
        pulls: Pulls,
        searches: Searches,
        request: Request,
        route: Route,
        path: Mapping[str, str],
        values: Mapping[str, Any],
        body: Any,
        *,
        sessions: Sessions,
        session: Session | None,
        keys: KeyBook,
    ) -> None:
        self.broker = broker
        self.pulls = pulls
        self.searches = searches
        self.request = request
        self.route = route
        self.path = path
        self.values = values
        self.body = body
        self.sessions = sessions
        self.session = session
        self.keys = keys

    @property
    def topic(self) -> str:
        """The topic in the path; with ``?partition=`` that partition.

        Raises:
            InvalidNameError: it is no name of a topic.
        """
        name = f"/{self.path['namespace']}/{self.path['name']}"
        validate_topic(name)
        partition = self.values.get("partition")
        return name if partition is None else partition_name(name, partition)

    async def native(self, path: str, request: Any) -> Any:
        """Make a native call, which is judged and audited as that of any client; raises what it raises.

        Args:
            path: of the method, one of the route's.
            request: of the native API.
        """
        if path not in self.route.calls:
            raise InternalError(f"the route {self.route.operation} calls {path}, which its row does not name")
        method = self.broker.native_method(path)
        if method.handler is None or method.kind != "unary":
            raise InternalError(f"{path} is no unary call with a handler")
        http = self.request
        authorization = http.headers.get("authorization")
        context = Context(
            path,
            http.peer,
            http.connection_id,
            {} if authorization is None else {"authorization": authorization},
            math.inf,
            MSGPACK,
            http.headers.get("host", ""),
            secure=http.secure,
            peer_certificate=http.peer_certificate,
        )
        await trio.lowlevel.checkpoint()
        handler: Any = method.handler
        return await handler(request, context)

    def client(self) -> AbstractAsyncContextManager[Client]:
        """Open a native client on behalf of the caller; see :func:`danube.web.inner.inner_client`."""
        return inner_client(self.broker, self.request)

    async def topic_id(self, topic: str) -> int:
        """Return the id of a topic; of a partitioned one, that of its partition 0."""
        info = await self.native(api.Method.DESCRIBE_TOPIC, api.DescribeTopic(topic))
        if not info.partitions:
            return int(info.topic_id)
        first = await self.native(api.Method.DESCRIBE_TOPIC, api.DescribeTopic(partition_name(topic, 0)))
        return int(first.topic_id)

    @property
    def topic_ids(self) -> list[TopicId]:
        """The ids in ``If-Match``, one of which the topic in the path must have; empty: it may have any."""
        return topic_ids_of(self.request.headers.get("if-match", "*"))
