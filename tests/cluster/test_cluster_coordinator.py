"""The coordinator: each rule directed, and a cluster that converges whatever was missed, refused or repeated."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from danube.cluster.balance import Move
from danube.cluster.conditions import assign_conditions, grouped
from danube.cluster.coordinator import (
    GARBAGE_AGE_S,
    AssignedTopic,
    AssignTopic,
    DeleteAssignment,
    DeleteObject,
    Departing,
    Garbage,
    GiveUpCreation,
    OrderedMove,
    OrderMove,
    Picture,
    PicturedTopic,
    WithdrawMove,
    decide,
    waiting,
)
from danube.cluster.placement import Candidate
from danube.cluster.records import Assignment, BrokerState, CreatingRecord, MoveReason, MoveRecord, Reason
from danube.model import Durability
from danube.model.ids import BrokerId, OwnerEpoch, TopicId
from danube.model.limits import Limits

B1, B2, B3 = BrokerId(1), BrokerId(2), BrokerId(3)
T1, T2 = TopicId(1), TopicId(2)
DURABLE = (Durability.OS, Durability.DISK, Durability.REMOTE)


def topic(durability: Durability = Durability.NONE) -> PicturedTopic:
    return PicturedTopic("/default/t", durability, 40)


def assigned(owner: BrokerId, epoch: int = 1, revision: int = 50) -> AssignedTopic:
    return AssignedTopic(Assignment(owner, OwnerEpoch(epoch)), revision)


def assign(topic_id: TopicId, owner: BrokerId, epoch: int, reason: Reason, **more: Any) -> AssignTopic:
    return AssignTopic(
        topic_id=topic_id,
        topic="/default/t",
        record_revision=40,
        assignment=Assignment(owner, OwnerEpoch(epoch), reason),
        **more,
    )


def picture(**parts: Any) -> Picture:
    sessions = parts.pop("sessions", {B1: 101, B2: 102})
    candidates = parts.pop("candidates", {broker: Candidate(broker=broker) for broker in sessions})
    return Picture(**{"topics": {}, "assignments": {}, "sessions": sessions, "candidates": candidates, **parts})


def test_a_calm_cluster_needs_nothing() -> None:
    calm = picture(topics={T1: topic(), T2: topic(Durability.DISK)}, assignments={T1: assigned(B1), T2: assigned(B2)})
    assert decide(calm, 0.0) == []
    assert waiting(calm) == {}


def test_a_topic_without_durability_gets_another_owner() -> None:
    dead = picture(topics={T1: topic()}, assignments={T1: assigned(B3, epoch=7)})
    assert decide(dead, 0.0) == [assign(T1, B1, 8, Reason.FAILOVER, revision=50, session=101, former=B3)]


def test_partitions_of_a_dead_broker_are_spread_over_racks_first() -> None:
    """b3 and b4 are in one rack; b1 has no partition, but its rack has: b2 is in it."""
    b4 = BrokerId(4)
    sessions = {each: 100 + each for each in (B1, B2, b4)}
    spread = {B2: 2, B3: 2}
    dead = picture(
        sessions=sessions,
        topics={TopicId(n): PicturedTopic(f"/default/p-part-{n}", Durability.NONE, 40, spread) for n in range(2)},
        assignments={TopicId(n): assigned(B3) for n in range(2)},
        candidates={
            B1: Candidate(broker=B1, rack="x"),
            B2: Candidate(broker=B2, rack="x"),
            b4: Candidate(broker=b4, rack="y", topics=50),
        },
        racks={B1: "x", B2: "x", B3: "y", b4: "y"},
    )
    owners = [action.assignment.owner for action in decide(dead, 0.0) if isinstance(action, AssignTopic)]
    assert owners == [b4, b4]


def test_topics_of_a_dead_broker_are_spread_by_load() -> None:
    topics = {TopicId(n): topic() for n in range(1, 11)}
    dead = picture(
        topics=topics,
        assignments={topic_id: assigned(B3) for topic_id in topics},
        candidates={B1: Candidate(broker=B1, topics=6), B2: Candidate(broker=B2)},
    )
    owners = [action.assignment.owner for action in decide(dead, 0.0) if isinstance(action, AssignTopic)]
    assert (owners.count(B1), owners.count(B2)) == (2, 8)


def test_a_broker_whose_load_is_unknown_may_get_topics() -> None:
    dead = picture(topics={T1: topic()}, assignments={T1: assigned(B3)}, sessions={B2: 5}, candidates={})
    assert [action.assignment.owner for action in decide(dead, 0.0) if isinstance(action, AssignTopic)] == [B2]
    assert waiting(dead) == {}


def test_topics_with_durability_wait_for_their_broker() -> None:
    for durability in DURABLE:
        dead = picture(topics={T1: topic(durability), T2: topic(durability)}, assignments={T1: assigned(B3)})
        assert decide(dead, 0.0) == []
        assert waiting(dead) == {B3: [T1], None: [T2]}


def test_a_topic_without_an_assignment_gets_the_first_epoch_of_its_cluster() -> None:
    new = picture(topics={T1: topic()}, epoch_base=2**32)
    assert decide(new, 0.0) == [assign(T1, B1, 2**32 + 1, Reason.CREATED, revision=0, session=101, former=None)]


def test_topics_wait_while_no_broker_may_take_them() -> None:
    draining = {B1: Candidate(broker=B1, state=BrokerState.DRAINING)}
    none_may = picture(
        topics={T1: topic(), T2: topic()}, assignments={T1: assigned(B3)}, sessions={B1: 1}, candidates=draining
    )
    assert decide(none_may, 0.0) == []
    assert waiting(none_may) == {None: [T1, T2]}


def test_a_creation_ends_with_the_session_that_began_it() -> None:
    creation = CreatingRecord(creator=B1, session=101, topic_ids=(T1, T2))
    parts = {"creating": {"/default/t": (creation, 60)}, "assignments": {T1: assigned(B2)}}
    assert decide(picture(**parts), 0.0) == []
    for sessions in ({B2: 102}, {B1: 300, B2: 102}):
        assert decide(picture(**parts, sessions=sessions), 0.0) == [GiveUpCreation("/default/t", 60)]


def test_an_assignment_without_a_topic_is_deleted() -> None:
    assert decide(picture(assignments={T1: assigned(B1)}), 0.0) == [DeleteAssignment(T1, 50)]


def test_garbage_is_deleted_when_it_is_old_enough() -> None:
    object_ = Garbage("default", "segments/1", 1000.0, 70)
    littered = picture(garbage=(object_,))
    assert decide(littered, 1000.0 + GARBAGE_AGE_S - 0.001) == []
    assert decide(littered, 1000.0 + GARBAGE_AGE_S) == [DeleteObject("default", "segments/1", 70)]


def test_the_work_of_a_call_is_bounded_and_the_rest_follows() -> None:
    topics = {TopicId(n): topic() for n in range(1, 101)}
    dead = picture(topics=topics, assignments={topic_id: assigned(B3) for topic_id in topics})
    assert len(decide(dead, 0.0, most=30)) == 30
    assert len(decide(dead, 0.0)) == 100
    littered = picture(garbage=tuple(Garbage("s", str(n), 0.0, n) for n in range(1_001)))
    assert len(decide(littered, 60.0)) == 1_000
    assert decide(littered, 59.9) == []


def test_topics_come_before_garbage() -> None:
    both = picture(topics={T1: topic()}, assignments={}, garbage=(Garbage("s", "o", 0.0, 1),))
    assert [type(action) for action in decide(both, 1e6)] == [AssignTopic, DeleteObject]


@given(
    st.lists(st.tuples(st.sampled_from(list(Durability)), st.integers(1, 4)), max_size=20), st.sets(st.integers(1, 4))
)
def test_each_topic_is_served_acted_upon_or_waits(drawn: list[tuple[Durability, int]], alive: set[int]) -> None:
    topics = {TopicId(n): topic(durability) for n, (durability, _) in enumerate(drawn, 1)}
    assignments = {TopicId(n): assigned(BrokerId(owner)) for n, (_, owner) in enumerate(drawn, 1)}
    seen = picture(topics=topics, assignments=assignments, sessions={BrokerId(n): 100 + n for n in alive})
    acted = {action.topic_id for action in decide(seen, 0.0) if isinstance(action, AssignTopic)}
    waits = {topic_id for each in waiting(seen).values() for topic_id in each}
    served = {topic_id for topic_id, each in assignments.items() if each.assignment.owner in seen.sessions}
    assert sorted([*acted, *waits, *served]) == sorted(topics), "each in exactly one of them"


class ClusterMachine(RuleBasedStateMachine):
    """A store with revisions; actions are refused when their conditions fail; pictures may be old."""

    def __init__(self) -> None:
        super().__init__()
        self.revision = 100
        self.topics: dict[TopicId, PicturedTopic] = {}
        self.assignments: dict[TopicId, AssignedTopic] = {}
        self.sessions: dict[BrokerId, int] = {}
        self.creating: dict[str, tuple[CreatingRecord, int]] = {}
        self.epochs: dict[TopicId, int] = {}
        self.next_topic = 1
        self.old: Picture | None = None

    def picture(self) -> Picture:
        return Picture(
            topics=dict(self.topics),
            assignments=dict(self.assignments),
            sessions=dict(self.sessions),
            candidates={broker: Candidate(broker=broker) for broker in self.sessions},
            creating=dict(self.creating),
        )

    def changed(self) -> int:
        self.revision += 1
        return self.revision

    @rule(broker=st.integers(1, 3))
    def start(self, broker: int) -> None:
        self.sessions[BrokerId(broker)] = self.changed()

    @rule(broker=st.integers(1, 3))
    def die(self, broker: int) -> None:
        self.sessions.pop(BrokerId(broker), None)
        self.changed()

    @rule(broker=st.integers(1, 3), durability=st.sampled_from(list(Durability)), survives=st.booleans())
    def create(self, broker: int, durability: Durability, survives: bool) -> None:
        """Create a topic, or die after its first assignment."""
        creator = BrokerId(broker)
        if creator not in self.sessions:
            return
        topic_id = TopicId(self.next_topic)
        self.next_topic += 1
        self.assign(topic_id, Assignment(creator, OwnerEpoch(1)))
        if survives:
            self.topics[topic_id] = PicturedTopic(f"/default/t{topic_id}", durability, self.changed())
        else:
            record = CreatingRecord(creator=creator, session=self.sessions[creator], topic_ids=(topic_id,))
            self.creating[f"/default/t{topic_id}"] = (record, self.changed())
            del self.sessions[creator]

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """Delete a topic's record, and die before its assignment."""
        if self.topics:
            del self.topics[data.draw(st.sampled_from(sorted(self.topics)))]
            self.changed()

    @rule()
    def look(self) -> None:
        self.old = self.picture()

    @rule()
    def act_on_an_old_picture(self) -> None:
        if self.old is not None:
            self.carry_out(self.old)

    def assign(self, topic_id: TopicId, assignment: Assignment) -> None:
        assert assignment.epoch > self.epochs.get(topic_id, 0), "an epoch is used once"
        self.epochs[topic_id] = assignment.epoch
        self.assignments[topic_id] = AssignedTopic(assignment, self.changed())

    def carry_out(self, seen: Picture) -> int:
        """Carry actions out as the shell does: each only if its conditions hold."""
        done = 0
        for action in decide(seen, 0.0):
            if isinstance(action, AssignTopic):
                present = self.assignments.get(action.topic_id)
                former_is_away = action.former is None or action.former not in self.sessions
                owner_runs = self.sessions.get(action.assignment.owner) == action.session
                record = self.topics.get(action.topic_id)
                is_same = (record.revision if record else 0) == action.record_revision
                is_same = is_same and (present.revision if present else 0) == action.revision
                if is_same and former_is_away and owner_runs:
                    self.assign(action.topic_id, action.assignment)
                    done += 1
            elif isinstance(action, GiveUpCreation):
                if action.topic in self.creating and self.creating[action.topic][1] == action.revision:
                    del self.creating[action.topic]
                    done += 1
            elif isinstance(action, DeleteAssignment):
                present = self.assignments.get(action.topic_id)
                if present is not None and present.revision == action.revision:
                    del self.assignments[action.topic_id]
                    done += 1
        return done

    @invariant()
    def a_running_owner_keeps_its_topic(self) -> None:
        for action in decide(self.picture(), 0.0):
            if isinstance(action, AssignTopic):
                present = self.assignments.get(action.topic_id)
                assert present is None or present.assignment.owner not in self.sessions
                assert self.topics[action.topic_id].durability is Durability.NONE

    def teardown(self) -> None:
        """Without further events, actions on present pictures end, and leave nothing behind."""
        for _ in range(4):
            if not self.carry_out(self.picture()):
                break
        assert decide(self.picture(), 0.0) == []
        assert not self.creating or all(
            self.sessions.get(record.creator) == record.session for record, _ in self.creating.values()
        )
        assert set(self.assignments) <= set(self.topics)
        if self.sessions:
            for topic_id, each in self.topics.items():
                if each.durability is Durability.NONE:
                    assert self.assignments[topic_id].assignment.owner in self.sessions


ClusterMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestClusterMachine = ClusterMachine.TestCase


def test_what_a_broker_has_found_in_a_bucket_is_left_to_it() -> None:
    """Its assignment comes before its record; the coordinator took it for a remnant, now and then."""
    found = AssignedTopic(Assignment(B1, OwnerEpoch(3), Reason.FOUND), 50)
    assert decide(picture(assignments={T1: found}), 0.0) == []


# --- Moves ---

DRAINED = {B1: Candidate(broker=B1, state=BrokerState.DRAINING, topics=2), B2: Candidate(broker=B2)}


def departing(number: int, owner: BrokerId = B1, **parts: Any) -> Departing:
    return Departing(TopicId(number), f"/default/t{number}", owner, **parts)


def ordered(
    target: BrokerId = B2, session: int = 102, reason: MoveReason = MoveReason.ASKED, **parts: Any
) -> OrderedMove:
    record = MoveRecord(move=7, target=target, target_session=session, assignment=50, reason=reason)
    return OrderedMove(record, 60, parts.pop("assignment", assigned(B1)), **parts)


def test_topics_of_a_drained_broker_are_ordered_to_move() -> None:
    drained = picture(candidates=DRAINED, departing=(departing(1), departing(2)))
    assert decide(drained, 0.0) == [OrderMove(TopicId(n), f"/default/t{n}", B1, B2, MoveReason.DRAIN) for n in (1, 2)]


