"""The five boards: Overview, Topics, Subscriptions, Journal and History. Pure.

A query that may find nothing on a healthy broker ends with ``or vector(0)``, so that no panel is empty.
"""

from __future__ import annotations

from typing import Final

from danube.metrics.board_types import Board, Form, Panel, Query, Row

__all__ = ["BOARDS"]

_I: Final = 'instance=~"$instance"'
_T: Final = f'{_I},topic=~"$topic"'
_S: Final = f'{_T},subscription=~"$subscription"'
_FAILED: Final = f'{_I},code!="OK"'
_REFUSED: Final = f'{_T},result="error"'
_IN_JOURNAL: Final = f'{_T},place="journal"'
_IN_STORAGE: Final = f'{_T},place="storage"'
_PROCESS: Final = f'{_I},job="danube"'
_BY_SUB: Final = "topic, subscription"
_SUB: Final = "{{topic}} / {{subscription}}"


def _rate(name: str, labels: str = _I) -> str:
    return f"rate({name}{{{labels}}}[$__rate_interval])"


def _sum_rate(name: str, labels: str = _I, by: str = "") -> str:
    return f"sum {f'by ({by}) ' if by else ''}({_rate(name, labels)})"


def _quantile(quantile: float, name: str, by: str = "", labels: str = _I) -> str:
    return f"histogram_quantile({quantile}, {_sum_rate(f'{name}_bucket', labels, f'le, {by}' if by else 'le')})"


def _quantiles(name: str, by: str = "", labels: str = _I) -> tuple[Query, ...]:
    legend = "".join(f"{{{{{label.strip()}}}}} " for label in by.split(",") if label)
    return tuple(Query(_quantile(each, name, by, labels), f"{legend}p{each * 100:g}") for each in (0.5, 0.99))


def _gauge(name: str, labels: str = _I, by: str = "") -> str:
    return f"sum {f'by ({by}) ' if by else ''}({name}{{{labels}}})"


def _stat(title: str, query: str, unit: str = "short", warn: float | None = None, description: str = "") -> Panel:
    return Panel(title, (Query(query),), unit, Form.STAT, description, warn)


def _graph(title: str, *queries: Query, unit: str = "short", description: str = "") -> Panel:
    return Panel(title, queries, unit, Form.GRAPH, description)


def _table(title: str, query: str, unit: str = "short", description: str = "") -> Panel:
    return Panel(title, (Query(query),), unit, Form.TABLE, description)


