"""The capabilities matrix: for each dispatch, topic and subscription what is persisted, in which order, how often.

=============  ===========  ==================  =========  =============  =============
dispatch       topic        subscription        persisted  order          delivery
=============  ===========  ==================  =========  =============  =============
non-reliable   plain        exclusive/failover  no         yes            at most once
                            shared              no         no             at most once
                            key_shared          no         per key        at most once
               partitioned  exclusive/failover  no         per partition  at most once
                            shared              no         no             at most once
                            key_shared          no         per key        at most once
reliable       plain        exclusive/failover  yes        yes            at least once
                            shared              yes        no             at least once
                            key_shared          yes        per key        at least once
               partitioned  exclusive/failover  yes        per partition  at least once
                            shared              yes        no             at least once
                            key_shared          yes        per key        at least once
=============  ===========  ==================  =========  =============  =============

A topic is non-reliable if its durability is ``none``. Each cell is a test of its own, against a broker in a process of
its own, which was killed (SIGKILL) and started again after the first third of the messages was published.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import trio
from brokers import BrokerProcess
from consumer_groups import Group, Seen, backlog, by_key, by_partition, consumer_group, numbers, publish

import danube
from danube.model.errors import SubscriptionBusyError

DISPATCH = {"non-reliable": "none", "reliable": "disk"}
TOPIC = {"plain": 0, "partitioned": 3}
SUBSCRIPTION = ("exclusive", "failover", "shared", "key_shared")
CELLS = list(itertools.product(DISPATCH, TOPIC, SUBSCRIPTION))

COUNT = 60
BEFORE, MEANWHILE, AFTER = (range(first, first + COUNT) for first in (0, COUNT, 2 * COUNT))
"""Published before the restart; with all consumers; after the loss of one (in reliable topics: together with these)."""
ACK_TIMEOUT_S = 0.3


def topic_of(cell: tuple[str, str, str]) -> str:
    return f"/default/{'-'.join(cell)}"


async def store_backlogs(url: str) -> None:
    """Subscribe, and publish the first messages while no consumer is there."""
    async with danube.connect(url) as client:

        async def store(cell: tuple[str, str, str]) -> None:
            dispatch, kind_of_topic, kind = cell
            topic = topic_of(cell)
            await client.admin.create_topic(topic, partitions=TOPIC[kind_of_topic], durability=DISPATCH[dispatch])
            async with client.consumer(topic, subscription="s", type=kind, start="earliest"):
                pass
            await publish(client, topic, BEFORE.start, COUNT)

        async with trio.open_nursery() as nursery:
            for cell in CELLS:
                nursery.start_soon(store, cell)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("capabilities") / "data"
    with BrokerProcess(directory, "--journal-file-size", "16MiB", "--log-level", "warning") as process:
        trio.run(store_backlogs, process.url)
        process.kill()
        process.start()
        yield process


@pytest.mark.parametrize(("dispatch", "topic", "subscription"), CELLS)
async def test_capability(broker: BrokerProcess, dispatch: str, topic: str, subscription: str) -> None:
    cell = (dispatch, topic, subscription)
    with trio.fail_after(20):
        async with consumer_group(broker.url, topic_of(cell), "s", subscription) as group:
            if dispatch == "reliable":
                await persisted_and_at_least_once(broker.url, group, subscription)
            else:
                await not_persisted_and_at_most_once(broker.url, group, subscription)


async def persisted_and_at_least_once(url: str, group: Group, kind: str) -> None:
    """Consumer ``a`` acknowledges half of what it takes, and is lost; others take what is left."""
    await group.join("a", take=20, acks=10, credit_messages=10)
    await group.until(lambda it: len(it.seen) == 20)  # persisted: the later consumer has what the killed broker got
    if kind != "exclusive":
        await group.join("b")
        await group.join("c")
    async with danube.connect(url) as client:
        await publish(client, group.topic, MEANWHILE.start, 2 * COUNT, keys=24)  # half of the keys are new: a has none
        if kind in ("shared", "key_shared"):
            await group.until(lambda it: len(it.seen) > 20)
        else:
            await check_there_is_one(client, group, kind)
            assert group.seen_by("b", "c") == []
        await group.lose("a")
        if kind == "exclusive":
            await group.join("b")
        await group.until(lambda it: len(it.acked) >= 3 * COUNT)
        await group.flush()
        assert await backlog(client, group.topic, "s") == 0

    everything = [*BEFORE, *MEANWHILE, *AFTER]
    assert sorted(numbers(group.acked)) == everything  # persisted: it is all there; and none was there too often
    mine, others = group.seen_by("a"), group.seen_by("b", "c")
    acked_by_a = {one.number for one in group.acked if one.consumer == "a"}
    again = {one.number: one.attempt for one in others if one.number in set(numbers(mine))}
    # At least once: what one consumer had and did not acknowledge comes again to another, and nothing else does.
    assert set(again) == set(numbers(mine)) - acked_by_a
    assert len(again) == 10
    assert min(again.values()) >= 2
    match kind:
        case "exclusive" | "failover":
            assert len({one.consumer for one in others}) == 1
            in_order = by_partition(group.acked)
            assert in_order == {partition: sorted(found) for partition, found in in_order.items()}
            assert_growing(by_partition(mine), by_partition(others))
        case "key_shared":
            assert_growing(by_key(mine), by_key(others), by_key(group.acked))
        case "shared":
            assert {one.consumer for one in group.seen} == {"a", "b", "c"}


async def not_persisted_and_at_most_once(url: str, group: Group, kind: str) -> None:
    """Without acknowledgements, a consumer is lost and the ack timeout passes: nothing is redelivered."""
    await group.join("a", acks=0)
    if kind != "exclusive":
        await group.join("b", acks=0)
        await group.join("c", acks=0)
    async with danube.connect(url) as client:
        await client.admin.change_subscription_policy(
            group.topic, "s", ack_timeout_s=ACK_TIMEOUT_S, redelivery_delay_s=0.0, max_redelivery_count=-1
        )
        await publish(client, group.topic, MEANWHILE.start, COUNT)
        await group.until(lambda it: len(it.seen) >= COUNT)
        if kind in ("exclusive", "failover"):
            await check_there_is_one(client, group, kind)
        await group.lose("a")
        if kind == "exclusive":
            await group.join("b", acks=0)
        await publish(client, group.topic, AFTER.start, COUNT)
        await group.until(lambda it: len(it.seen) >= 2 * COUNT)
        await trio.sleep(1.5 * ACK_TIMEOUT_S)
        assert await backlog(client, group.topic, "s") == 0

    # Not persisted: nothing of what was published before the first consumer came. At most once: nothing comes again.
    assert sorted(numbers(group.seen)) == [*MEANWHILE, *AFTER]
    assert {one.attempt for one in group.seen} == {1}
    lost_with_a = set(numbers(group.seen_by("a")))
    assert lost_with_a
    assert lost_with_a <= set(MEANWHILE)
    match kind:
        case "exclusive" | "failover":
            assert lost_with_a == set(MEANWHILE)
            assert_growing(by_partition(group.seen))
        case "key_shared":
            assert_growing(by_key(group.seen))
            for published in (MEANWHILE, AFTER):
                owners = {(one.key, one.consumer) for one in group.seen if one.number in published}
                assert len(owners) == len(by_key(group.seen))  # one for each key, as long as they stay the same
                assert len({owner for _, owner in owners}) > 1
        case "shared":
            assert {one.consumer for one in group.seen} == {"a", "b", "c"}


async def check_there_is_one(client: danube.Client, group: Group, kind: str) -> None:
    """Check that only one consumer gets messages: the others are refused, or stand by."""
    if kind == "failover":
        assert [name for name, consumer in group.consumers.items() if consumer.active] == ["a"]
    else:
        with pytest.raises(SubscriptionBusyError):
            async with client.consumer(group.topic, subscription="s"):
                pass


def assert_growing(*found: dict[int, list[int]] | dict[str | None, list[int]]) -> None:
    """Check that the numbers of each partition, or of each key, grow."""
    for groups in found:
        for name, given in groups.items():
            assert given == sorted(set(given)), f"{name}: {given}"


def test_growing_is_noticed() -> None:
    seen = [Seen("a", number, "k", 0, 1) for number in (1, 3, 2)]
    for found in (by_key(seen), by_partition(seen)):
        with pytest.raises(AssertionError):
            assert_growing(found)
