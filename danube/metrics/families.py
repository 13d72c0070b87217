"""The table of all series: names, kinds, labels and meanings. Pure.

Names begin with ``danube_``, except those of the process, which all exporters share; units are seconds, bytes and
messages. :data:`FAMILIES` is also the order in which they are written. ``docs/metrics.md`` is this table.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

__all__ = ["FAMILIES", "Area", "Family", "Kind"]


class Kind(Enum):
    """Kinds of series."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Area(Enum):
    """Groups of families, in their order."""

    PROCESS = "Process"
    WIRE = "Connections and calls"
    JOURNAL = "Journal"
    PUBLISH = "Publishing"
    TOPIC = "Topics"
    SUBSCRIPTION = "Subscriptions"
    CONSUMER = "Consumers (detailed only)"
    HISTORY = "History and metadata"
    CLUSTER = "Cluster"
    SECURITY = "Access control"
    METRICS = "The metrics themselves"


class Family(NamedTuple):
    """One row of the table."""

    name: str
    area: Area
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)


_families: list[Family] = []


def _add(area: Area, kind: Kind, name: str, text: str, *labels: str) -> Family:
    family = Family(name, area, kind, text, labels)
    _families.append(family)
    return family


_A, _C, _G, _H = Area, Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

# --- Process

BUILD_INFO: Final = _add(_A.PROCESS, _G, "danube_build_info", "Always 1; the labels are versions.", "version", "python")
CPU: Final = _add(_A.PROCESS, _C, "process_cpu_seconds_total", "Processor time used, of all threads.")
RESIDENT: Final = _add(_A.PROCESS, _G, "process_resident_memory_bytes", "Memory in use.")
VIRTUAL: Final = _add(_A.PROCESS, _G, "process_virtual_memory_bytes", "Address space in use.")
OPEN_FDS: Final = _add(_A.PROCESS, _G, "process_open_fds", "Open file descriptors.")
MAX_FDS: Final = _add(_A.PROCESS, _G, "process_max_fds", "Most file descriptors that the process may open.")
THREADS: Final = _add(_A.PROCESS, _G, "process_threads", "Threads.")
STARTED_AT: Final = _add(_A.PROCESS, _G, "process_start_time_seconds", "Start of the process, Unix time.")
LOOP_LAG: Final = _add(
    _A.PROCESS, _H, "danube_loop_lag_seconds", "By how much a timer of the event loop was late, twice a second."
)
MEMORY: Final = _add(
    _A.PROCESS,
    _G,
    "danube_memory_bytes",
    "Memory by what holds it: batches in the cache, opened batches, data queued for clients, entries of the journal"
    " that are not written yet.",
    "part",
)
DRAINING: Final = _add(_A.PROCESS, _G, "danube_draining", "1 while the broker shuts down.")

# --- Connections and calls

CONNECTIONS: Final = _add(
    _A.WIRE,
    _G,
    "danube_connections",
    "Open connections: native clients, gRPC (official clients and tools), links of other brokers.",
    "protocol",
)
REFUSED: Final = _add(
    _A.WIRE,
    _C,
    "danube_connections_refused_total",
    "Connections closed at once: max_connections, draining, a blocked address, or too many unproven ones.",
    "reason",
)
STREAMS: Final = _add(_A.WIRE, _G, "danube_streams", "Open streams by what they do.", "kind")
RPCS: Final = _add(
    _A.WIRE,
    _C,
    "danube_broker_rpc_total",
    "Calls and streams that have ended, by path and gRPC status.",
    "method",
    "code",
)
RPC_SECONDS: Final = _add(
    _A.WIRE, _H, "danube_rpc_duration_seconds", "From the request of a unary call to its answer, by path.", "method"
)
RECEIVED: Final = _add(
    _A.WIRE, _C, "danube_received_bytes_total", "Bytes received from connections, without what TLS adds.", "protocol"
)
SENT: Final = _add(
    _A.WIRE, _C, "danube_sent_bytes_total", "Bytes sent to connections, without what TLS adds.", "protocol"
)

# --- Journal

