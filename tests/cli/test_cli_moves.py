"""What the commands print that move topics between brokers."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from cluster.cluster_views import status, told, whole
from trio.testing import MockClock
from typer.testing import CliRunner

from danube.cli import _moving as moving_module
from danube.cli import cluster as cluster_module
from danube.cli.app import app
from danube.cluster.records import MoveReason, MoveRecord, topic_key
from danube.model.cluster_api import BalancePlan, BrokerDrain, BrokerLoadRow, Forgotten, MoveRow, StayingTopic
from danube.model.ids import BrokerId, TopicId

WHY = "its history is in the storage 'default' of b2, which other brokers cannot reach"


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the commands get one answer after the other without a broker."""

    def answer(*results: Any) -> None:
        left = list(results)
        for module in (moving_module, cluster_module):
            monkeypatch.setattr(module, "run_with_client", lambda work, url, context: left.pop(0))

    return answer


def printed(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, done.output
    return done.stdout


def drained(topics: int = 3, **parts: Any) -> BrokerDrain:
    return BrokerDrain(broker=2, name="b2", **{"state": "draining", "topics": topics, **parts})


def test_a_drain_says_how_far_it_is(answered: Any) -> None:
    answered(drained(moving=2))
    assert printed("cluster", "drain", "b2") == "b2 is draining and owns 3 topics, 2 of them ordered to move\n"
    answered(drained(0))
    assert printed("cluster", "drain", "b2", "--dry-run") == "b2 is draining and owns no topics\n"
    answered(drained(1))
    assert json.loads(printed("cluster", "drain", "b2", "-o", "json"))["topics"] == 1
    answered(drained(1))
    assert printed("cluster", "drain", "b2", "-o", "raw") == "b2\tdraining\t1\t0\t0\n"
    answered(drained(state="active"))
    assert printed("cluster", "activate", "b2") == "b2 is active and owns 3 topics\n"


def test_what_stays_is_named_and_ends_the_command_with_1(answered: Any) -> None:
    stays = drained(3, staying=3, named=[StayingTopic("/default/t", WHY)])
    answered(drained(), stays)
    assert printed("cluster", "drain", "b2", "--wait", code=1) == (
        f"b2 is draining and owns 3 topics\n! 3 topics cannot move:\n  /default/t: {WHY}\n  ... and 2 more\n"
    )
    answered(drained(), drained(0))
    assert printed("cluster", "drain", "b2", "--wait") == "b2 is draining and owns no topics\n"
    answered(drained(3, problem="b2 does not run: what it has is on its disk"))
    assert "! b2 does not run" in printed("cluster", "drain", "b2")


async def test_a_drain_is_waited_for_although_a_broker_does_not_answer_once(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = drained(problem="b2 does not answer: no answer within 1.5 s")

    async def waited(*answers: BrokerDrain) -> BrokerDrain:
        left = list(answers)

        async def drain_broker(name: str, *, dry_run: bool) -> BrokerDrain:
            assert (name, dry_run) == ("b2", True)
            return left.pop(0)

        client: Any = SimpleNamespace(admin=SimpleNamespace(drain_broker=drain_broker))
        return await moving_module._wait(client, left.pop(0))

    over = drained(0)
    assert await waited(drained(), silent, drained(moving=1), *[silent] * 9, drained(), silent, over) is over
    began = trio.current_time()
    assert (await waited(*[silent] * 100)).problem == silent.problem
    assert trio.current_time() - began == 10
    assert capsys.readouterr().err.splitlines()[:3] == [
        "b2: 3 topics left",
        "b2: 3 topics left, 1 moving",
        "b2: 3 topics left",
    ]


def move(number: int, **parts: Any) -> MoveRow:
    return MoveRow(topic=f"/default/p-part-{number}", source=1, target=2, reason="asked", **parts)


def test_moves_are_shown(answered: Any) -> None:
    for command in ("cluster", "topics"):
        answered([move(0)])
        line = "/default/p-part-0 is ordered to move from b1 to b2\n"
        assert printed("cluster", "move", "/default/p-part-0", "b2") == line, command
    answered([])
    assert printed("cluster", "move", "/default/p", "b2") == "all partitions of /default/p are on b2 already\n"
    answered([move(0), move(1, problem="it is away")])
    assert printed("cluster", "move", "/default/p", "b2", code=1).splitlines() == [
        "topic              from  to  reason  problem",
        "/default/p-part-0  b1    b2  asked   -",
        "/default/p-part-1  b1    b2  asked   it is away",
    ]


def test_a_plan_is_printed_with_its_reasons(answered: Any) -> None:
    rows = [
        BrokerLoadRow(
            broker=number,
            load=load,
            after=0.5,
            topics=topics,
            in_bytes_s=0.0,
            out_bytes_s=2048.0,
            cpu=0.25,
            journal_share=0.01,
        )
        for number, load, topics in ((1, 1.0, 2), (2, 0.0, 0))
    ]
    plan = BalancePlan(automatic=True, brokers=rows, moves=[move(0, why="b1 has 100% of the topics, b2 0%")])
    answered(plan)
    assert printed("cluster", "balance", "--dry-run").splitlines() == [
        "broker  load  after  topics  in/s  out/s    cpu  disk",
        "b1      100%  50%         2  0 B   2.0 KiB  25%  1%",
        "b2      0%    50%         0  0 B   2.0 KiB  25%  1%",
        "",
        "topic              from  to  reason",
        "/default/p-part-0  b1    b2  b1 has 100% of the topics, b2 0%",
        "1 topic would be ordered to move",
    ]
    plan.moves, plan.silent = [], ["b3: it does not answer"]
    answered(plan)
    assert printed("cluster", "balance").splitlines()[-2:] == [
        "! left out: b3: it does not answer",
        "nothing to move: the load is even, or no topic fits",
    ]


def test_the_status_shows_what_moves(answered: Any) -> None:
    order = MoveRecord(move=1, target=BrokerId(2), target_session=12, assignment=1, reason=MoveReason.DRAIN)
    answered(status(whole(moves={topic_key(TopicId(1)): order}), told(1, 2, 3)))
    lines = printed("cluster", "status").splitlines()
    assert lines[0].endswith(" · 1 moving")
    assert [line.rsplit("  ", 1)[1].strip() for line in lines[1:5]] == ["moves", "1 leaving", "1 arriving", "-"]


def test_forget_says_that_a_vote_could_not_be_taken_away(answered: Any) -> None:
    told_well = Forgotten(broker=3, name="b3", accepted=True)
    told_busy = Forgotten(broker=3, name="b3", accepted=True, member_problem="the leader is busy; try again")
    answered(told_well, told_busy)
    gone = "broker b3 is gone: it may not join again. 0 topics of its disk went on elsewhere\n"
    assert printed("cluster", "forget", "b3", "--accept-loss") == gone
    assert printed("cluster", "forget", "b3", "--accept-loss") == (
        f"{gone}! it still counts as one that keeps the metadata: the leader is busy; try again; repeat the command\n"
    )
