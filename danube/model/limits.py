"""All limits of the broker, with names, units and defaults.

The names are the keys of the ``[limits]`` table of a configuration file, and the names that error messages print.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from danube.model.errors import ConfigurationError

__all__ = ["KIB", "MIB", "GIB", "Limits", "check_limits"]

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_LARGEST: Final = 2**53
"""Maximum of counts and sizes."""
_LONGEST_S: Final = 1e9
"""Maximum of times: 31 years."""
_LARGEST_FRAMED: Final = 2**31 - 1
"""Maximum length of a message, or size of a window, that HTTP/2 can encode."""
_MOST: Final[dict[str, float]] = {
    "max_message_bytes": _LARGEST_FRAMED,
    "max_batch_bytes": _LARGEST_FRAMED,
    "compat_max_message_bytes": _LARGEST_FRAMED,
    "max_request_bytes": _LARGEST_FRAMED,
    "max_streams_per_connection": _LARGEST_FRAMED,
    "stream_window_bytes": _LARGEST_FRAMED,
    "max_header_bytes": _LARGEST_FRAMED,
    "journal_warn_ratio": 1.0,
    "segment_journal_ratio": 1.0,
    "segment_bytes": 48 * MIB,
    "storage_server_max_object_bytes": _LARGEST_FRAMED,
    "max_peer_message_bytes": _LARGEST_FRAMED // 2,
    "max_schema_bytes": 512 * KIB,
    "max_schema_depth": 100,
    "max_subjects": 1_000_000,
    "max_versions_per_subject": 2_000,
    "schema_checker_timeout_s": 3_600.0,
    "payload_check_timeout_s": 3_600.0,
}
"""Limits with a maximum other than the two above."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one broker. All are hard: excess is refused, delayed or truncated, never just logged."""

    # What a client may send
    max_message_bytes: int = 10 * MIB
    """Largest payload of one message."""
    max_batch_bytes: int = 12 * MIB
    """Largest batch, header included, before and after decompression."""
    max_batch_records: int = 100_000
    """Most records in one batch."""
    compat_max_message_bytes: int = 4 * MIB
    """Largest encoded message of an official Danube client. Those clients receive no larger ones."""
    max_request_bytes: int = 1 * MIB
    """Largest request message that is not a batch."""

    # Metrics
    metrics_topics: int = 200
    """Topics with series of their own in the metrics; the others are summed."""
    metrics_series: int = 20_000
    """Most series of the detailed metrics, exceeded by those of one subscription at most."""

    # Connections and streams
    max_connections: int = 10_000
    """Open client connections; fewer if the process may not open that many files. The admin port may have a sixteenth
    of that in addition."""
    max_unproven_connections: int = 5_000
    """With access control: open connections on which no call has proven who calls; at most half of
    ``max_connections``. For each one beyond, the oldest of them ends, so that strangers keep no client out."""
    max_streams_per_connection: int = 1_024
    """Concurrent streams of one connection; a stream's slot is free only when its work has ended."""
    max_pending_bytes_per_connection: int = 32 * MIB
    """Received and unprocessed bytes that one connection may hold."""
    stream_window_bytes: int = 4 * MIB
    """Bytes that a peer may send on one stream before their messages are processed (HTTP/2 stream window)."""
    max_send_buffer_bytes: int = 1 * MIB
    """Bytes queued for one stream of a peer that reads too slowly; beyond it the sender waits."""
    max_send_buffer_bytes_per_connection: int = 16 * MIB
    """The same for all streams of a connection. A connection that exceeds it and accepts no bytes for
    ``write_timeout_s`` is closed; one with four times as much is closed at once."""
    max_send_buffer_bytes_in_all: int = 256 * MIB
    """The same for all connections: beyond it, a connection gets no more data while any is queued for it."""
    max_header_bytes: int = 16 * KIB
    """Header list of one request."""
    max_resets_per_minute: int = 300
    """Stream resets of one connection, in either direction."""
    max_pings_per_minute: int = 300
    """PING frames from one peer."""
    max_settings_per_minute: int = 60
    """SETTINGS frames from one peer."""
    max_empty_data_per_minute: int = 600
    """Empty DATA frames from one peer that do not end a stream."""
    max_new_streams_per_second: int = 20_000
    """Streams that one connection may open in a second."""
    max_header_bytes_per_second: int = 16 * MIB
    """Header bytes that one connection may send in a second."""
    handshake_timeout_s: float = 5.0
    """From accept to the HTTP/2 preface and first SETTINGS."""
    max_tls_handshakes: int = 200
    """TLS handshakes in progress; others wait. While others wait, those that take longer than a second are given up."""
    max_tls_handshakes_per_address: int = 20
    """The same for one address (of IPv6, for a network /64). It is also how many may fail in a second."""
    tls_handshake_timeout_s: float = 15.0
    """From accept to the end of the TLS handshake, waiting for its turn included."""
    max_tls_idle_records_per_minute: int = 60
    """TLS records of one connection that carry no data after the handshake, such as updates of keys. An update costs as
    much as several small calls, and a client needs one for some million records."""
    headers_timeout_s: float = 10.0
    """From the start of a header block to its end."""
    write_timeout_s: float = 10.0
    """A peer that accepts no byte for this long is disconnected."""
    keepalive_idle_s: float = 10.0
    """Silence after which the broker sends a PING."""
    keepalive_timeout_s: float = 5.0
    """How long a PING may stay unanswered before the connection is closed."""

    # HTTP
    http_max_connections: int = 200
    """Open HTTP connections. Beyond it, the oldest one that waits for a request ends; if none does, new ones are
    refused."""
    http_max_header_bytes: int = 32 * KIB
    """Head of one HTTP request: its line and its headers."""
    http_max_body_bytes: int = 12 * MIB
    """Body of one HTTP request."""
    http_max_sse: int = 50
    """Open streams of server-sent events; each takes one of ``http_max_connections``."""
    http_max_pulls: int = 100
    """Callers and subscriptions that are pulled from by HTTP at a time."""
    http_max_pulled_messages: int = 10_000
    """Messages that one caller has pulled from one subscription by HTTP and not settled."""
    http_pull_idle_s: float = 60.0
    """Time, or the subscription's ack timeout if that is longer, without a call after which such a caller counts as
    gone; what it has not settled is delivered again."""
    http_max_sessions: int = 200
    """Sessions of browsers that are logged in to this broker's console."""
    http_max_sessions_per_caller: int = 10
    """Sessions of one principal; a login beyond it ends the session that was not used for the longest time."""
    http_session_idle_s: float = 1_800.0
    """Time without a call after which the session of a browser ends."""
    http_session_life_s: float = 43_200.0
    """Life of the session of a browser, however much it is used."""
    http_max_idempotency_keys: int = 10_000
    """Keys of ``Idempotency-Key`` whose bodies are remembered, to notice that one was used for another body; of more,
    the oldest are forgotten."""
    http_request_timeout_s: float = 30.0
    """From the head of an HTTP request to its answer; calls that last have limits of their own."""
    http_idle_timeout_s: float = 60.0
    """Silence between two HTTP requests after which the connection is closed."""

    # Search
    search_processes: int = 2
    """Processes that search topics for callers of the HTTP API; each does one search at a time."""
    search_memory_bytes: int = 1024 * MIB
    """Memory of one of them (the kernel's ``RLIMIT_DATA``)."""
    search_idle_s: float = 60.0
    """Time without a search after which such a process ends."""
    search_silence_s: float = 10.0
    """Silence of a searching process, which reports twice a second, after which it is killed."""

    # Topics
    max_namespaces: int = 10_000
    """Namespaces of one broker."""
    max_topics: int = 100_000
    """Topics of one broker, partitions included."""
    max_partitions: int = 1_024
    """Partitions of one topic."""
    max_producers_per_topic: int = 10_000
    """Producers connected to one topic."""
    max_known_producers_per_topic: int = 20_000
    """Producers of one topic whose names and sequences are remembered, connected or not."""
    max_subscriptions_per_topic: int = 1_000
    """Subscriptions of one topic."""
    max_planned_subscriptions: int = 200
    """Subscriptions of one topic that do not exist and have a policy, set through the admin port."""
    max_readers_per_topic: int = 10_000
    """Readers (without a subscription) connected to one topic."""
    max_consumers_per_subscription: int = 1_000
    """Consumers connected to one subscription."""
    producer_state_expiry_s: float = 7 * 24 * 3600.0
    """How long the broker remembers the sequence of an idle named producer."""
    anonymous_producer_expiry_s: float = 600.0
    """The same for a producer without a name."""

    unary_producer_idle_s: float = 60.0
    """A producer that sends its messages in unary calls counts as connected for this long after the last one."""

    # Consumers of official clients
    max_compat_consumers: int = 100_000
    """Durable consumer ids; beyond it, the ids of the least recently used consumers are removed."""
    compat_consumer_expiry_s: float = 7 * 24 * 3600.0
    """How long the broker remembers the id of a disconnected consumer."""
    compat_prefetch_messages: int = 100
    """Messages queued for one consumer besides those already sent."""
    compat_prefetch_bytes: int = 1 * MIB
    """The same in bytes, as stored. A batch that an exclusive consumer gets whole may exceed it."""

    # Engines
    max_log_states: int = 10_000
    """Most topics and partitions whose states one call returns."""
    max_log_parts: int = 2_000
    """Most sealed parts in one answer; clients request further ones automatically."""
    max_log_wait_s: float = 30.0
    """Longest wait for log changes in one call; clients that want to wait longer repeat the call automatically."""

    # Journal
    journal_max_bytes: int = 4 * GIB
    """Disk space of the journal; beyond it publishing waits and acknowledgements continue. Files needed only by
    damaged topics, which have stopped, do not count: up to as much again. The states of all topics (producers and
    cursors) may take a quarter of it; then new topics and producers are refused with RESOURCE_EXHAUSTED."""
    journal_warn_ratio: float = 0.8
    """Share of ``journal_max_bytes`` at which the broker warns."""
    journal_reserve_bytes: int = 128 * MIB
    """Disk space beyond ``journal_max_bytes`` that only control entries (cursors, producers) may use. For as long as it
    takes to free files, snapshots of topics may use a quarter of ``journal_max_bytes`` more."""
    journal_pending_bytes: int = 64 * MIB
    """Bytes submitted and not yet committed; beyond it publishing waits."""
    journal_commit_bytes: int = 8 * MIB
    """Most bytes of one commit block."""
    journal_full_wait_s: float = 30.0
    """How long a publish waits for journal space before it is refused with RESOURCE_EXHAUSTED."""
    start_descriptor_wait_s: float = 30.0
    """How long each step of a broker's start waits for a file descriptor before the start is refused (exit code 75)."""
    cache_bytes: int = 64 * MIB
    """Memory of the recent batches of all topics, including allocator overhead."""
    opened_batches_bytes: int = 32 * MIB
    """Decoded batches cached for shared and key-shared subscriptions."""

    # History
    segment_bytes: int = 16 * MIB
    """A segment object is closed when it has reached this size; the last batch may exceed it. At most 48
    MiB, so that no object is larger than 64 MiB."""
    segment_max_age_s: float = 600.0
    """Batches that have been in the journal for this long are sealed, even if they do not fill a segment."""
    segment_journal_ratio: float = 0.5
    """When the journal uses this share of ``journal_max_bytes``, the oldest of its files are sealed."""
    segment_cache_bytes: int = 64 * MIB
    """Memory of the cache of data read from storage backends."""
    segment_uploads: int = 2
    """Segment objects built or uploaded at a time; each takes up to ``segment_bytes`` of memory."""
    segment_merge_parts: int = 16
    """Number of small adjacent parts of a topic that are merged into one."""
    segment_grace_s: float = 3600.0
    """How long an unreferenced object is kept, for queries that are still reading it."""
    segment_retry_max_s: float = 30.0
    """Longest pause before sealing is retried after a failure of the storage backend."""
    remote_in_flight: int = 4
    """Commits of durability ``remote`` in flight to the backend at a time."""
    remote_commit_bytes: int = 8 * MIB
    """Most bytes of one such commit."""
    remote_snapshot_commits: int = 1_000
    """Number of such commits after which a snapshot is written, to bound the commits read by recovery."""
    remote_snapshot_bytes: int = 256 * MIB
    """Bytes of such commits after which a snapshot is written."""
    remote_stall_s: float = 30.0
    """A publish that has waited this long for the backend gets a retryable error; it may still succeed."""

    # Dispatch
    max_ack_ranges: int = 50_000
    """Acknowledged ranges above a cursor's floor; dispatch waits for the floor to move beyond it."""
    max_unacked_messages: int = 50_000
    """Messages of one shared or key-shared subscription that are delivered and not acknowledged."""
    max_in_flight_ranges: int = 100_000
    """Separate unacknowledged offset ranges that one subscription tracks."""
    max_consumer_credit_messages: int = 10_000_000
    """Most message credit that one consumer may hold."""
    max_delayed_ranges: int = 100_000
    """Delayed batches of one subscription that are not due yet; dispatch waits beyond it."""
    max_delivery_delay_s: float = 30 * 24 * 3600.0
    """Longest delivery delay of a message, and longest pause that a nack may request."""
    max_lease_s: float = 3600.0
    """Longest lease that a consumer may request at a time."""
    max_nack_reason_chars: int = 512
    """Characters of a nack's reason that are stored."""
    max_key_filters: int = 64
    """Key filters of one consumer."""
    max_key_filter_chars: int = 256
    """Longest key filter."""

    # Storage backends
    storage_attempt_timeout_s: float = 30.0
    """Deadline of one attempt of a storage operation, for a range or a small object; large ones get more by size."""
    storage_operation_timeout_s: float = 120.0
    """Deadline of a storage operation with all its retries."""
    storage_max_attempts: int = 8
    """Most attempts of one storage operation."""
    storage_max_backoff_s: float = 5.0
    """Longest pause between two attempts; the first is 50 ms, each doubles, and each is drawn at random below that."""
    storage_max_concurrency: int = 8
    """Concurrent calls to one storage backend; further ones are queued."""

    # Staged publishing
    max_staged_bytes: int = 8 * GIB
    """Disk space of all staged and uncommitted data; staging beyond it is refused."""
    max_stages: int = 10_000
    """Stages of one broker, open ones included."""
    stage_expiry_s: float = 24 * 3600.0
    """A stage neither committed nor aborted after this time is dropped."""
    max_stage_producers: int = 10_000
    """Producers of staged commits whose last batch is remembered."""
    stage_producer_expiry_s: float = 30 * 24 * 3600.0
    """How long the last batch of such a producer is remembered after its commit."""
    max_aborted_writes: int = 10_000
    """Writes aborted by id that are remembered, so that their late stages are refused; beyond it the
    oldest is forgotten."""
    aborted_write_expiry_s: float = 24 * 3600.0
    """How long such a write is remembered."""

    # Storage server
    storage_server_max_object_bytes: int = 256 * MIB
    """Largest object that a storage server accepts."""
    storage_server_memory_bytes: int = 512 * MIB
    """Bytes of objects being received or sent that a storage server holds at a time; further calls are queued."""
    storage_server_max_puts: int = 64
    """Objects that a storage server receives or stores at a time; further puts are queued."""
    storage_server_max_calls: int = 32
    """Calls that a storage server makes to its backend at a time; further ones are queued."""
    storage_server_stall_timeout_s: float = 30.0
    """A caller of a storage server that neither sends announced data nor reads requested data is disconnected."""

    # Metadata
    metadata_max_key_bytes: int = 4 * KIB
    """Longest metadata key, in UTF-8 bytes."""
    metadata_max_value_bytes: int = 768 * KIB
    """Largest value of one metadata key."""
    metadata_max_transaction_changes: int = 128
    """Most conditions, and most operations, of one metadata transaction."""
    metadata_max_transaction_bytes: int = 1 * MIB
    """Keys and values of one metadata transaction together."""
    metadata_max_leases: int = 10_000
    """Active metadata leases."""
    metadata_max_lease_s: float = 24 * 3600.0
    """Longest time to live of a metadata lease."""
    metadata_history_revisions: int = 10_000
    """Recent metadata changes from which watches can resume."""
    metadata_history_bytes: int = 32 * MIB
    """Bytes of recent metadata changes; older ones are dropped first, the newest one is always kept."""

    # Links between brokers
    max_peers: int = 64
    """Links to other brokers, and links of other brokers to this one."""
    max_peer_hellos: int = 64
    """Links of other brokers that are being opened at a time; further ones are refused."""
    max_peer_channels: int = 32
    """Channels of one link."""
    max_peer_calls: int = 256
    """Unanswered calls of one channel of a link; further ones wait."""
    max_peer_message_bytes: int = 16 * MIB
    """Largest message, call or answer between brokers. A dead letter for a topic of another broker has to fit in, so it
    should exceed ``max_batch_bytes``."""
    max_moves: int = 64
    """Topics that a broker moves to others at a time; further ones wait. As many again may move to it from each other
    broker."""
    move_chunk_bytes: int = 1 * MIB
    """About so many bytes of batches go into one call while a topic is copied to another broker; below
    ``max_peer_message_bytes``. A topic stops only when less than this is missing there."""
    move_freeze_s: float = 2.0
    """Time in which a topic that stops for its move has to settle what is on its way; then the move is given up."""
    move_complete_s: float = 10.0
    """Time in which the other broker then has to take the last batches and the state, while publishers wait; then the
    move is given up."""
    move_timeout_s: float = 30.0
    """Time in which another broker has to answer each call of a move, and after which it forgets one that is silent."""
    peer_queue_messages: int = 64
    """Messages of one channel that wait to be sent to a broker; further ones are dropped."""
    peer_queue_bytes: int = 4 * MIB
    """The same in bytes; the last message may exceed it."""
    peer_connect_timeout_s: float = 0.5
    """Time limit of one attempt to connect to another broker, which is repeated without end."""
    peer_reconnect_max_s: float = 0.25
    """Longest pause between two such attempts: at most a quarter of the shortest election time of the metadata."""
    peer_loss_window_s: float = 0.5
    """A broker counts as lost if its port refuses two connections in a row within this time after its link broke."""
    peer_keepalive_idle_s: float = 1.0
    """Silence of a link after which a PING is sent."""
    peer_keepalive_timeout_s: float = 2.0
    """How long it may stay unanswered before the link is opened again; silence is noticed within twice this time."""
    peer_refused_pause_s: float = 5.0
    """Pause after another broker has refused a link, for instance because of its secret."""
    peer_refusal_log_s: float = 10.0
    """Shortest time between two lines in the log about refused links of one host."""

    # Jobs
    max_jobs: int = 1_000
    """Jobs that are listed, one for each of their topics; reports of further ones are refused."""
    job_expiry_s: float = 3600.0
    """A job that does not report for so long is forgotten."""

    # The schema registry
    max_schema_bytes: int = 512 * KIB
    """UTF-8 bytes of the text of one schema that is registered, and of a protobuf schema's descriptor; at most the
    default, which all readers take."""
    max_schema_depth: int = 100
    """Nesting depth of a schema that is registered: of brackets, or of messages in protobuf; at most the default."""
    max_subjects: int = 100_000
    """Subjects of the registry, including permanently deleted ones, whose version numbers are remembered. All brokers
    keep them in memory: about 1.5 KiB for one with three small versions."""
    max_versions_per_subject: int = 1_000
    """Versions of one subject that are not permanently deleted; at most 2,000, which fit into one record
    unless they have long descriptions."""
    schema_checker_memory_bytes: int = 1 * GIB
    """Address space of the process that examines schemas, and of the one that checks payloads. They need a quarter of
    that to start."""
    schema_checker_timeout_s: float = 10.0
    """How long the examination of one schema may take before it is refused."""
    payload_check_timeout_s: float = 5.0
    """How long the check of one batch may take, with the policy ``schema_payloads``; after that it does not fit."""

    # The log
    max_log_levels: int = 32
    """Loggers whose level is changed for a time, at a time; further changes are refused."""
    log_level_max_s: float = 24 * 3600.0
    """Longest time for which the level of a logger is changed by a call."""


def check_limits(limits: Limits) -> None:
    """Raise ConfigurationError if the value of a limit is out of range.

    Each is greater than 0 and finite, a time at most 1e9 seconds, and anything else at most 2**53, or less where a
    format or a protocol cannot encode more.
    """
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        most = _MOST.get(name, _LONGEST_S if name.endswith("_s") else _LARGEST)
        if not 0 < value < math.inf:  # refuses NaN, too
            raise ConfigurationError(f"limits.{name} = {value} must be greater than 0 and finite")
        if value > most:
            raise ConfigurationError(f"limits.{name} = {value} must be at most {most:.16g}")