_OVERVIEW: Final = Board(
    "Overview",
    "Whether the brokers are well, and how much they do.",
    (
        Row(
            "Now",
            (
                _stat("Brokers", f"count(danube_build_info{{{_I}}})"),
                _stat("Topics", _gauge("danube_broker_topics_owned")),
                _stat("Connections", _gauge("danube_connections")),
                _stat("Messages in", _sum_rate("danube_topic_messages_in_total"), "ops"),
                _stat(
                    "Journal used",
                    f"max(danube_journal_used_bytes{{{_I}}} / danube_journal_limit_bytes{{{_I}}})",
                    "percentunit",
                    0.85,
                ),
                _stat("Longest stuck", f"max(danube_subscription_stuck_seconds{{{_I}}}) or vector(0)", "s", 600),
            ),
        ),
        Row(
            "Messages",
            (
                _graph(
                    "Messages",
                    Query(_sum_rate("danube_topic_messages_in_total"), "in"),
                    Query(_sum_rate("danube_subscription_delivered_messages_total"), "delivered"),
                    Query(_sum_rate("danube_subscription_acked_messages_total"), "acknowledged"),
                    unit="ops",
                ),
                _graph(
                    "Bytes on the network",
                    Query(_sum_rate("danube_received_bytes_total", by="protocol"), "received {{protocol}}"),
                    Query(_sum_rate("danube_sent_bytes_total", by="protocol"), "sent {{protocol}}"),
                    unit="Bps",
                ),
                _graph(
                    "Publish duration",
                    *_quantiles("danube_publish_duration_seconds", "durability"),
                    unit="s",
                    description="From the arrival of a batch to its durability.",
                ),
            ),
        ),
        Row(
            "Needs attention",
            (
                _table("Stuck subscriptions", f"topk(10, danube_subscription_stuck_seconds{{{_I}}})", "s"),
                _table("Largest backlogs", f"topk(10, danube_subscription_lag_messages{{{_I}}})"),
                _graph(
                    "Failed calls",
                    Query(f"{_sum_rate('danube_broker_rpc_total', _FAILED, 'code')} or vector(0)", "{{code}}"),
                    unit="ops",
                ),
            ),
        ),
        Row(
            "Process",
            (
                _graph(
                    "Memory",
                    Query(f"process_resident_memory_bytes{{{_PROCESS}}}", "{{instance}} resident"),
                    Query(f"danube_memory_bytes{{{_I}}}", "{{instance}} {{part}}"),
                    unit="bytes",
                ),
                _graph(
                    "Processor",
                    Query(_rate("process_cpu_seconds_total", _PROCESS), "{{instance}}"),
                    unit="percentunit",
                ),
                _graph("Loop lag", *_quantiles("danube_loop_lag_seconds", "instance"), unit="s"),
                _graph(
                    "File descriptors",
                    Query(f"process_open_fds{{{_PROCESS}}}", "{{instance}} open"),
                    Query(f"process_max_fds{{{_PROCESS}}}", "{{instance}} most"),
                ),
            ),
        ),
        Row(
            "Cluster and calls",
            (
                _graph(
                    "Cluster",
                    Query(f"max(danube_cluster_members{{{_I}}})", "members"),
                    Query(f"max(danube_cluster_sessions{{{_I}}})", "running"),
                ),
                _graph(
                    "Calls",
                    Query(f"topk(10, {_sum_rate('danube_broker_rpc_total', by='method')})", "{{method}}"),
                    unit="ops",
                ),
                _graph(
                    "Slowest calls, p99",
                    Query(
                        f"topk(10, {_quantile(0.99, 'danube_rpc_duration_seconds', 'method')} > 0) or vector(0)",
                        "{{method}}",
                    ),
                    unit="s",
                ),
                _graph(
                    "Refused connections",
                    Query(_sum_rate("danube_connections_refused_total", by="reason"), "{{reason}}"),
                    unit="ops",
                ),
            ),
        ),
    ),
)

_TOPICS: Final = Board(
    "Topics",
    "What is published, topic by topic. The busiest topics have series of their own; _other sums the rest.",
    (
        Row(
            "Publishing",
            (
                _graph(
                    "Messages in",
                    Query(f"topk(20, {_sum_rate('danube_topic_messages_in_total', _T, 'topic')})", "{{topic}}"),
                    unit="ops",
                ),
                _graph(
                    "Bytes in",
                    Query(f"topk(20, {_sum_rate('danube_topic_bytes_in_total', _T, 'topic')})", "{{topic}}"),
                    unit="Bps",
                ),
                _graph(
                    "Refused messages",
                    Query(
                        f"{_sum_rate('danube_producer_send_total', _REFUSED, 'topic, error_code')} or vector(0)",
                        "{{topic}} {{error_code}}",
                    ),
                    Query(_sum_rate("danube_publish_duplicates_total"), "repeated"),
                    Query(_sum_rate("danube_publish_schema_mismatches_total"), "without a schema of the subject"),
                    unit="ops",
                ),
            ),
        ),
        Row(
            "Stored",
            (
                _graph(
                    "In the journal",
                    Query(
                        f"topk(20, {_gauge('danube_topic_stored_bytes', _IN_JOURNAL, 'topic')})",
                        "{{topic}}",
                    ),
                    unit="bytes",
                ),
                _graph(
                    "In storages",
                    Query(
                        f"topk(20, {_gauge('danube_topic_stored_bytes', _IN_STORAGE, 'topic')})",
                        "{{topic}}",
                    ),
                    unit="bytes",
                ),
                _graph(
                    "Messages that can be read",
                    Query(
                        f"topk(20, danube_topic_end_offset{{{_T}}} - danube_topic_start_offset{{{_T}}})", "{{topic}}"
                    ),
                    description="Of topics without partitions.",
                ),
            ),
        ),
        Row(
            "Clients",
            (
                _graph(
                    "Producers", Query(f"topk(20, {_gauge('danube_topic_active_producers', _T, 'topic')})", "{{topic}}")
                ),
                _graph(
                    "Consumers", Query(f"topk(20, {_gauge('danube_topic_active_consumers', _T, 'topic')})", "{{topic}}")
                ),
                _graph(
                    "Subscriptions",
                    Query(f"topk(20, {_gauge('danube_topic_active_subscriptions', _T, 'topic')})", "{{topic}}"),
                ),
            ),
        ),
        Row(
            "State",
            (
                _stat("Stopped", _gauge("danube_topic_stopped", _T), warn=1),
                _stat("Summed as _other", _gauge("danube_metrics_omitted_topics")),
                _stat("Served", _gauge("danube_broker_topics_owned")),
            ),
        ),
    ),
    ("topic",),
)