JOURNAL_USED: Final = _add(_A.JOURNAL, _G, "danube_journal_used_bytes", "Part of journal_max_bytes in use.")
JOURNAL_LIMIT: Final = _add(_A.JOURNAL, _G, "danube_journal_limit_bytes", "The limit journal_max_bytes.")
JOURNAL_PENDING: Final = _add(_A.JOURNAL, _G, "danube_journal_pending_bytes", "Bytes submitted and not settled.")
JOURNAL_COMMITS: Final = _add(
    _A.JOURNAL,
    _C,
    "danube_journal_commits_total",
    "Blocks written: disk with a sync, os without one.",
    "lane",
)
SYNC_SECONDS: Final = _add(
    _A.JOURNAL, _H, "danube_journal_sync_duration_seconds", "Write and sync of a block, on its disk."
)
COMMIT_BATCHES: Final = _add(
    _A.JOURNAL, _H, "danube_journal_commit_batches", "Entries (batches, acknowledgements, sessions) of one block."
)
JOURNAL_WAITING: Final = _add(
    _A.JOURNAL, _G, "danube_journal_waiting_publishes", "Batches that wait for room in the journal."
)
FENCED: Final = _add(
    _A.JOURNAL, _G, "danube_journal_fenced", "1 after an error of its disk: nothing more is acknowledged."
)

# --- Publishing

PUBLISH_SECONDS: Final = _add(
    _A.PUBLISH,
    _H,
    "danube_publish_duration_seconds",
    "From the arrival of a batch to its durability; by the wall clock.",
    "durability",
)
SENDS: Final = _add(
    _A.PUBLISH,
    _C,
    "danube_producer_send_total",
    "Messages by how publishing them has ended: ok, or error with its code; since the broker was started.",
    "topic",
    "result",
    "error_code",
)
DUPLICATES: Final = _add(
    _A.PUBLISH, _C, "danube_publish_duplicates_total", "Messages that a producer repeated and that were stored once."
)
MISMATCHES: Final = _add(
    _A.PUBLISH,
    _C,
    "danube_publish_schema_mismatches_total",
    "Messages taken though their batch names no schema of their topic's subject, or does not fit it: the policy"
    " schema_validation is warn.",
)
PAUSED: Final = _add(
    _A.PUBLISH,
    _C,
    "danube_publish_paused_seconds_total",
    "Time that batches have waited, of all producers together: for room in the journal, for a publish rate, or while a"
    " topic moves.",
    "by",
)

# --- Topics

MESSAGES_IN: Final = _add(
    _A.TOPIC,
    _C,
    "danube_topic_messages_in_total",
    "Messages stored since the topic was created (durability none: since its owner was started).",
    "topic",
)
BYTES_IN: Final = _add(
    _A.TOPIC,
    _C,
    "danube_topic_bytes_in_total",
    "Bytes of batches accepted since the broker was started, as their producers sent them (compressed).",
    "topic",
)
PRODUCERS: Final = _add(_A.TOPIC, _G, "danube_topic_active_producers", "Connected producers.", "topic")
CONSUMERS: Final = _add(
    _A.TOPIC, _G, "danube_topic_active_consumers", "Connected consumers of all subscriptions, and readers.", "topic"
)
SUBSCRIPTIONS: Final = _add(_A.TOPIC, _G, "danube_topic_active_subscriptions", "Subscriptions.", "topic")
START_OFFSET: Final = _add(
    _A.TOPIC, _G, "danube_topic_start_offset", "First offset that can be read; not of sums.", "topic"
)
END_OFFSET: Final = _add(
    _A.TOPIC, _G, "danube_topic_end_offset", "Offset after the last message; not of sums.", "topic"
)
STORED: Final = _add(
    _A.TOPIC,
    _G,
    "danube_topic_stored_bytes",
    "Bytes of batches, in the journal of this broker or in a storage.",
    "topic",
    "place",
)
STOPPED: Final = _add(
    _A.TOPIC, _G, "danube_topic_stopped", "Topics or partitions that stopped because stored data is damaged.", "topic"
)
GAPS: Final = _add(
    _A.TOPIC,
    _G,
    "danube_topic_gaps",
    "Ranges of offsets that were lost with a broker and for which subscriptions wait: danube cluster explain TOPIC.",
    "topic",
)
OWNED: Final = _add(_A.TOPIC, _G, "danube_broker_topics_owned", "Topics and partitions that this broker serves.")

# --- Subscriptions