def test_a_drain_is_spread_over_the_active_brokers_by_load() -> None:
    sessions = {B1: 101, B2: 102, B3: 103}
    candidates = {
        B1: Candidate(broker=B1, state=BrokerState.DRAINING, topics=10),
        B2: Candidate(broker=B2, topics=6),
        B3: Candidate(broker=B3),
    }
    topics = tuple(departing(n) for n in range(1, 11))
    found = decide(picture(sessions=sessions, candidates=candidates, departing=topics), 0.0)
    assert Counter(each.target for each in found if isinstance(each, OrderMove)) == {B3: 8, B2: 2}


def test_partitions_of_a_drained_broker_stay_spread() -> None:
    sessions = {B1: 101, B2: 102, B3: 103}
    candidates = {**DRAINED, B3: Candidate(broker=B3, topics=50)}
    parts = tuple(Departing(TopicId(n), f"/default/p-part-{n}", B1, None, {B1: 3, B2: 1}) for n in range(3))
    found = decide(picture(sessions=sessions, candidates=candidates, departing=parts), 0.0)
    assert [each.target for each in found if isinstance(each, OrderMove)] == [B3, B2, B3]


def test_a_drain_has_64_topics_in_flight() -> None:
    moving = {TopicId(n): ordered(reason=MoveReason.DRAIN) for n in range(1, 61)}
    topics = tuple(departing(n) for n in range(50, 80))
    found = decide(picture(candidates=DRAINED, departing=topics, moves=moving), 0.0)
    assert [each.topic_id for each in found if isinstance(each, OrderMove)] == [61, 62, 63, 64]


