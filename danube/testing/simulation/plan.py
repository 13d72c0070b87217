"""What a world is made of, drawn from its seed: topics, applications, faults and their frequencies."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from danube.broker import BrokerConfig
from danube.model.limits import KIB, Limits
from danube.model.policies import Durability, Retention, SubscriptionPolicy, SubscriptionType
from danube.testing.simulation.node import PORT
from danube.testing.simulation.workload import ConsumerPlan, ProducerPlan, TopicPlan

__all__ = ["FAULTS", "Plan", "draw_plan"]

FAULTS = {
    "kill": 2.0,
    "power-loss": 2.0,
    "ambush": 4.0,
    "drain": 1.0,
    "cut": 2.0,
    "reset": 1.5,
    "half-open": 1.0,
    "slow-network": 1.0,
    "slow-disk": 1.0,
    "full-disk": 0.5,
    "sync-error": 0.7,
    "storage-trouble": 2.0,
    "storage-down": 1.0,
}
"""What may go wrong, and how often in comparison."""


class Plan(NamedTuple):
    """One world."""

    seed: int
    config: BrokerConfig
    topics: list[TopicPlan]
    producers: list[ProducerPlan]
    consumers: list[ConsumerPlan]
    faults: dict[str, float]
    """Weights."""
    fault_every_s: float
    """Mean pause between two faults."""
    duration_s: float
    """Virtual seconds with faults."""
    last_end: str
    """How the broker ends between the two audits: drain, kill or power-loss."""


def draw_plan(seed: int, *, duration_s: float | None = None) -> Plan:
    """Draw a world from its seed. ``duration_s`` overrides the length of its stormy part."""
    random = Random(f"plan {seed}")
    topics = [_draw_topic(random, index) for index in range(random.choice((1, 2, 2, 3)))]
    producers: list[ProducerPlan] = []
    consumers: list[ConsumerPlan] = []
    for topic in topics:
        for _ in range(random.choice((1, 1, 2))):
            producers.append(
                ProducerPlan(
                    name=f"p{len(producers)}",
                    topic=topic,
                    operations_per_s=random.choice((2.0, 5.0, 10.0)),
                    batch=random.choice((1, 5, 20)),
                    payload_bytes=random.choice((20, 200, 2000)),
                    compression=random.choice((None, None, "lz4", "zstd")),
                    crash_after_s=random.choice((8.0, 30.0, 1000.0)),
                )
            )
        for number in range(random.choice((1, 2))):
            kind = random.choice(list(SubscriptionType))
            count = 1 if kind is SubscriptionType.EXCLUSIVE else random.choice((1, 2, 3))
            consumers += [
                ConsumerPlan(
                    name=f"c{len(consumers) + index}",
                    subscription=f"s{number}-{kind}",
                    kind=kind,
                    topic=topic,
                    diligence=random.choice((1.0, 0.95, 0.8)),
                    leave_after_s=random.choice((5.0, 20.0, 1000.0)),
                )
                for index in range(count)
            ]
    chosen = random.sample(sorted(FAULTS), random.randint(3, len(FAULTS)))
    return Plan(
        seed=seed,
        config=_draw_config(random),
        topics=topics,
        producers=producers,
        consumers=consumers,
        faults={name: FAULTS[name] for name in chosen},
        fault_every_s=random.choice((1.0, 3.0, 8.0)),
        duration_s=duration_s or random.choice((15.0, 30.0, 60.0)),
        last_end=random.choice(("drain", "kill", "power-loss")),
    )


def _draw_topic(random: Random, index: int) -> TopicPlan:
    return TopicPlan(
        name=f"/default/t{index}",
        durability=random.choice((Durability.DISK, Durability.DISK, Durability.OS)),
        partitions=random.choice((0, 0, 2)),
        retention=random.choice((Retention(), Retention(), Retention(), Retention(max_bytes=100 * KIB))),
    )


def _draw_config(random: Random) -> BrokerConfig:
    file_size = 256 * KIB
    return BrokerConfig(
        listen=(f"broker:{PORT}",),
        data_directory="/simulated",
        journal_file_size=file_size,
        storage="memory://bucket",
        drain_timeout_s=random.choice((2.0, 10.0)),
        limits=Limits(
            max_message_bytes=16 * KIB,
            max_batch_bytes=64 * KIB,
            journal_max_bytes=random.choice((4, 16)) * file_size,
            journal_reserve_bytes=2 * file_size,
            journal_pending_bytes=256 * KIB,
            journal_commit_bytes=128 * KIB,
            journal_full_wait_s=5.0,
            cache_bytes=random.choice((16, 128, 1024)) * KIB,
            opened_batches_bytes=64 * KIB,
            segment_bytes=random.choice((8, 64)) * KIB,
            segment_max_age_s=random.choice((2.0, 10.0)),
            segment_cache_bytes=256 * KIB,
            segment_merge_parts=random.choice((2, 4)),
            segment_grace_s=10.0,
            segment_retry_max_s=2.0,
            max_unacked_messages=random.choice((50, 5_000)),
            storage_attempt_timeout_s=2.0,
            storage_operation_timeout_s=10.0,
            storage_max_attempts=4,
            storage_max_backoff_s=1.0,
        ),
        subscription_policy=SubscriptionPolicy(ack_timeout_s=3.0),
    )
