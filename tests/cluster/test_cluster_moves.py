"""The rules of planned moves: one owner at any time, which has every acknowledged message; whatever fails, whenever."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.cluster.moves import (
    MOST_ROUNDS,
    Complete,
    Copied,
    Copy,
    Departure,
    Done,
    Doubt,
    Event,
    Fate,
    Freeze,
    Left,
    Look,
    Refused,
    Reserve,
    Seen,
    Stayed,
    Switch,
    Withdraw,
    Withdrawn,
    fate_at_recovery,
    fate_of_copy,
)
from danube.cluster.moving_calls import Append, Finish, Open, State, Taken, decode_answer, decode_call, encode
from danube.cluster.records import Assignment, Reason
from danube.model.errors import InvalidArgumentError
from danube.model.ids import BrokerId, Offset, OwnerEpoch, TopicId

A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)


def assigned(owner: BrokerId, epoch: int, move: int = 0) -> Assignment:
    return Assignment(owner, OwnerEpoch(epoch), Reason.MOVED if move else Reason.CREATED, move)


class World:
    """Metadata, an owner, and a target, as far as one move needs them."""

    def __init__(self, move: int) -> None:
        self.move = move
        self.owner = A
        self.row = True
        self.assigned_move = 0
        self.acknowledged = 3
        self.copied = 0
        self.complete = False
        self.frozen = False
        self.late_switch = False
        """A switch whose answer was lost is still on its way."""
        self.target_alive = True
        """Whether the session of the target is the one of the order."""
        self.buried = False
        self.serving_a = True

    # --- The metadata ---

    def apply_switch(self) -> bool:
        if not (self.row and self.owner == A and self.target_alive):
            return False
        assert self.complete, "the switch comes after the copy was synced"
        assert self.copied == self.acknowledged, "the new owner has every acknowledged message"
        assert not self.buried, "a copy that was given up is not served"
        self.owner, self.assigned_move, self.row = B, self.move, False
        return True

    def deliver_late(self) -> None:
        if self.late_switch:
            self.late_switch = False
            self.apply_switch()

    # --- The broker A ---

    def publish(self) -> None:
        if self.serving_a and not self.frozen:
            assert self.owner == A, "two brokers acknowledge"
            self.acknowledged += 1

    def thaw(self) -> None:
        self.frozen = False
        self.publish()

    # --- The broker B ---

    def judge(self) -> Fate:
        ordered = self.move if self.row else None
        owner = self.owner
        fate = fate_of_copy(B, self.move, ordered, assigned(owner, 2 if owner == B else 1, self.assigned_move))
        if fate is Fate.BURY:
            self.buried = True
        elif fate is Fate.SERVE:
            assert not self.buried
            assert self.copied == self.acknowledged
        return fate

    def restart_target(self) -> None:
        self.target_alive = False
        copied = Copied(self.move, 2, pending=True) if self.copied else Copied()
        fate = fate_at_recovery(B, assigned(self.owner, 2 if self.owner == B else 1, self.assigned_move), copied)
        if self.owner == B:
            assert fate is Fate.SERVE
        elif self.copied:
            assert fate is Fate.BURY
        if fate is Fate.BURY:
            self.buried = True


DISTURBANCES = ("restart target", "late switch", "withdrawn", "source dies", "judge")
OUTCOMES = ("fails", "never arrives", "answer lost")
POSITIONS = 18
"""An undisturbed move has 12 of them: before each action a disturbance, then its outcome."""


@pytest.mark.parametrize("count", [0, 1, 2])
def test_there_is_always_one_owner_which_has_everything(count: int) -> None:
    """Whatever goes wrong, at one or two steps."""
    ends: set[type] = set()
    for positions in combinations(range(POSITIONS), count):
        kinds = [OUTCOMES if position % 2 else DISTURBANCES for position in positions]
        for chosen in product(*kinds):
            ends.add(moved(dict(zip(positions, chosen, strict=True))))
    assert Left in ends
    assert count == 0 or Stayed in ends


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_there_is_one_owner_whatever_else_goes_wrong(data: st.DataObject) -> None:
    """From a switch in doubt on, where the most can go wrong."""
    trouble = {position: data.draw(st.sampled_from(("", *OUTCOMES))) for position in range(1, 2 * POSITIONS, 2)}
    trouble |= {position: data.draw(st.sampled_from(("", *DISTURBANCES))) for position in range(0, 2 * POSITIONS, 2)}
    quiet = data.draw(st.sampled_from([0, 8, 10, 10, 10]))
    moved({position: what for position, what in trouble.items() if position >= quiet})


def moved(trouble: dict[int, str]) -> type:
    """Carry out a move in which some steps go wrong; return how it ends."""
    world = World(7)
    departure = Departure(7, 1, stored=True)
    action = departure.action
    for position in range(0, 400, 2):
        if isinstance(action, Left | Stayed):
            break
        match trouble.get(position):
            case "restart target":
                world.restart_target()
            case "late switch":
                world.deliver_late()
            case "withdrawn":
                world.row = False  # the other side has given the move up
            case "judge":
                if world.target_alive:
                    world.judge()
            case "source dies":
                world.deliver_late()  # its session ends before it is back: what is on its way then is refused
                world.serving_a, world.frozen = world.owner == A, False
                world.publish()
                return Stayed
        world.publish()
        action = departure.next(carried_out(world, action, trouble.get(position + 1, "")))
    assert isinstance(action, Left | Stayed)
    if isinstance(action, Left):
        world.serving_a = world.frozen = False
        assert world.owner == B
    else:
        world.thaw()
        world.deliver_late()
        assert world.owner == A, "what has stayed can never move any more under this id"
        assert not world.row
    world.publish()
    if world.target_alive and world.copied:
        assert world.judge() is (Fate.SERVE if world.owner == B else Fate.BURY)
    return type(action)


def carried_out(world: World, action: object, outcome: str) -> Event:
    """Carry out one action, well or badly."""
    fails, is_lost = outcome == "fails", outcome == "never arrives"
    if isinstance(action, Reserve):
        return Refused("full") if outcome or not world.target_alive else Done()
    if isinstance(action, Copy | Complete):
        if fails or is_lost or not world.target_alive:
            return Refused("unreachable")
        sent = world.acknowledged - world.copied
        world.copied = world.acknowledged
        if isinstance(action, Complete):
            assert world.frozen
            world.complete = True
        return Refused("no answer") if outcome else Done(sent)
    if isinstance(action, Freeze):
        if outcome:
            return Refused("does not settle")
        world.frozen = True
        return Done()
    if isinstance(action, Switch):
        assert world.frozen
        if fails:
            return Refused("conflict")
        if is_lost:
            world.late_switch = True
            return Doubt("no answer")
        if outcome:
            world.apply_switch()
            return Doubt("the answer was lost")
        return Done() if world.apply_switch() else Refused("conflict")
    if isinstance(action, Withdraw):
        if action.thaw:
            world.thaw()
        if fails or is_lost:
            return Doubt("no answer")
        existed, world.row = world.row, False
        return Doubt("the answer was lost") if outcome else Withdrawn(existed)
    assert isinstance(action, Look)
    assert world.frozen, "a topic whose switch is in doubt stays frozen"
    return Doubt("no answer") if outcome else Seen(world.assigned_move)


def test_a_copy_takes_rounds_until_little_is_missing() -> None:
    departure = Departure(1, 100, stored=True)
    assert departure.next(Done()) == Copy()
    assert departure.next(Done(101)) == Copy()
    assert departure.next(Done(100)) == Freeze()
    assert departure.next(Done()) == Complete()
    assert departure.next(Done()) == Switch()
    assert departure.next(Done()) == Left()


def test_publishers_that_are_faster_than_the_copy_are_stopped_in_the_end() -> None:
    departure = Departure(1, 100, stored=True)
    departure.next(Done())
    for _ in range(MOST_ROUNDS - 1):
        assert departure.next(Done(10_000)) == Copy()
    assert departure.next(Done(10_000)) == Freeze()


def test_a_topic_that_stores_nothing_is_frozen_and_switched() -> None:
    """Two brokers served it for a moment: the target heard of the switch before the source."""
    departure = Departure(1, 100, stored=False)
    assert departure.action == Freeze()
    assert departure.next(Done()) == Switch()
    assert departure.next(Refused("conflict")) == Withdraw(thaw=True)
    assert departure.next(Doubt("no answer")) == Withdraw(thaw=True)
    assert departure.next(Withdrawn(existed=False)) == Stayed("conflict")


@pytest.mark.parametrize("outcome", [Done(), Refused("conflict"), Doubt("no answer")])
def test_from_the_switch_on_a_topic_may_have_left_until_that_is_refused_or_withdrawn(outcome: Event) -> None:
    departure = Departure(1, 100, stored=True)
    for event in (Done(), Done(1), Done(), Done()):
        assert not departure.may_have_left
        departure.next(event)
    assert departure.action == Switch()
    assert departure.may_have_left
    departure.next(outcome)
    assert departure.may_have_left is not isinstance(outcome, Refused)
    if isinstance(outcome, Doubt):
        assert departure.next(Withdrawn(existed=False)) == Look()
        assert departure.may_have_left
        assert departure.next(Seen(2)) == Stayed("no answer")
        assert not departure.may_have_left


@pytest.mark.parametrize(
    ("assignment", "copied", "fate"),
    [
        (None, Copied(), Fate.KEEP),
        (assigned(A, 1), Copied(), Fate.SERVE),
        (assigned(A, 3, 9), Copied(9, 3), Fate.SERVE),
        (assigned(A, 3, 9), Copied(9, 3, pending=True), Fate.SERVE),
        (Assignment(A, OwnerEpoch(3), Reason.FORGOTTEN, 9), Copied(9, 3), Fate.SERVE),
        (Assignment(A, OwnerEpoch(3), Reason.FORGOTTEN, 9), Copied(9, 3, pending=True), Fate.BURY),  # has not begun
        (Assignment(A, OwnerEpoch(3), Reason.FORGOTTEN, 9), Copied(8, 2), Fate.BURY),
        (assigned(A, 3, 9), Copied(8, 2), Fate.MISSING),
        (assigned(A, 3, 9), Copied(), Fate.MISSING),
        (assigned(A, 3), Copied(8, 2, pending=True), Fate.BURY),
        (assigned(A, 1), Copied(8, 2), Fate.MISSING),
        (assigned(B, 1), Copied(8, 2, pending=True), Fate.BURY),
        (assigned(B, 2, 8), Copied(), Fate.BURY),
        (assigned(B, 3, 9), Copied(8, 2), Fate.BURY),
        (assigned(B, 3), Copied(8, 2), Fate.KEEP),
        (assigned(B, 1, 7), Copied(8, 2), Fate.KEEP),
        (assigned(B, 2), Copied(), Fate.KEEP),
    ],
)
def test_what_becomes_of_entries_at_a_start(assignment: Assignment | None, copied: Copied, fate: Fate) -> None:
    assert fate_at_recovery(A, assignment, copied) is fate


def test_the_calls_survive_their_encoding() -> None:
    topic = TopicId(5)
    for call in (
        Open(topic, 7, "/default/t", OwnerEpoch(2), Offset(10), 100),
        Append(topic, 7, [(b"stamp", b"part")]),
        State(topic, 7, b"piece"),
        Finish(topic, 7, Offset(11)),
    ):
        assert decode_call(encode(call)) == call
    assert decode_answer(encode(Taken(Offset(3)))).end_offset == 3
    with pytest.raises(InvalidArgumentError, match="does not know this step"):
        decode_call(b"\x91\x63")
    with pytest.raises(InvalidArgumentError, match="nothing here understands"):
        decode_answer(b"")
