"""Serves the upstream Danube protocol (gRPC with protobuf) to its official clients and tools.

A face over the broker's operations, beside the native API on the same port::

    face.py             the services of both ports, and their shared parts
    codec.py            protobuf messages on the wire
    errors.py           the statuses of our errors for official clients
    discovery.py        addresses of topics, and their partitions
    proxy.py            proxy mode: calls that any broker relays to the owner, by their headers (routing.py)
    relay.py            admin calls that are relayed to the owner
    producers.py        producers and their messages, one unary call each
    consumers.py        consumers, and their acknowledgements
    consumer_ids.py     the durable ids of consumers, and their rules (consumer_index.py)
    receiving.py        streams of consumers
    messages.py         conversion of stored messages
    health.py           health of producers and consumers
    schemas.py          the schema registry (not implemented yet)
    admin.py            the services of the admin port ...
    admin_cluster.py    ... for brokers and clusters (there is always one)
    admin_topics.py     ... for namespaces, topics and policies of subscriptions
    admin_methods.py    shared parts of the admin services
    grpc_health.py      health of the broker and its services, in gRPC's standard form
    reflection.py       descriptions of the services, for tools without our .proto files
    storage.py          segment descriptors (refused)
    proto/              the messages
"""

from __future__ import annotations

from danube.compat.face import CompatFace, face

__all__ = ["CompatFace", "face"]
