"""``danube.Discovery``: who serves a topic, and which topics stand behind a name.

There is one broker, so a lookup of a topic that exists always says "connect to me", under the address by which the
caller has come: it has just worked, also through a port mapping or a proxy. The addresses are URLs with a scheme and
without a slash at the end, as the official clients need them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from danube.broker.runtime.config import parse_address
from danube.compat.errors import unary
from danube.compat.proto import danube_api_pb2 as pb
from danube.model import validate_topic
from danube.model.errors import InvalidArgumentError, NotFoundError, TopicNotFoundError
from danube.model.records import members
from danube.wire import Context, Service

if TYPE_CHECKING:
    from danube.broker.faces import Served

__all__ = ["Discovery", "broker_url"]

_SERVICE: Final = "/danube.Discovery/"
_AUTHORITY: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


def broker_url(broker: Served, context: Context | None = None) -> str:
    """Return the URL under which a caller is told to reach a broker.

    As it was configured, else as the caller itself has called it, else where it listens.

    Args:
        broker: which it is.
        context: of a call to the port of clients; None if there is none.
    """
    advertised = broker.runtime.config.advertised_address
    if "://" in advertised:
        return advertised.rstrip("/")
    if not advertised and context is not None and _AUTHORITY.fullmatch(context.authority):
        return f"http://{context.authority}"
    host, port = parse_address(advertised or broker.runtime.addresses[0])
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Discovery:
    """Handlers of the service."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker

    def service(self) -> Service:
        """Return the methods, by path."""
        return dict(
            [
                unary(f"{_SERVICE}TopicLookup", self.topic_lookup, pb.TopicLookupRequest),
                unary(f"{_SERVICE}TopicPartitions", self.topic_partitions, pb.TopicLookupRequest),
            ]
        )

    async def topic_lookup(self, request: pb.TopicLookupRequest, context: Context) -> pb.TopicLookupResponse:
        """Say where a topic is.

        Raises:
            NotFoundError: there is no such topic; a client may create it by opening a producer.
            InvalidNameError: it cannot be the name of a topic.
        """
        validate_topic(request.topic)
        try:
            self._broker.directory.catalogue.locate(request.topic)
        except InvalidArgumentError as error:
            raise NotFoundError(error.message) from error  # the base of a partitioned topic is no topic itself
        url = broker_url(self._broker, context)
        return pb.TopicLookupResponse(
            request_id=request.request_id,
            response_type=pb.TopicLookupResponse.Connect,
            connect_url=url,
            broker_url=url,
            proxy=False,
        )

    async def topic_partitions(self, request: pb.TopicLookupRequest, _context: Context) -> pb.TopicPartitionsResponse:
        """List the partitions of a topic; a plain topic or a partition stands for itself, an unknown name for nothing.

        Raises:
            InvalidNameError: it cannot be the name of a topic.
        """
        name = request.topic
        validate_topic(name)
        record = self._broker.directory.catalogue.find(name)
        if record is not None:
            found = [each for each, _ in members(name, record)]
        else:
            try:
                self._broker.directory.catalogue.locate(name)
                found = [name]
            except TopicNotFoundError:
                found = []
        return pb.TopicPartitionsResponse(request_id=request.request_id, partitions=found)