_SUB: Final = ("topic", "subscription")
LAG: Final = _add(_A.SUBSCRIPTION, _G, "danube_subscription_lag_messages", "Unacknowledged messages.", *_SUB)
OLDEST_AGE: Final = _add(
    _A.SUBSCRIPTION,
    _G,
    "danube_subscription_oldest_unacked_age_seconds",
    "Age of the oldest unacknowledged message, or slightly more: of the first batch near it in the journal or in its"
    " segment.",
    *_SUB,
)
STATE: Final = _add(
    _A.SUBSCRIPTION,
    _G,
    "danube_subscription_state",
    "Partitions (1 of a plain topic) in this state; states are those of `danube subscriptions explain`.",
    *_SUB,
    "state",
)
STUCK: Final = _add(
    _A.SUBSCRIPTION,
    _G,
    "danube_subscription_stuck_seconds",
    "For how long it has had unacknowledged messages that are due, while none was delivered or acknowledged.",
    *_SUB,
)
IN_FLIGHT: Final = _add(
    _A.SUBSCRIPTION, _G, "danube_subscription_in_flight_messages", "Delivered and not acknowledged.", *_SUB
)
WAITING: Final = _add(
    _A.SUBSCRIPTION,
    _G,
    "danube_subscription_waiting_messages",
    "Waiting for redelivery, or for the owner of their key.",
    *_SUB,
)
DELAYED: Final = _add(_A.SUBSCRIPTION, _G, "danube_subscription_delayed_messages", "Read, and not due yet.", *_SUB)
POISONED: Final = _add(
    _A.SUBSCRIPTION,
    _G,
    "danube_subscription_poisoned_messages",
    "Failed too often and still stored: they block, or wait to be copied.",
    *_SUB,
)
SUB_CONSUMERS: Final = _add(_A.SUBSCRIPTION, _G, "danube_subscription_active_consumers", "Connected consumers.", *_SUB)
DELIVERED: Final = _add(
    _A.SUBSCRIPTION,
    _C,
    "danube_subscription_delivered_messages_total",
    "Deliveries, repeated ones included; since the broker was started, as all counters of subscriptions.",
    *_SUB,
)
ACKED: Final = _add(
    _A.SUBSCRIPTION, _C, "danube_subscription_acked_messages_total", "Messages acknowledged by consumers.", *_SUB
)
NACKED: Final = _add(
    _A.SUBSCRIPTION, _C, "danube_subscription_nack_total", "Messages that consumers have refused.", *_SUB
)
REDELIVERED: Final = _add(
    _A.SUBSCRIPTION, _C, "danube_subscription_redelivery_total", "Deliveries beyond the first.", *_SUB
)
TIMEOUTS: Final = _add(
    _A.SUBSCRIPTION, _C, "danube_subscription_ack_timeout_total", "Messages not acknowledged in time.", *_SUB
)
DEAD_LETTERS: Final = _add(
    _A.SUBSCRIPTION, _C, "danube_subscription_dlq_total", "Messages copied to the dead-letter topic.", *_SUB
)
EXPIRED: Final = _add(
    _A.SUBSCRIPTION, _C, "danube_subscription_expired_total", "Messages that outlived message_ttl.", *_SUB
)
DROPPED: Final = _add(
    _A.SUBSCRIPTION,
    _C,
    "danube_subscription_dropped_total",
    "Messages given up by the poison policy drop, or lost to slow or missing consumers (durability none).",
    *_SUB,
)

# --- Consumers

_CONSUMER: Final = (*_SUB, "consumer")
MESSAGES_OUT: Final = _add(
    _A.CONSUMER, _C, "danube_consumer_messages_out_total", "Deliveries since it has connected.", *_CONSUMER
)
BYTES_OUT: Final = _add(
    _A.CONSUMER, _C, "danube_consumer_bytes_out_total", "Bytes of these, as credit counts them.", *_CONSUMER
)
CONSUMER_ACKED: Final = _add(
    _A.CONSUMER, _C, "danube_consumer_acked_messages_total", "Acknowledged while in flight to it.", *_CONSUMER
)
CONSUMER_IN_FLIGHT: Final = _add(
    _A.CONSUMER, _G, "danube_consumer_in_flight_messages", "Delivered to it and not acknowledged.", *_CONSUMER
)

# --- History and metadata

