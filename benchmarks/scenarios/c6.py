"""C6: a rolling restart of three brokers while clients publish and consume without a pause.

Each broker is drained, ended with SIGTERM, started again and activated, one after the other. What the clients reach
from the first drain until the last broker is active again is compared with what they reached right before.
"""

from __future__ import annotations

from benchmarks._machine import CpuWatch
from benchmarks._payloads import CheckError
from benchmarks._processes import Work
from benchmarks._run import READY_TIMEOUT_S, Run, Sample
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.cluster import Cluster, GroupServer

__all__ = ["SCENARIO"]

TOPICS = 6
WARM_UP_S = 3.0
UNDISTURBED_S = 20.0


def _work(run: Run, role: str, **settings: int | float | str) -> Work:
    work = run.work(role)
    work.role = f"moving.{role}"
    work.settings |= settings
    return work


def _repeat(run: Run) -> Sample:
    group = run.server
    assert isinstance(group, GroupServer)
    run.alone(_work(run, "create_few", topics=TOPICS))
    watch = CpuWatch()
    consumer = run.processes.worker(_work(run, "consume", topics=TOPICS))
    consumer.wait_for("ready", READY_TIMEOUT_S)
    undisturbed_s = max(2.0, UNDISTURBED_S * run.scale)
    producer = run.processes.worker(
        _work(run, "publish", topics=TOPICS, warm_up_s=min(WARM_UP_S, undisturbed_s), undisturbed_s=undisturbed_s)
    )
    producer.wait_for("ready", READY_TIMEOUT_S)
    for worker in (consumer, producer):
        worker.send(b"go")
    producer.wait_for("holding", run.result_timeout_s)
    for number, port in enumerate(group.ports):
        broker = f"127.0.0.1:{port}"
        run.alone(_work(run, "empty", broker=broker))
        group.restart(number)
        run.alone(_work(run, "activate", broker=broker))
    producer.send(b"go on")
    sent = producer.outcome(run.result_timeout_s)
    received = consumer.outcome(run.result_timeout_s)
    errors = sent.values["errors"] + received.values["errors"]
    if not errors and received.count != sent.count:
        raise CheckError(f"{sent.count} messages were acknowledged, and {received.count} arrived")
    run.alone(run.work("settle"))
    return Sample(sent.count, {**sent.values, **received.values, "errors": errors}, load_1m=watch.load_1m)


SCENARIO = Scenario(
    name="c6",
    title=(
        f"Rolling restart (drain, restart, activate, one by one) of three brokers on one machine, while {TOPICS} topics"
        " of durability disk are published to and consumed without a pause: errors of the clients, throughput during "
        "the restarts, its share of the undisturbed one right before, and the longest time that a producer waited"
    ),
    metrics=("errors", "share", "messages_per_s", "undisturbed_per_s", "longest_wait_s", "restarts_s", "repeated"),
    arms=(
        Arm(
            "cluster",
            0,
            100,
            f"{TOPICS} producers: send_many; {TOPICS} exclusive consumers: batches(), batch.ack()",
            _repeat,
            label="danube",
            server=Cluster(shared=True),
        ),
    ),
    targets=(
        Target("c6", "errors", 0, at_least=False),
        Target("c6", "share", 0.7),
    ),
    repetitions_limit=3,
    usual=False,
    warm_up=False,
)