def test_a_topic_that_no_broker_can_take_does_not_hold_up_others() -> None:
    topics = (departing(1, storage="cold"), departing(2))
    found = decide(picture(candidates=DRAINED, departing=topics), 0.0)
    assert [each.topic_id for each in found if isinstance(each, OrderMove)] == [2]


def test_an_order_that_cannot_be_carried_out_is_withdrawn() -> None:
    def why(move: OrderedMove, **parts: Any) -> list[str]:
        found = decide(picture(moves={T1: move}, **parts), 0.0)
        assert all(isinstance(each, WithdrawMove) and each.revision == 60 for each in found)
        return [each.why for each in found if isinstance(each, WithdrawMove)]

    assert why(ordered()) == []
    assert why(ordered(exists=False)) == ["the topic was deleted"]
    assert why(ordered(assignment=assigned(B2, 2, revision=70))) == ["the topic has another owner"]
    assert why(ordered(assignment=None)) == ["the topic has another owner"]
    assert why(ordered(session=99)) == ["broker b2 has ended or was restarted"]
    assert why(ordered(session=99, settled=False)) == []
    assert why(ordered(B3, 103)) == ["broker b3 has ended or was restarted"]
    assert why(ordered(B1, 101), candidates=DRAINED) == ["broker b1 is draining"]
    assert why(ordered(reason=MoveReason.DRAIN), candidates=DRAINED) == []
    assert why(ordered(reason=MoveReason.DRAIN)) == ["broker b1 was activated"]


