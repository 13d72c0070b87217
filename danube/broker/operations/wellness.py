"""Rules for what is not well: which subscriptions need attention, and which figures of a broker do. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from danube.model.overview_api import Finding

__all__ = ["BrokerFacts", "StorageFacts", "is_well", "of_broker", "of_storage", "of_topic"]

_ALWAYS_UNWELL: Final = frozenset({"failed", "blocked", "waiting-for-storage", "no-matching-consumer"})
"""States that do not end by themselves, or by a consumer that goes on."""
_ALWAYS_WELL: Final = frozenset({"caught-up", "waiting-for-delivery-time"})
JOURNAL_SHARE: Final = 0.8
"""The journal is nearly full from this share on."""
CONNECTIONS_SHARE: Final = 0.9
LOOP_LAG_S: Final = 0.25
"""Timers later than this, 1 of 100 in the last minute: the process gets too little processor time."""
CERTIFICATE_S: Final = 14 * 86_400.0
"""A certificate that ends within this time is reported."""


def is_well(state: str, backlog_messages: int, age_s: float, patience_s: float, absent_patience_s: float) -> bool:
    """Return whether a subscription needs no attention.

    Args:
        state: as in its explanation.
        backlog_messages: unacknowledged messages.
        age_s: age of the oldest of them; negative: not known.
        patience_s: how old it may be while there is progress, or a consumer that may go on.
        absent_patience_s: how old it may be while no consumer is connected. Where the age is not known, messages
            without a consumer are lost or may be old, and need attention.
    """
    if state in _ALWAYS_UNWELL:
        return False
    if state in _ALWAYS_WELL or backlog_messages <= 0:
        return True
    if state == "no-consumer":
        return 0 <= age_s <= absent_patience_s
    return age_s <= patience_s


class BrokerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a broker that may need attention."""

    broker: str
    journal_used_bytes: int = 0
    journal_limit_bytes: int = 1
    disk_full: bool = False
    sealing_failing_s: float = 0.0
    sealing_error: str = ""
    stranded_topics: int = 0
    stranded_bytes: int = 0
    connections: int = 0
    max_connections: int = 1
    loop_lag_s: float | None = None
    certificate_ends_s: float | None = None
    """Seconds until the certificate that it presents expires; None: it presents none."""


class StorageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a storage."""

    storage: str
    url: str
    healthy: bool
    failing_for_s: float
    last_error: str


def of_broker(facts: BrokerFacts) -> Iterator[Finding]:
    """Yield what is not well at a broker itself."""

    def finding(kind: str, sentence: str, remedy: str) -> Finding:
        return Finding(broker=facts.broker, kind=kind, subject=facts.broker, sentence=sentence, remedy=remedy)

    used = facts.journal_used_bytes / max(1, facts.journal_limit_bytes)
    if facts.disk_full:
        yield finding(
            "disk-full",
            "the file system of the journal has no space for another file; publishing waits",
            "free space in the file system of the data directory",
        )
    if used >= JOURNAL_SHARE:
        yield finding(
            "journal-nearly-full",
            f"the journal is {used:.0%} full; when it is full, publishing waits until messages are sealed or"
            " acknowledged",
            "see which subscriptions are behind (danube subscriptions list), and whether storages work (danube storage"
            " status); limits.journal_max_bytes buys time",
        )
    if facts.sealing_failing_s > 0:
        yield finding(
            "sealing-failing",
            f"sealing has been failing for {_duration(facts.sealing_failing_s)}: {facts.sealing_error}",
            "messages stay in the journal meanwhile; see danube storage status",
        )
    if facts.stranded_topics:
        topics = "1 topic" if facts.stranded_topics == 1 else f"{facts.stranded_topics:,} topics"
        yield finding(
            "stranded",
            f"the journal holds {facts.stranded_bytes:,} bytes of {topics} that the metadata do not know",
            "see danube topics stranded: restore the metadata, or give these messages up",
        )
    if facts.connections >= CONNECTIONS_SHARE * facts.max_connections:
        yield finding(
            "connections-nearly-full",
            f"{facts.connections:,} connections are open, and max_connections is {facts.max_connections:,}",
            "see danube connections list; raise limits.max_connections, or connect less often",
        )
    if facts.loop_lag_s is not None and facts.loop_lag_s >= LOOP_LAG_S:
        yield finding(
            "loop-lag",
            f"one in a hundred of the broker's timers was late by {facts.loop_lag_s * 1e3:,.0f} ms or more in the last"
            " minute",
            "the process needs more processor time: see what else runs on the machine, or spread the topics over more"
            " brokers",
        )
    if facts.certificate_ends_s is not None and facts.certificate_ends_s < CERTIFICATE_S:
        ended = facts.certificate_ends_s <= 0
        yield finding(
            "certificate-expires",
            "the certificate of the broker has expired"
            if ended
            else f"the certificate of the broker expires in {_duration(facts.certificate_ends_s)}",
            "put a new one in the place of the files in [tls]; the broker reads them again by itself",
        )


def of_storage(broker: str, facts: StorageFacts) -> Iterator[Finding]:
    """Yield what is not well at a storage, as a broker sees it."""
    if not facts.healthy:
        yield Finding(
            broker=broker,
            kind="storage-failing",
            subject=facts.storage,
            sentence=f"storage {facts.storage!r} ({facts.url}) has been failing for {_duration(facts.failing_for_s)}:"
            f" {facts.last_error}",
            remedy="check the address, the credentials and the network of the storage from the broker's machine; see"
            " danube storage status",
        )


def of_topic(broker: str, topic: str, *, stopped: str = "", absent: str = "") -> Iterator[Finding]:
    """Yield what is not well at a topic.

    Args:
        broker: its owner.
        topic: its name.
        stopped: why it accepts no messages any more.
        absent: why it is not served.
    """
    for kind, sentence in (("topic-stopped", stopped), ("topic-unavailable", absent)):
        if sentence:
            verb = "has stopped" if kind == "topic-stopped" else "is not served"
            yield Finding(
                broker=broker,
                kind=kind,
                subject=topic,
                sentence=f"topic {topic!r} {verb}: {sentence}",
                remedy=f"danube cluster explain {topic}",
                topic=topic,
            )


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"
