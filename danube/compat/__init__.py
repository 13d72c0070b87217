"""The upstream Danube protocol (gRPC with protobuf), so that its official clients and tools work unchanged.

A face over the broker's own calls, beside the native API on the same port::

    face.py             what is served, and the parts that hang together
    codec.py            protobuf messages on the wire
    errors.py           our errors as the statuses that those clients understand
    discovery.py        who serves a topic, which partitions it has
    producers.py        producers and their messages, one unary call each
    consumers.py        consumers, and what they acknowledge
    consumer_ids.py     the ids that they come back with
    receiving.py        their streams
    messages.py         stored messages as theirs
    health.py           whether a producer or a consumer is still known
    schemas.py          the schema registry, which is not here yet
    admin.py            the services of the admin port ...
    admin_cluster.py    ... for brokers and clusters, of which there is one
    admin_topics.py     ... for namespaces, topics and policies of subscriptions
    admin_methods.py    what these have in common
    grpc_health.py      the health of the broker and its services, as probes ask any gRPC server
    reflection.py       what is served, for tools that know nothing of it
    storage.py          segment descriptors, which are not for foreign eyes
    proto/              the messages
"""

from __future__ import annotations

from danube.compat.face import CompatFace, face

__all__ = ["CompatFace", "face"]
