"""The lowest layer: names, batches, positions, policies, errors, limits, native API. Imports no other Danube module.

It contains only values and pure functions. :mod:`danube.model.api` holds the messages of the wire and is imported
by that name, because its short names (``Ack``, ``Credit``) only make sense together.
"""

from __future__ import annotations

from danube.model.batch import BatchHeader, Codec, Record, Stamp
from danube.model.errors import DanubeError, Status
from danube.model.limits import Limits
from danube.model.names import TopicName, partition_name, route_key, validate_name, validate_namespace, validate_topic
from danube.model.policies import (
    EARLIEST,
    LATEST,
    Backoff,
    Durability,
    PoisonPolicy,
    ProducerAccess,
    Rate,
    Retention,
    SubscriptionPolicy,
    SubscriptionType,
    TopicPolicies,
    Unmatched,
)
from danube.model.ranges import RangeSet

__all__ = [
    "EARLIEST",
    "LATEST",
    "Backoff",
    "BatchHeader",
    "Codec",
    "DanubeError",
    "Durability",
    "Limits",
    "PoisonPolicy",
    "ProducerAccess",
    "RangeSet",
    "Rate",
    "Record",
    "Retention",
    "Stamp",
    "Status",
    "SubscriptionPolicy",
    "SubscriptionType",
    "TopicName",
    "TopicPolicies",
    "Unmatched",
    "partition_name",
    "route_key",
    "validate_name",
    "validate_namespace",
    "validate_topic",
]