_SUBSCRIPTIONS: Final = Board(
    "Subscriptions",
    "How far consumers are behind, and why.",
    (
        Row(
            "Behind",
            (
                _graph(
                    "Backlog",
                    Query(f"topk(20, {_gauge('danube_subscription_lag_messages', _S, _BY_SUB)})", _SUB),
                ),
                _graph(
                    "Age of the oldest unacknowledged message",
                    Query(
                        "topk(20, max by (topic, subscription)"
                        f" (danube_subscription_oldest_unacked_age_seconds{{{_S}}})) or vector(0)",
                        _SUB,
                    ),
                    unit="s",
                ),
                _graph(
                    "Stuck for",
                    Query(f"topk(20, max by (topic, subscription) (danube_subscription_stuck_seconds{{{_S}}}))", _SUB),
                    unit="s",
                ),
            ),
        ),
        Row(
            "Why",
            (
                _table(
                    "States",
                    f"sum by (topic, subscription, state) (danube_subscription_state{{{_S}}})",
                    description="Number of partitions in each state; danube subscriptions explain says more.",
                ),
                _graph(
                    "Subscriptions by state",
                    Query(f"count by (state) (danube_subscription_state{{{_S}}})", "{{state}}"),
                ),
                _graph(
                    "Messages by what they wait for",
                    Query(_gauge("danube_subscription_in_flight_messages", _S), "in flight"),
                    Query(_gauge("danube_subscription_waiting_messages", _S), "waiting for redelivery"),
                    Query(_gauge("danube_subscription_delayed_messages", _S), "not due"),
                    Query(_gauge("danube_subscription_poisoned_messages", _S), "failed too often"),
                ),
            ),
        ),
        Row(
            "Moving",
            (
                _graph(
                    "Delivered",
                    Query(
                        f"topk(20, {_sum_rate('danube_subscription_delivered_messages_total', _S, _BY_SUB)})",
                        _SUB,
                    ),
                    unit="ops",
                ),
                _graph(
                    "Acknowledged",
                    Query(
                        f"topk(20, {_sum_rate('danube_subscription_acked_messages_total', _S, _BY_SUB)})",
                        _SUB,
                    ),
                    unit="ops",
                ),
                _graph(
                    "Consumers",
                    Query(f"topk(20, {_gauge('danube_subscription_active_consumers', _S, _BY_SUB)})", _SUB),
                ),
            ),
        ),
        Row(
            "Failing",
            (
                _graph(
                    "Failures",
                    Query(_sum_rate("danube_subscription_nack_total", _S), "refused"),
                    Query(_sum_rate("danube_subscription_ack_timeout_total", _S), "timed out"),
                    Query(_sum_rate("danube_subscription_redelivery_total", _S), "delivered again"),
                    unit="ops",
                ),
                _graph(
                    "Dead letters",
                    Query(f"topk(20, {_sum_rate('danube_subscription_dlq_total', _S, _BY_SUB)})", _SUB),
                    unit="ops",
                ),
                _graph(
                    "Not delivered",
                    Query(_sum_rate("danube_subscription_dropped_total", _S), "dropped"),
                    Query(_sum_rate("danube_subscription_expired_total", _S), "expired"),
                    unit="ops",
                ),
            ),
        ),
    ),
    ("topic", "subscription"),
)

