"""Alerts on the metrics, as a file of rules for Prometheus. Pure.

Each has the annotation ``runbook``: the command that says more. The thresholds are meant to be changed: the file is
printed by ``danube generate alerts``, and belongs to those who run the broker.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

import msgspec

__all__ = ["ALERTS", "Alert", "Severity", "rules_file"]

_JOB: Final = 'job="danube"'
_SUBSCRIPTION: Final = "subscription {{ $labels.subscription }} of {{ $labels.topic }}"
_EXPLAIN: Final = "danube subscriptions explain {{ $labels.topic }} {{ $labels.subscription }}"


class Severity(Enum):
    """How soon a person should look."""

    CRITICAL = "critical"
    """Now: messages are not accepted or not stored."""
    WARNING = "warning"
    """Today."""


class Alert(NamedTuple):
    """One rule."""

    name: str
    severity: Severity
    expression: str
    held_for: str
    """How long the expression has to hold."""
    summary: str
    runbook: str


_C, _W = Severity.CRITICAL, Severity.WARNING

ALERTS: Final = (
    Alert(
        "BrokerDown",
        _C,
        f"up{{{_JOB}}} == 0",
        "1m",
        "the broker at {{ $labels.instance }} does not answer",
        "danube cluster status",
    ),
    Alert(
        "JournalFenced",
        _C,
        "danube_journal_fenced == 1",
        "0m",
        "the journal of {{ $labels.instance }} has failed: look at its disk, and start the broker again",
        "danube doctor",
    ),
    Alert(
        "JournalNearlyFull",
        _W,
        "danube_journal_used_bytes / danube_journal_limit_bytes > 0.85",
        "5m",
        "the journal of {{ $labels.instance }} is {{ $value | humanizePercentage }} full; full, it takes no messages",
        "danube storage status",
    ),
    Alert(
        "PublishPaused",
        _C,
        'rate(danube_publish_paused_seconds_total{by="journal"}[5m]) > 0.5',
        "5m",
        "publishers of {{ $labels.instance }} wait for room in the journal",
        "danube storage status",
    ),
    Alert(
        "SyncSlow",
        _W,
        "histogram_quantile(0.99, rate(danube_journal_sync_duration_seconds_bucket[5m])) > 0.25",
        "10m",
        "one of 100 syncs of {{ $labels.instance }} takes more than {{ $value | humanizeDuration }}",
        "danube doctor",
    ),
    Alert(
        "LoopLag",
        _W,
        "histogram_quantile(0.99, rate(danube_loop_lag_seconds_bucket[5m])) > 0.25",
        "10m",
        "the event loop of {{ $labels.instance }} is late by {{ $value | humanizeDuration }}",
        "danube doctor --cluster",
    ),
    Alert(
        "SubscriptionStuck",
        _W,
        "danube_subscription_stuck_seconds > 600",
        "1m",
        f"{_SUBSCRIPTION} has not moved for {{{{ $value | humanizeDuration }}}}",
        _EXPLAIN,
    ),
    Alert(
        "SubscriptionBehind",
        _W,
        "danube_subscription_oldest_unacked_age_seconds > 3600",
        "5m",
        f"the oldest message that {_SUBSCRIPTION} has not acknowledged is {{{{ $value | humanizeDuration }}}} old",
        _EXPLAIN,
    ),
    Alert(
        "DeadLetters",
        _W,
        "increase(danube_subscription_dlq_total[15m]) > 0",
        "0m",
        f"{_SUBSCRIPTION} has dead letters: its consumers cannot process {{{{ $value | humanize }}}} messages",
        "danube dlq list {{ $labels.topic }}-{{ $labels.subscription }}-dlq",
    ),
    Alert(
        "PoisonBlocked",
        _C,
        'danube_subscription_state{state="blocked"} > 0',
        "1m",
        f"a message that has failed too often blocks {_SUBSCRIPTION}",
        _EXPLAIN,
    ),
    Alert(
        "StorageFailing",
        _W,
        "danube_storage_failing_seconds > 60",
        "1m",
        "storage {{ $labels.storage }} has not answered {{ $labels.instance }} for {{ $value | humanizeDuration }}",
        "danube storage status",
    ),
    Alert(
        "SealingBehind",
        _W,
        "danube_sealing_oldest_age_seconds > on (job, instance) group_left () 3 * danube_sealing_max_age_seconds",
        "5m",
        "messages have waited for {{ $value | humanizeDuration }} to be sealed into storage {{ $labels.storage }}",
        "danube storage status",
    ),
    Alert(
        "TopicStopped",
        _C,
        "danube_topic_stopped > 0",
        "0m",
        "{{ $labels.topic }} has stopped, because stored data is damaged",
        "danube topics describe {{ $labels.topic }}",
    ),
    Alert(
        "FdsNearlyUsed",
        _W,
        f"process_open_fds{{{_JOB}}} / process_max_fds{{{_JOB}}} > 0.85",
        "5m",
        "the broker at {{ $labels.instance }} has opened {{ $value | humanizePercentage }} of its file descriptors",
        "danube doctor",
    ),
    Alert(
        "CertificateExpires",
        _W,
        "danube_certificate_expiry_timestamp_seconds - time() < 14 * 86400",
        "10m",
        "the certificate of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}",
        "danube security reload",
    ),
)
"""All alerts."""


def rules_file() -> str:
    """Return the rules as YAML. Strings are written as JSON, which is YAML, too."""
    lines = ["groups:", "  - name: danube", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {_quoted(alert.expression)}",
            f"        for: {alert.held_for}",
            "        labels:",
            f"          severity: {alert.severity.value}",
            "        annotations:",
            f"          summary: {_quoted(alert.summary)}",
            f"          runbook: {_quoted(alert.runbook)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
