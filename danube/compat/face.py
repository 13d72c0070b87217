"""The face of the upstream protocol: its services on both ports, its codec, and its background tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import trio

from danube.compat.admin import admin_services
from danube.compat.auth import AuthService
from danube.compat.codec import PROTO
from danube.compat.consumers import Consumers
from danube.compat.discovery import Discovery
from danube.compat.grpc_health import HEALTH, GrpcHealth
from danube.compat.health import HealthCheck
from danube.compat.producers import Producers
from danube.compat.reflection import REFLECTION, Reflection
from danube.compat.relay import Relay
from danube.compat.schemas import SchemaRegistry
from danube.compat.storage import storage_service
from danube.wire import Codec, Service

if TYPE_CHECKING:
    from danube.broker.faces import Served

__all__ = ["CompatFace", "face"]


class CompatFace:
    """The upstream services of one broker; a :class:`danube.broker.Face`."""

    def __init__(self, broker: Served) -> None:
        self.broker = broker
        self.codecs: Mapping[str, Codec] = {PROTO.subtype: PROTO}
        self.http = None
        self.http_headers = ()
        self.http_door: Literal["http"] = "http"
        self.http_dialect = None
        self.producers = Producers(broker)
        self.consumers = Consumers(broker)
        schemas = SchemaRegistry(broker).service()
        self.services = _with_standard_services(
            broker,
            {
                **Discovery(broker).service(),
                **self.producers.service(),
                **self.consumers.service(),
                **HealthCheck(broker, self.producers, self.consumers).service(),
                **AuthService(broker).service(),
                **storage_service(),
                **schemas,
            },
        )
        self.relay = Relay(broker)
        self.admin_services = _with_standard_services(broker, {**admin_services(broker, self.relay), **schemas})

    def subscription_of_consumer(self, consumer_id: int) -> tuple[str, str] | None:
        """Return the topic and the subscription of a consumer; None if the number is not known."""
        consumer = self.consumers.ids.look(consumer_id)
        return (consumer.record.topic, consumer.record.subscription) if consumer is not None else None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        self.relay.begin()
        self.producers.load()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.producers.run)
            if self.broker.runtime.config.client_url:
                from danube.compat.proxy import Proxy  # not imported without proxy mode

                await nursery.start(Proxy(self.broker).run)
            await nursery.start(self.consumers.run)
            task_status.started()


def _with_standard_services(broker: Served, service: Service) -> Service:
    """Return the methods of a port together with gRPC's standard services: health and reflection."""
    names = {path.split("/")[1] for path in service} | {HEALTH, *REFLECTION}
    return {**service, **GrpcHealth(broker, names).service(), **Reflection(names).service()}


def face(broker: Served) -> CompatFace:
    """Create the face of a broker: pass this function as one of its ``faces``."""
    return CompatFace(broker)
