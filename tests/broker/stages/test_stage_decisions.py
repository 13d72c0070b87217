"""Decisions about staged batches, without a store and without topics."""

from __future__ import annotations

import msgspec
import pytest

from danube.broker.stages.decisions import (
    ProducerRecord,
    Share,
    aborted,
    addressed,
    claim,
    continued,
    former_commit,
    held_producers,
    inherited,
    losers,
    named_stages,
    stages_by_topic,
    topics_of,
)
from danube.broker.stages.format import StageEnd, StageHead
from danube.broker.stages.stored import StoredStage
from danube.log import ProducerSession
from danube.model.batch import encode_part, read_header
from danube.model.errors import DataLossError, FailedPreconditionError
from danube.model.stage_api import AbortStages, StageCommit, StageState

OPEN, STAGED, COMMITTING = StageState.OPEN, StageState.STAGED, StageState.COMMITTING


def stage(
    number: int, batch: int = 5, *, producer: str = "p", topic: str = "/d/a", state: str = STAGED, records: int = 1
) -> StoredStage:
    found = StoredStage(StageHead(number, topic, len(topic), producer, batch, "try", 0))
    found.state, found.end = state, StageEnd(1, records, 10 * records, 0)
    return found


def share(*stage_ids: int, base: int = 100) -> Share:
    return Share("/d/a", 4, 7, base, 1_000, list(stage_ids))


def record(batch: int, *shares: Share) -> ProducerRecord:
    return ProducerRecord(batch, 0, bool(shares), list(shares), {"/d/a": (1, 2)}, "run")


def ids(found: list[StoredStage]) -> list[int]:
    return [each.head.stage_id for each in found]


def test_a_batch_that_was_decided_is_not_decided_again() -> None:
    assert former_commit(None, 0) is None
    assert former_commit(record(4), 5) is None
    assert former_commit(record(5), 5) == StageCommit(False, {"/d/a": (1, 2)}, "run")
    assert former_commit(record(6), 5) == StageCommit(False, {}, "run"), "offsets are known of the last one only"


def test_stages_are_taken_in_the_order_in_which_they_are_named() -> None:
    table = {number: stage(number) for number in (1, 2, 3)}
    assert ids(named_stages("p", 5, [3, 1], table.get)) == [3, 1]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (None, "stage 0000000000000009 does not exist"),
        (stage(9, 6), "belongs to another batch"),
        (stage(9, producer="q"), "belongs to another batch"),
        (stage(9, state=OPEN), "is not finished"),
        (stage(9, state=COMMITTING), "is not finished"),
    ],
)
def test_nothing_is_committed_if_one_stage_is_wrong(wrong: StoredStage | None, why: str) -> None:
    table = {1: stage(1), 9: wrong}
    with pytest.raises(FailedPreconditionError, match=f"{why}.*; nothing was committed"):
        named_stages("p", 5, [1, 9], table.get)


def test_of_many_wrong_stages_some_are_named() -> None:
    with pytest.raises(FailedPreconditionError, match=r"000000000000000a does not exist.*, and 2 more; nothing"):
        named_stages("p", 5, range(1, 13), {}.get)


def test_empty_stages_have_no_share() -> None:
    found = stages_by_topic([stage(1, topic="/d/b"), stage(2), stage(3, records=0, topic="/d/c"), stage(4)])
    assert {key: ids(of_topic) for key, of_topic in found.items()} == {("/d/b", 4): [1], ("/d/a", 4): [2, 4]}


def test_stages_of_a_decided_batch_are_claimed_and_others_released() -> None:
    stages = [stage(1), stage(2, state=COMMITTING), stage(3, state=OPEN), stage(4, producer="q", state=COMMITTING)]
    claim(stages, "p", record(5, share(1)))
    assert [each.state for each in stages] == [COMMITTING, STAGED, OPEN, COMMITTING]
    claim(stages, "p", None)
    assert [each.state for each in stages] == [STAGED, STAGED, OPEN, COMMITTING]


def test_stages_that_no_later_commit_can_name_are_lost() -> None:
    stages = [stage(1, 4), stage(2, 5), stage(3, 6), stage(4, 5, state=COMMITTING), stage(5, 5, producer="q")]
    stages.append(stage(6, 5, state=OPEN))
    assert ids(losers(stages, "p", record(5))) == [1, 2, 6]


def session(next_sequence: int) -> ProducerSession:
    return ProducerSession(8, "staged/p", 3, next_sequence, exclusive=False, anonymous=True)


def test_a_share_continues_at_a_lower_sequence_after_a_power_loss() -> None:
    decided = share(1, base=100)
    assert continued(decided, None) is decided
    assert continued(decided, session(100)) is decided
    assert continued(decided, session(130)) is decided, "some of it is stored already"
    moved = continued(decided, session(90))
    assert (moved.base_sequence, moved.producer_id, moved.stage_ids) == (90, 8, [1])


def test_a_staged_part_gets_its_sender() -> None:
    part = encode_part([b"x"], producer_id=0, producer_epoch=0, base_sequence=0, publish_time_us=5)
    header = addressed(read_header(part), session(0), 77)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 3, 77)
    assert header.publish_time_us == 5


def test_an_abort_names_stages_or_a_write_or_all_of_a_batch() -> None:
    found = [stage(1), stage(2, state=OPEN), stage(3, state=COMMITTING), stage(4, 6), stage(5, producer="q")]
    found[1].head = msgspec.structs.replace(found[1].head, write_id="w")
    assert ids(aborted(found, AbortStages("p", 5, []))) == [1, 2]
    assert ids(aborted(found, AbortStages("p", 5, [1, 3, 4]))) == [1]
    assert ids(aborted(found, AbortStages("p", 5, [], "w"))) == [2]


def test_the_topics_of_a_producer_are_those_of_its_stages_and_of_its_last_commit() -> None:
    found = [stage(1, topic="/d/b"), stage(2, producer="q", topic="/d/c"), stage(3, producer="q", topic="/d/d")]
    assert topics_of(found, None, "p", [], "") == {"/d/b"}
    assert topics_of(found, None, "p", [2], "") == {"/d/b", "/d/c"}
    found[2].head = msgspec.structs.replace(found[2].head, write_id="w")
    assert topics_of(found, record(5), "r", [], "w") == {"/d/a", "/d/d"}
    assert topics_of([], msgspec.structs.replace(record(5, share(1)), offsets={}), "p", [], "") == {"/d/a"}


def test_the_last_decision_of_brokers_that_are_gone_counts_if_the_home_has_no_later_one() -> None:
    assert inherited("p", None, {}) is None
    left = {"b1": record(4), "b2": record(6), "b3": record(5)}
    assert inherited("p", None, left) is inherited("p", 5, left) is left["b2"]
    assert inherited("p", 6, left) is inherited("p", 7, left) is None
    left["b1"] = record(7, share(1), share(2))
    said = "batch 7 of producer 'p' was being committed by broker b1, .*(/d/a from offset 1000 on, /d/a from"
    with pytest.raises(DataLossError, match=said.replace("(", r"\(")):
        inherited("p", 6, left)
    assert inherited("p", 7, left) is None


def test_no_producer_is_forgotten_while_the_commits_of_others_are_not_known() -> None:
    fresh, old = held_producers({1}, {2}, 9.9, 10.0), held_producers({1}, {2}, 10.0, 10.0)
    assert [number in fresh for number in (1, 2, 3)] == [True, True, False]
    assert all(number in old for number in (1, 2, 3))
