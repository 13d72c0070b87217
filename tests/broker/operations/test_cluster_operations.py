"""The status of the cluster and explanations, at a broker whose metadata have another member."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from broker.broker_harness import RunningBroker, running_broker, wait_until

from danube.cluster.asking import AskFigures, AskTopics, FiguresTold, TopicsTold, TopicTold, decode_question, encode
from danube.cluster.features import FEATURE_LEVEL
from danube.cluster.records import (
    ASSIGNMENTS,
    BROKERS,
    CLUSTER_KEY,
    SESSIONS,
    Assignment,
    BrokerRecord,
    BrokerState,
    SessionRecord,
    topic_key,
)
from danube.model.cluster_api import BrokerFigures, Upgraded
from danube.model.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from danube.model.ids import BrokerId, OwnerEpoch, TopicId

pytestmark = pytest.mark.virtual

ELSEWHERE = "b2.example.org:6650"
pack = msgspec.msgpack.encode


class OtherBroker:
    """The links of a broker to another one that is only in the metadata."""

    def __init__(self, running: RunningBroker) -> None:
        self.running = running
        self.served = True
        self.silent = False
        self.late_s = 0.0
        running.broker.peers = self

    async def join(self) -> None:
        store = self.running.broker.metadata
        await store.put(BROKERS + "b2", pack(BrokerRecord(identity="other", life=3)))
        self.session = await store.put(SESSIONS + "b2", pack(SessionRecord(address=ELSEWHERE, version="0.9")))
        await self.until(lambda member: "b2" in member.sessions.values)

    async def leave(self) -> None:
        await self.running.broker.metadata.delete(SESSIONS + "b2")
        await self.until(lambda member: "b2" not in member.sessions.values)

    async def own(self, topic: str) -> TopicId:
        """Give it a topic of the broker."""
        store, catalogue = self.running.broker.metadata, self.running.broker.directory.catalogue
        topic_id = TopicId(catalogue.locate(topic)[1])
        await store.put(ASSIGNMENTS + topic_key(topic_id), pack(Assignment(BrokerId(2), OwnerEpoch(7))))
        await self.until(lambda member: member.assignments.values[topic_key(topic_id)].owner == 2)
        return topic_id

    async def until(self, condition) -> None:
        member = self.running.broker.directory.catalogue.membership
        await wait_until(lambda: condition(member))

    async def call(self, to: str, channel: str, payload: bytes, timeout_s: float) -> bytes:
        assert to == ELSEWHERE
        await trio.sleep(self.late_s)
        if self.silent:
            raise DeadlineExceededError("no answer within 1.5 s")
        match decode_question(payload):
            case AskFigures():
                now_us = self.running.broker.runtime.clock_us()
                figures = BrokerFigures(
                    broker=2,
                    version="0.9",
                    feature_level=1,
                    uptime_s=1.0,
                    time_us=now_us + 3_000_000,
                    topics=1,
                    session=self.session,
                )
                return encode(FiguresTold(figures))
            case AskTopics(topics):
                return encode(TopicsTold([TopicTold(self.served, "", 17) for _ in topics]))


async def test_a_broker_alone_describes_itself(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/a", partitions=3)
        found = await client.admin.cluster_status()
        (row,) = found.brokers
        assert (row.name, row.state, row.topics, row.life, found.broker) == ("b1", "active", 3, 1, 1)
        figures = row.figures
        assert figures is not None
        assert (figures.topics, figures.session, figures.session_certain) == (3, row.session, True)
        assert figures.journal_limit_bytes > figures.journal_used_bytes > 0
        assert [face.storage for face in figures.storages] == ["default"]
        explained = await client.admin.cluster_explain("/default/a")
        assert explained.sentence == "All 3 partitions are served, by 1 broker."
        assert [place.state for place in explained.topics] == ["served"] * 3
        assert (await client.admin.cluster_explain("b1")).state == "active"
        with pytest.raises(NotFoundError, match="its brokers are b1"):
            await client.admin.cluster_explain("b2")
        with pytest.raises(NotFoundError):
            await client.admin.cluster_explain("/default/missing")


async def test_other_brokers_are_asked(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/a")
        other = OtherBroker(running)
        await other.join()
        await other.own("/default/a")
        other.late_s = 0.25
        row = (await client.admin.cluster_status()).brokers[1]
        assert (row.name, row.address, row.state, row.topics) == ("b2", ELSEWHERE, "active", 1)
        assert row.rtt_s == pytest.approx(0.25, abs=0.01)
        assert row.clock_offset_s == pytest.approx(3.125, abs=0.01)
        assert (await client.admin.cluster_status(gather=False)).brokers[1].figures is None
        found = await client.admin.cluster_explain("/default/a")
        assert (found.state, found.topics[0].broker, found.topics[0].sealed_end) == ("served", 2, 17)


async def test_a_broker_with_an_older_version_holds_the_upgrade_back(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        assert await client.admin.upgrade_cluster() == Upgraded(FEATURE_LEVEL, FEATURE_LEVEL)
        store = running.broker.metadata
        item = await store.get(CLUSTER_KEY)
        member = running.broker.directory.catalogue.membership
        lowered = msgspec.structs.replace(member.cluster, feature_level=1)
        await store.put(CLUSTER_KEY, pack(lowered), expected_revision=item.mod_revision)
        member.cluster = lowered  # it never falls by itself
        other = OtherBroker(running)
        await other.join()
        with pytest.raises(FailedPreconditionError, match="stays 1: b2 knows level 1, and others know level 2"):
            await client.admin.upgrade_cluster()
        held = [each for each in (await client.admin.cluster_status()).warnings if "feature level" in each]
        assert "b2 (level 1) holds it back" in held[0]
        await other.leave()
        with pytest.raises(FailedPreconditionError, match="b2 knows level 1 and is away"):
            await client.admin.upgrade_cluster()
        await store.put(BROKERS + "b2", pack(BrokerRecord(identity="other", state=BrokerState.GONE)))
        await other.until(lambda member: member.brokers.values["b2"].state is BrokerState.GONE)
        warned = [each for each in (await client.admin.cluster_status()).warnings if "feature level" in each]
        assert "all brokers know level 2: it rises by itself an hour after" in warned[0]
        assert await client.admin.upgrade_cluster() == Upgraded(2, 1)
        assert member.may_move()
        assert (await client.admin.cluster_status()).feature_level == 2
        assert not [each for each in (await client.admin.cluster_status()).warnings if "feature level" in each]


async def test_one_that_does_not_answer_is_marked(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/a")
        other = OtherBroker(running)
        await other.join()
        await other.own("/default/a")
        other.silent = True
        found = await client.admin.cluster_status()
        assert (found.brokers[1].state, found.brokers[1].problem) == ("silent", "no answer within 1.5 s")
        explained = await client.admin.cluster_explain("/default/a")
        assert explained.state == "unknown"
        assert "no answer within 1.5 s" in explained.sentence


async def test_topics_wait_for_a_broker_that_is_away(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/a", durability="disk")
        async with client.producer("/default/a") as producer:
            await producer.send(b"x")
        await client.admin.seal_topic("/default/a")
        other = OtherBroker(running)
        await other.join()
        await other.own("/default/a")
        await other.leave()
        await trio.sleep(12)
        found = await client.admin.cluster_status()
        assert (found.brokers[1].state, round(found.brokers[1].away_s)) == ("away", 12)
        assert [(each.broker, each.count, each.topics) for each in found.waiting] == [(2, 1, ["/default/a"])]
        explained = await client.admin.cluster_explain("/default/a")
        assert (
            f"waits for broker b2 at {ELSEWHERE}, whose disk holds its messages from offset 1 on" in explained.sentence
        )
        assert explained.sentence.endswith(": b2 has had no session for 12 s.")
        broker = await client.admin.cluster_explain("b2")
        assert (broker.state, [place.topic for place in broker.topics]) == ("away", ["/default/a"])


async def test_a_topic_that_stores_nothing_is_not_served_without_metadata(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/n", durability="none")
        assert (await client.admin.cluster_explain("/default/n")).state == "served"
        running.broker.directory.membership._session_clock.end()
        found = await client.admin.cluster_explain("/default/n")
        assert found.state == "unavailable"
        assert "the metadata do not answer this broker" in found.sentence


async def test_the_metadata_are_not_waited_for_again_and_again(tmp_path: Path, monkeypatch) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/a", partitions=8, durability="disk")
        other = OtherBroker(running)
        await other.join()
        for number in range(8):
            await other.own(f"/default/a-part-{number}")
        await other.leave()

        async def silent(prefix: str) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(running.broker.metadata, "list", silent)
        began = trio.current_time()
        assert (await client.admin.cluster_explain("/default/a")).state == "waiting"
        assert trio.current_time() - began < 2


async def test_questions_of_other_brokers(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/a")
        operations = running.broker.operations.cluster
        peer = None
        told = msgspec.msgpack.decode(await operations.answer(peer, encode(AskTopics(["/default/a", "/default/b"]))))
        assert [each[0] for each in told[1]] == [True, False]
        assert "does not exist" in told[1][1][1]
        with pytest.raises(InvalidArgumentError, match="does not know what was asked"):
            await operations.answer(peer, pack([99]))
