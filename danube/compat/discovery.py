"""``danube.Discovery``: the address of the broker that serves a topic, and the partitions of a topic.

A lookup of a topic that another broker owns returns that broker's address. Of a topic of this broker it returns, unless
an address is configured, the address that the caller used, which also works through a port mapping or a proxy. In proxy
mode (:mod:`danube.compat.proxy`) clients are told to connect to ``client_url``, whoever owns the topic.
Addresses are URLs with a scheme and without a trailing slash, as required by official clients.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from danube.compat.methods import unary
from danube.compat.proto import danube_api_pb2 as pb
from danube.model import validate_topic
from danube.model.addresses import parse_address
from danube.model.errors import (
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
    StorageUnavailableError,
    TopicNotFoundError,
)
from danube.model.records import members
from danube.wire import Context, Service

if TYPE_CHECKING:
    from danube.broker.faces import Served

__all__ = ["Discovery", "broker_url", "serves_tls", "url_of"]

_SERVICE: Final = "/danube.Discovery/"
_AUTHORITY: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


def broker_url(broker: Served, context: Context | None = None) -> str:
    """Return the URL at which a caller can reach a broker.

    The configured URL, else the address that the caller used, else the listening address.

    Args:
        broker: the broker.
        context: context of a call to the client port; None if unavailable.
    """
    advertised = broker.runtime.config.advertised_address
    if "://" in advertised:
        return advertised.rstrip("/")
    secure = serves_tls(broker, context)
    if not advertised and context is not None and _AUTHORITY.fullmatch(context.authority):
        return f"{_scheme(secure)}{context.authority}"
    return url_of(advertised or broker.runtime.addresses[0], secure)


def serves_tls(broker: Served, context: Context | None = None) -> bool:
    """Return whether a caller should use TLS: if it does so now; without a caller, if the ports serve nothing else."""
    return context.secure if context is not None else broker.has_tls


def url_of(address: str, secure: bool) -> str:
    """Return the URL of a broker with an address; it may be one already.

    Args:
        address: ``host:port``, or a URL.
        secure: whether it speaks TLS.
    """
    if "://" in address:
        return address.rstrip("/")
    host, port = parse_address(address)
    return f"{_scheme(secure)}[{host}]:{port}" if ":" in host else f"{_scheme(secure)}{host}:{port}"


def _scheme(secure: bool) -> str:
    return "https://" if secure else "http://"


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
        """Return the address for a topic.

        Raises:
            NotFoundError: the topic does not exist; a client may create it by opening a producer.
            InvalidNameError: the name is invalid.
            OwnerAwayError: the topic waits for its owner; the client tries again.
        """
        validate_topic(request.topic)
        client_url = self._broker.runtime.config.client_url
        kind, url = pb.TopicLookupResponse.Connect, broker_url(self._broker, context)
        if client_url:  # the owner is named as other brokers know it: they relay the calls
            url = url_of(self._broker.own_address, context.secure)
        try:
            await self._broker.directory.search(request.topic)
        except InvalidArgumentError as error:
            raise NotFoundError(error.message) from error  # the base name of a partitioned topic is not a topic itself
        except NotOwnerError as error:
            if not error.address:
                raise
            kind, url = pb.TopicLookupResponse.Redirect, url_of(error.address, context.secure)
        except StorageUnavailableError:
            pass  # opening the topic says why it is not served
        return pb.TopicLookupResponse(
            request_id=request.request_id,
            response_type=kind,
            connect_url=url_of(client_url, context.secure) if client_url else url,
            broker_url=url,
            proxy=bool(client_url),
        )

    async def topic_partitions(self, request: pb.TopicLookupRequest, _context: Context) -> pb.TopicPartitionsResponse:
        """List the partitions of a topic; a plain topic or a partition returns itself, an unknown name an empty list.

        Raises:
            InvalidNameError: the name is invalid.
        """
        name = request.topic
        validate_topic(name)
        catalogue = self._broker.directory.catalogue
        if catalogue.find(name) is None:
            await self._broker.directory.refresh(name)
        record = catalogue.find(name)
        if record is not None:
            found = [each for each, _ in members(name, record)]
        else:
            try:
                catalogue.locate(name)
                found = [name]
            except TopicNotFoundError:
                found = []
        return pb.TopicPartitionsResponse(request_id=request.request_id, partitions=found)