_JOURNAL: Final = Board(
    "Journal",
    "The log on the disk of each broker: space, syncs, and publishers that wait.",
    (
        Row(
            "Space",
            (
                _graph(
                    "Used",
                    Query(f"danube_journal_used_bytes{{{_I}}}", "{{instance}} used"),
                    Query(f"danube_journal_limit_bytes{{{_I}}}", "{{instance}} limit"),
                    unit="bytes",
                ),
                _graph("Not settled", Query(f"danube_journal_pending_bytes{{{_I}}}", "{{instance}}"), unit="bytes"),
                _stat("Failed", f"max(danube_journal_fenced{{{_I}}})", warn=1),
            ),
        ),
        Row(
            "Commits",
            (
                _graph(
                    "Blocks written",
                    Query(_sum_rate("danube_journal_commits_total", by="instance, lane"), "{{instance}} {{lane}}"),
                    unit="ops",
                ),
                _graph("Write and sync", *_quantiles("danube_journal_sync_duration_seconds", "instance"), unit="s"),
                _graph("Entries of a block", *_quantiles("danube_journal_commit_batches", "instance")),
            ),
        ),
        Row(
            "Publishers",
            (
                _graph("Publish duration", *_quantiles("danube_publish_duration_seconds", "durability"), unit="s"),
                _graph("Batches that wait", Query(f"danube_journal_waiting_publishes{{{_I}}}", "{{instance}}")),
                _graph(
                    "Time spent waiting",
                    Query(_sum_rate("danube_publish_paused_seconds_total", by="by"), "{{by}}"),
                    unit="percentunit",
                    description="1: one publisher waits all the time.",
                ),
            ),
        ),
    ),
)

_HISTORY: Final = Board(
    "History",
    "Sealing, storages, caches and metadata.",
    (
        Row(
            "Sealing",
            (
                _graph(
                    "Unsealed",
                    Query(f"danube_sealing_unsealed_bytes{{{_I}}}", "{{instance}} {{storage}}"),
                    unit="bytes",
                ),
                _graph(
                    "Age of the oldest unsealed message",
                    Query(f"danube_sealing_oldest_age_seconds{{{_I}}}", "{{instance}} {{storage}}"),
                    Query(f"max(danube_sealing_max_age_seconds{{{_I}}})", "limit"),
                    unit="s",
                ),
                _graph(
                    "Sealed", Query(_sum_rate("danube_sealed_bytes_total", by="storage"), "{{storage}}"), unit="Bps"
                ),
            ),
        ),
        Row(
            "Storages",
            (
                _graph(
                    "Operations",
                    Query(
                        _sum_rate("danube_storage_operations_total", by="storage, operation, result"),
                        "{{storage}} {{operation}} {{result}}",
                    ),
                    unit="ops",
                ),
                _graph(
                    "Duration of attempts, p99",
                    Query(
                        f"{_quantile(0.99, 'danube_storage_operation_duration_seconds', 'storage, operation')} > 0"
                        " or vector(0)",
                        "{{storage}} {{operation}}",
                    ),
                    unit="s",
                ),
                _graph(
                    "Retries",
                    Query(
                        _sum_rate("danube_storage_retries_total", by="storage, operation"), "{{storage}} {{operation}}"
                    ),
                ),
                _graph(
                    "Failing for",
                    Query(f"danube_storage_failing_seconds{{{_I}}}", "{{instance}} {{storage}}"),
                    Query(f"danube_sealing_failing_seconds{{{_I}}}", "{{instance}} sealing {{storage}}"),
                    unit="s",
                ),
            ),
        ),
        Row(
            "Reading",
            (
                _graph(
                    "Cache look-ups",
                    Query(_sum_rate("danube_cache_requests_total", by="cache, result"), "{{cache}} {{result}}"),
                    unit="ops",
                ),
                _graph("Staged", Query(f"danube_staged_bytes{{{_I}}}", "{{instance}}"), unit="bytes"),
            ),
        ),
        Row(
            "Metadata",
            (
                _graph(
                    "Duration of operations, p99",
                    Query(
                        f"{_quantile(0.99, 'danube_metadata_duration_seconds', 'operation')} > 0 or vector(0)",
                        "{{operation}}",
                    ),
                    unit="s",
                ),
                _graph(
                    "Metadata operations",
                    Query(_sum_rate("danube_metadata_duration_seconds_count", by="operation"), "{{operation}}"),
                    unit="ops",
                ),
                _graph(
                    "Group",
                    Query(f"sum(danube_metadata_has_leader{{{_I}}}) or vector(0)", "brokers that know a leader"),
                    Query(f"sum(danube_cluster_session_certain{{{_I}}})", "brokers certain of their session"),
                ),
            ),
        ),
    ),
)

BOARDS: Final = (_OVERVIEW, _TOPICS, _SUBSCRIPTIONS, _JOURNAL, _HISTORY)
"""All boards."""