STORAGE_SECONDS: Final = _add(
    _A.HISTORY,
    _H,
    "danube_storage_operation_duration_seconds",
    "One attempt of an operation, pauses and queueing not included.",
    "storage",
    "operation",
)
STORAGE_OPERATIONS: Final = _add(
    _A.HISTORY,
    _C,
    "danube_storage_operations_total",
    "Operations by how they have ended, repeated attempts within one not counted.",
    "storage",
    "operation",
    "result",
)
STORAGE_RETRIES: Final = _add(
    _A.HISTORY, _C, "danube_storage_retries_total", "Attempts beyond the first.", "storage", "operation"
)
STORAGE_FAILING: Final = _add(
    _A.HISTORY, _G, "danube_storage_failing_seconds", "For how long every attempt has failed.", "storage"
)
UNSEALED: Final = _add(
    _A.HISTORY, _G, "danube_sealing_unsealed_bytes", "Bytes in the journal that are to be sealed.", "storage"
)
UNSEALED_AGE: Final = _add(_A.HISTORY, _G, "danube_sealing_oldest_age_seconds", "Age of the oldest of them.", "storage")
UNSEALED_MOST: Final = _add(
    _A.HISTORY, _G, "danube_sealing_max_age_seconds", "The limit segment_max_age_s, after which they are sealed."
)
SEALING_FAILING: Final = _add(
    _A.HISTORY, _G, "danube_sealing_failing_seconds", "For how long sealing has been failing.", "storage"
)
SEALED: Final = _add(
    _A.HISTORY, _C, "danube_sealed_bytes_total", "Bytes of objects sealed since the broker was started.", "storage"
)
CACHE: Final = _add(
    _A.HISTORY,
    _C,
    "danube_cache_requests_total",
    "Look-ups in a cache: of recent batches (a miss reads the journal or a segment), of opened batches.",
    "cache",
    "result",
)
STAGED: Final = _add(_A.HISTORY, _G, "danube_staged_bytes", "Bytes of staged batches that are not committed.")
METADATA_SECONDS: Final = _add(
    _A.HISTORY, _H, "danube_metadata_duration_seconds", "Operations on the metadata.", "operation"
)

# --- Cluster

MEMBERS: Final = _add(_A.CLUSTER, _G, "danube_cluster_members", "Brokers that have joined the cluster.")
SESSIONS: Final = _add(_A.CLUSTER, _G, "danube_cluster_sessions", "Brokers with a session, so running ones.")
SESSION_CERTAIN: Final = _add(
    _A.CLUSTER, _G, "danube_cluster_session_certain", "1 while this broker is certain that its own session lives."
)
DRAINED: Final = _add(
    _A.CLUSTER, _G, "danube_cluster_drained", "1 while this broker is drained, so that it gets no topics."
)
ORDERED_MOVES: Final = _add(
    _A.CLUSTER,
    _G,
    "danube_topic_moves_ordered",
    "Topics and partitions of this broker that are ordered to move, by why: asked, drain or balance.",
    "reason",
)
ENDED_MOVES: Final = _add(
    _A.CLUSTER,
    _C,
    "danube_topic_moves_total",
    "Moves of topics from this broker to others: moved, or stayed because the move was given up.",
    "result",
)
MOVE_PAUSES: Final = _add(
    _A.CLUSTER, _H, "danube_topic_move_pause_seconds", "How long publishers of a topic waited because it moved."
)
HAS_LEADER: Final = _add(
    _A.CLUSTER, _G, "danube_metadata_has_leader", "1 if a leader of the metadata is known (replicated metadata only)."
)
LEADS: Final = _add(_A.CLUSTER, _G, "danube_metadata_is_leader", "1 if this broker leads them.")
TERM: Final = _add(_A.CLUSTER, _G, "danube_metadata_term", "The term of their Raft group.")
COMMITTED: Final = _add(_A.CLUSTER, _G, "danube_metadata_committed_index", "The last entry known to be committed.")
APPLIED: Final = _add(_A.CLUSTER, _G, "danube_metadata_applied_index", "The last entry that this broker has applied.")

# --- Access control

DENIALS: Final = _add(_A.SECURITY, _C, "danube_security_denials_total", "Calls denied for want of a right.")
BAD_PROOFS: Final = _add(
    _A.SECURITY, _C, "danube_security_refused_credentials_total", "Credentials that were not accepted."
)
CERTIFICATE_EXPIRY: Final = _add(
    _A.SECURITY,
    _G,
    "danube_certificate_expiry_timestamp_seconds",
    "When the certificate of this broker expires, Unix time.",
)

# --- The metrics themselves

OMITTED: Final = _add(
    _A.METRICS,
    _G,
    "danube_metrics_omitted_topics",
    "Topics without series of their own: summed as _other (metrics_topics), or left out (metrics_series).",
)

FAMILIES: Final[tuple[Family, ...]] = tuple(_families)
"""All families, in the order in which they are written."""