def test_four_topics_move_at_a_time_for_balance() -> None:
    plan = tuple(Move(TopicId(n), f"/default/t{n}", B1, B2, "") for n in range(1, 9))
    under_way = {TopicId(1): ordered(reason=MoveReason.BALANCE)}
    found = decide(picture(plan=plan, moves=under_way), 0.0)
    assert [each.topic_id for each in found if isinstance(each, OrderMove)] == [2, 3, 4]
    assert decide(picture(plan=plan, sessions={B1: 101}), 0.0) == []
    drained = {B1: Candidate(broker=B1), B2: Candidate(broker=B2, state=BrokerState.DRAINING)}
    assert decide(picture(plan=plan, candidates=drained), 0.0) == []


def test_orders_of_a_broker_that_does_not_run_keep_no_other_from_getting_even() -> None:
    b3 = BrokerId(3)
    under_way = {
        TopicId(number): ordered(reason=MoveReason.BALANCE, assignment=assigned(b3)) for number in range(11, 15)
    }
    plan = (Move(T1, "/default/t", B1, B2, ""),)
    found = decide(picture(plan=plan, moves=under_way), 0.0)
    assert [each.topic_id for each in found if isinstance(each, OrderMove)] == [T1]


def test_what_is_assigned_at_once_fits_into_a_transaction() -> None:
    """With 27 brokers that get topics of a dead one, 50 topics had 129 conditions, and none was assigned."""
    actions = [
        AssignTopic(
            topic_id=TopicId(number),
            topic=f"/default/t{number}",
            assignment=Assignment(BrokerId(2 + number % 40), OwnerEpoch(2)),
            revision=5,
            record_revision=6,
            session=200 + number % 40,
            former=BrokerId(100 + number % 3),
        )
        for number in range(200)
    ]
    groups = list(grouped(actions, assign_conditions))
    assert [each for group in groups for each in group] == actions
    sizes = [len({condition.key for each in group for condition in assign_conditions(each)}) for group in groups]
    assert max(sizes) < Limits().metadata_max_transaction_changes
    assert min(sizes[:-1]) > 100, "no more transactions than are needed"
    assert list(grouped([], assign_conditions)) == []
    assert [len(group) for group in grouped(actions, lambda _: ())] == [50] * 4
