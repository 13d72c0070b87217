"""The plan of a simulated world, drawn from its seed: topics, applications, faults and their frequencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from danube.broker import BrokerConfig
from danube.model.limits import KIB, Limits
from danube.model.policies import Durability, PoisonPolicy, Retention, SubscriptionPolicy, SubscriptionType
from danube.testing.simulation.chores import ChorePlan
from danube.testing.simulation.node import PORT
from danube.testing.simulation.registering import SchemaUserPlan, draw_schema_users
from danube.testing.simulation.storm import CLUSTER_FAULTS, FAULTS, GROUP_FAULTS, JOINS, SLOW_FAULTS, WIPES
from danube.testing.simulation.upstream import UpstreamPlan
from danube.testing.simulation.workload import ACK_TIMEOUT_S, ConsumerPlan, ProducerPlan, TopicPlan

__all__ = ["KINDS", "WorldPlan", "draw_plan"]


class WorldPlan(NamedTuple):
    """One world."""

    seed: int
    configs: dict[str, BrokerConfig]
    """Configurations of the brokers, by the name of their (first) machine: the *home* of topics."""
    topics: list[TopicPlan]
    producers: list[ProducerPlan]
    consumers: list[ConsumerPlan]
    chores: list[ChorePlan]
    faults: dict[str, float]
    """Weights."""
    fault_every_s: float
    """Mean pause between two faults."""
    duration_s: float
    """Virtual seconds with faults."""
    last_end: str
    """How the brokers end between the two audits: drain, kill, power-loss, or loss of the machine."""
    most_moves: int = 0
    """Maximum number of takeovers of the bucket by another machine."""
    like_sockets: bool = True
    """Whether Danube sees sockets, or streams as with TLS."""
    upstream: Sequence[UpstreamPlan] = ()
    """Applications whose producers use the upstream protocol."""
    losses: bool = False
    """Whether machines lose metadata or journal files while their broker is dead, and run out of descriptors."""
    is_cluster: bool = False
    """Whether the brokers share metadata and topics: then they are one home, :data:`CLUSTER`."""
    keeps_metadata: bool = False
    """Whether the brokers of a cluster keep the metadata themselves, as a Raft group."""
    cuts_log: bool = False
    """Whether the members of that group cut their logs all the time."""
    wipes: bool = False
    """Whether a machine of the cluster loses its disks."""
    forgets: bool = False
    """Whether the broker of that machine is declared gone in the end."""
    forgets_early: bool = False
    """Whether that is ordered as soon as it is known what was lost, while other faults go on."""
    moves_every_s: float = 0.0
    """Mean pause between orders to move a topic of the cluster to another broker; 0: none are ordered."""
    drains_every_s: float = 0.0
    """Mean pause between drains of brokers of the cluster, which are made active again; 0: none."""
    restarts_s: tuple[float, ...] = (0.0, 0.05, 1.0)
    """For how long a broker that has ended stays away."""
    schema_users: Sequence[SchemaUserPlan] = ()
    """Applications that use the schema registry, all of the same home."""

    @property
    def routes(self) -> dict[str, list[str]]:
        """The machines that clients may try, by home."""
        if self.is_cluster:
            return {CLUSTER: list(self.configs)}
        numbers = range(2, 2 + self.most_moves)
        return {home: [home, *(f"{home}-{number}" for number in numbers)] for home in self.configs}

    def home_of(self, machine: str) -> str:
        """Return the home whose machine was replaced by this one."""
        if self.is_cluster:
            return CLUSTER
        return next(home for home in self.configs if machine == home or machine.startswith(home + "-"))


KINDS = {"single": 10, "several": 3, "moving": 4, "damaged": 2, "cluster": 0, "schemas": 0, "cluster-schemas": 0}
"""Kinds of worlds, and their weights: one broker; two that share only a bucket; one that moves from
machine to machine; one whose stored data is damaged; three to five that share metadata, topics and a bucket; and the
first and the last one with applications that use the schema registry. Kinds without a weight are run on request only,
so that the seeds of the others stay as they were."""
_WITH_SCHEMAS: Final = {"schemas": "single", "cluster-schemas": "cluster"}
"""What kinds are without the registry: the world of a seed is the same, but for what uses it."""
_KEEPING_METADATA: Final = 0.7
"""Share of the clusters that keep their metadata themselves; the others share a faulty store."""
CLUSTER = "cluster"
"""The home of all topics of a cluster."""


def draw_plan(seed: int, *, duration_s: float | None = None, kind: str | None = None) -> WorldPlan:
    """Draw a world from its seed. ``duration_s`` overrides the length of its stormy part, ``kind`` its kind."""
    random = Random(f"plan {seed}")
    drawn = random.choices(list(KINDS), list(KINDS.values()))[0]
    kind = kind if kind is not None else drawn
    has_schemas, kind = kind in _WITH_SCHEMAS, _WITH_SCHEMAS.get(kind, kind)
    is_cluster = kind == "cluster"
    homes = ["north", "south"] if kind == "several" else ["broker"]
    if is_cluster:
        homes = [f"h{number}" for number in range(1, random.choice((4, 4, 5, 6)))]
    # Separate randomness for what only clusters have.
    own = Random(f"cluster {seed}")
    keeps_metadata = is_cluster and own.random() < _KEEPING_METADATA
    cuts_log = keeps_metadata and own.random() < 0.5
    wipes = keeps_metadata and own.random() < 0.3
    forgets = wipes and Random(f"forgets {seed}").random() < 0.7
    topics = [
        _draw_topic(random, index, CLUSTER if is_cluster else homes[index % len(homes)], kind)
        for index in range(max(len(homes), random.choice((1, 2, 2, 3))))
    ]
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
            consumers += _draw_subscription(random, topic, number, len(consumers))
    chores = _draw_chores(random, consumers)
    # Separate randomness: everything drawn above stays as it was.
    others = Random(f"others {seed}")
    upstream = [] if is_cluster else _draw_upstream(others, topics)
    consumers = [_draw_habits(others, each) for each in consumers]
    if is_cluster:  # the simulated clients of the upstream protocol look nothing up
        consumers = [each._replace(upstream=False) for each in consumers]
    chores += [
        ChorePlan("change-topic", f"q{index}", topic, others.choice((1.0, 5.0)))
        for index, topic in enumerate(topics)
        if others.random() < 0.15
    ]
    chosen = random.sample(sorted(FAULTS), random.randint(3, len(FAULTS)))
    faults = {name: FAULTS[name] for name in chosen}
    faults |= {name: weight for name, weight in SLOW_FAULTS.items() if others.random() < 0.3}
    if is_cluster:
        faults |= _draw_cluster_faults(own, keeps_metadata, wipes)
    if is_cluster and Random(f"joins {seed}").random() < 0.3:
        faults |= JOINS
    if keeps_metadata:
        faults.pop("metadata-trouble", None)  # they are as good as network, disks and clocks
    if wipes:
        # What belongs to a topic on a lost disk, and is a topic itself, may be there, too.
        consumers = [each._replace(poisons=frozenset(), policy=_without_poison(each.policy)) for each in consumers]
        chores = [each for each in chores if each.kind != "churn"]
    # In most clusters topics of durability `remote` get another owner when theirs dies.
    shared = is_cluster and Random(f"shared {seed}").random() < 0.75
    ends = ["drain", "kill", "power-loss"]
    if any(topic.message_ttl_s or topic.delays for topic in topics):
        faults.pop("clock-jump", None)  # what is early or late would be so by a clock that is wrong
    if kind == "damaged":
        faults |= {"flip": 4.0, "flip-object": 2.0} if random.random() < 0.5 else {"flip": 4.0}
    if kind == "moving":
        faults["move"] = random.choice((2.0, 5.0))
        ends.append("loss")
    return WorldPlan(
        seed=seed,
        configs={
            home: _draw_config(random, home, CLUSTER if is_cluster else home, homes if keeps_metadata else (), shared)
            for home in homes
        },
        topics=topics,
        producers=producers,
        consumers=consumers,
        chores=chores,
        faults=faults,
        fault_every_s=random.choice((1.0, 3.0, 8.0)),
        duration_s=duration_s or random.choice((15.0, 30.0, 60.0)),
        last_end=random.choice(ends),
        most_moves=5 if kind == "moving" else 0,
        like_sockets=random.random() < 0.8,
        upstream=upstream,
        # Of chance of its own: other worlds stay as they were.
        losses=not is_cluster and Random(f"losses {seed}").random() < 0.3,
        is_cluster=is_cluster,
        keeps_metadata=keeps_metadata,
        cuts_log=cuts_log,
        wipes=wipes,
        forgets=forgets,
        forgets_early=forgets and Random(f"forgets early {seed}").random() < 0.6,
        moves_every_s=_draw_moves(seed) if is_cluster else 0.0,
        drains_every_s=Random(f"drains {seed}").choice((0.0, 0.0, 4.0, 10.0)) if is_cluster else 0.0,
        restarts_s=(0.0, 0.05, 1.0, 5.0) if shared and Random(f"restarts {seed}").random() < 0.5 else (0.0, 0.05, 1.0),
        schema_users=_draw_schema_users(seed, topics, wipes=wipes) if has_schemas else (),
    )


def _draw_moves(seed: int) -> float:
    return Random(f"moves {seed}").choice((0.0, 0.5, 2.0, 5.0))


def _draw_schema_users(seed: int, topics: list[TopicPlan], *, wipes: bool) -> list[SchemaUserPlan]:
    kept = [topic for topic in topics if topic.durability is not Durability.NONE]
    # What they send would be gone with a lost disk.
    return draw_schema_users(Random(f"schemas {seed}"), (kept or topics)[0], sends=bool(kept) and not wipes)


def _draw_cluster_faults(random: Random, keeps_metadata: bool, wipes: bool) -> dict[str, float]:
    known = CLUSTER_FAULTS | (GROUP_FAULTS if keeps_metadata else {})
    chosen = random.sample(sorted(known), random.randint(2, len(known)))
    return {name: known[name] for name in chosen} | (WIPES if wipes else {})


def _without_poison(policy: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in policy.items() if name not in ("poison", "max_redelivery_count")}


def _draw_upstream(random: Random, topics: list[TopicPlan]) -> list[UpstreamPlan]:
    return [
        UpstreamPlan(
            name=f"p{index}u",
            topic=topic,
            producers=random.choice((1, 3, 10)),
            pause_s=random.choice((0.1, 0.5, 2.0)),
            crash_after_s=random.choice((8.0, 30.0, 1000.0)),
        )
        for index, topic in enumerate(topics)
        if random.random() < 0.2
    ]


def _draw_habits(random: Random, consumer: ConsumerPlan) -> ConsumerPlan:
    """Make some consumers acknowledge cumulatively, and others use the upstream protocol."""
    in_line = consumer.kind.traits.has_active
    cumulative, upstream = random.random() < 0.4, random.random() < 0.15
    return consumer._replace(cumulative=in_line and cumulative, upstream=upstream)


def _draw_topic(random: Random, index: int, home: str, kind: str) -> TopicPlan:
    weights = {Durability.DISK: 5, Durability.OS: 3, Durability.REMOTE: 2, Durability.NONE: 1}
    if kind == "cluster":
        weights |= {Durability.NONE: 3}
    durability = random.choices(list(weights), list(weights.values()))[0]
    if kind == "moving":
        durability = Durability.REMOTE
    lossy = durability is Durability.NONE
    return TopicPlan(
        name=f"/default/t{index}",
        durability=durability,
        partitions=random.choice((0, 0, 4) if kind == "cluster" else (0, 0, 2)),
        retention=Retention(max_bytes=100 * KIB) if random.random() < 0.25 and not lossy else Retention(),
        home=home,
        message_ttl_s=4.0 if random.random() < 0.1 and not lossy else 0.0,
        delays=random.random() < 0.2 and not lossy,
    )


def _draw_subscription(random: Random, topic: TopicPlan, number: int, first: int) -> list[ConsumerPlan]:
    kind = random.choice(list(SubscriptionType))
    count = 1 if kind.traits.single_consumer else random.choice((1, 2, 3))
    poison = random.choices(("", "block", "drop", "dead_letter", "changing"), (10, 2, 2, 3, 2))[0]
    policy: dict[str, Any] = {"redelivery_delay_s": random.choice((0.1, 1.0)), "max_redelivery_delay_s": 2.0}
    if poison:
        # Longer than it takes to find a dead connection: then it takes as many deliveries as failures.
        policy |= {"max_redelivery_count": 2, "ack_timeout_s": 20.0}
        policy["poison"] = "block" if poison == "changing" else poison
    takes_all = random.randrange(count)  # the index of the consumer that takes all keys
    filtered = kind.traits.wants_keys and random.random() < 0.4
    return [
        ConsumerPlan(
            name=f"c{first + index}",
            subscription=f"s{number}-{kind}",
            kind=kind,
            topic=topic,
            diligence=random.choice((1.0, 0.95, 0.8)),
            leave_after_s=random.choice((5.0, 20.0, 1000.0)),
            policy=policy,
            poisons=frozenset(PoisonPolicy)
            if poison == "changing"
            else frozenset({PoisonPolicy(policy["poison"])})
            if poison
            else frozenset(),
            filters=random.choice((("k?",), ("k1", "k2*"), ("*3", "p*"))) if filtered and index != takes_all else (),
            handling_s=random.choice((0.0, 0.0, 0.0, 5.0)),
            renews=random.random() < 0.5,
        )
        for index in range(count)
    ]


def _draw_chores(random: Random, consumers: list[ConsumerPlan]) -> list[ChorePlan]:
    kinds = [kind for kind in ("read", "seek", "change-policy", "churn") if random.random() < 0.25]
    chores: list[ChorePlan] = []
    for kind in kinds:
        consumer = random.choice(consumers)
        if kind in ("read", "seek", "change-policy") and consumer.topic.durability is Durability.NONE:
            continue
        chores.append(ChorePlan(kind, f"o{len(chores)}", consumer.topic, random.choice((1.0, 5.0)), consumer))
    return chores


def _draw_config(random: Random, home: str, cluster: str, neighbours: Sequence[str], shared: bool) -> BrokerConfig:
    file_size = 256 * KIB
    return BrokerConfig(
        listen=(f"{home}:{PORT}",),
        peers=",".join(f"{each}:{PORT}" for each in neighbours),
        cluster_secret="/simulated/secret" if cluster == CLUSTER else "",
        data_directory="/simulated",
        journal_file_size=file_size,
        cluster=cluster,
        storage="memory://bucket?shared=true" if shared else "memory://bucket",
        drain_timeout_s=random.choice((2.0, 10.0)),
        limits=Limits(
            max_message_bytes=16 * KIB,
            max_batch_bytes=64 * KIB,
            max_send_buffer_bytes=32 * KIB,
            max_send_buffer_bytes_per_connection=128 * KIB,
            max_send_buffer_bytes_in_all=512 * KIB,
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
            remote_commit_bytes=random.choice((16, 128)) * KIB,
            remote_snapshot_commits=random.choice((10, 100)),
            remote_stall_s=5.0,
        ),
        subscription_policy=SubscriptionPolicy(ack_timeout_s=ACK_TIMEOUT_S, max_redelivery_count=-1),
    )
