"""The guard of a writer against every order in which requests arrive, and answers get lost."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from danube.metadata import KeyValue
from danube.metadata._guard import Guard, Mark, Verdict

KEY = "/writers/test"


class Request:
    """A put of the guard that was sent; a change has a number."""

    def __init__(self, value: bytes, expected: int, change: int) -> None:
        self.value, self.expected, self.change = value, expected, change
        self.answer: int | None = None
        """Revision at which it was applied; 0: it was refused; None: it has not arrived."""


class GuardMachine(RuleBasedStateMachine):
    """A store with one key, requests on their way to it, and what really has happened."""

    def __init__(self) -> None:
        super().__init__()
        self.revision = 0
        self.item: KeyValue | None = None
        self.on_their_way: list[Request] = []
        self.sent: Request | None = None
        """The request that the writer waits for."""
        self.happened: set[int] = set()
        self.decided: dict[int, bool] = {}
        """What the guard has said about each change."""
        self.changes = 0
        self.displaced = False
        self.take_over()

    def take_over(self) -> None:
        life, mark, expected = Guard.first_mark(KEY, self.item)
        assert expected == (self.item.mod_revision if self.item is not None else 0)
        self.store(mark.value)
        self.guard = Guard(KEY, life, self.revision)
        self.displaced = False
        self.sent = None

    def store(self, value: bytes) -> None:
        self.revision += 1
        self.item = KeyValue(KEY, value, 1, self.revision, 1, None)

    def arrive(self, request: Request) -> None:
        assert self.item is not None
        if request.answer is None:
            request.answer = 0
            if self.item.mod_revision == request.expected:
                self.store(request.value)
                request.answer = self.revision
                if request.change:
                    self.happened.add(request.change)

    def send(self, value: bytes, change: int = 0) -> None:
        self.sent = Request(value, self.guard.condition.mod_revision, change)
        self.on_their_way.append(self.sent)

    def decide(self, happened: bool) -> None:
        assert not self.guard.in_doubt
        self.decided[self.changes] = happened

    @precondition(lambda self: not self.guard.in_doubt and self.sent is None)
    @rule()
    def change(self) -> None:
        self.changes += 1
        self.send(self.guard.change().value, self.changes)
        assert self.guard.in_doubt

    @precondition(lambda self: self.on_their_way)
    @rule(which=st.integers(0, 99))
    def any_request_arrives(self, which: int) -> None:
        self.arrive(self.on_their_way[which % len(self.on_their_way)])

    @precondition(lambda self: self.sent is not None)
    @rule()
    def answered(self) -> None:
        assert self.sent is not None
        request, self.sent = self.sent, None
        self.arrive(request)
        assert request.answer is not None
        if request.answer and request.change:
            self.guard.applied(request.answer)
            self.decide(True)
        elif request.answer:
            self.guard.fenced(request.answer)
            self.decide(False)

    @precondition(lambda self: self.sent is not None)
    @rule()
    def the_answer_is_lost(self) -> None:
        self.sent = None

    @precondition(lambda self: self.guard.in_doubt and self.sent is None)
    @rule()
    def fence(self) -> None:
        self.send(self.guard.fence().value)

    @precondition(lambda self: self.guard.in_doubt and self.sent is None)
    @rule()
    def read(self) -> None:
        verdict = self.guard.judge(self.item)
        if verdict in (Verdict.APPLIED, Verdict.NOT_APPLIED):
            self.decide(verdict == Verdict.APPLIED)
        else:
            assert self.guard.in_doubt
            assert self.displaced == (verdict == Verdict.DISPLACED)

    @rule()
    def another_process_takes_over(self) -> None:
        assert self.item is not None
        life, mark, _ = Guard.first_mark(KEY, self.item)
        assert life > self.guard.life
        self.store(mark.value)
        self.displaced = True

    @precondition(lambda self: self.displaced)
    @rule()
    def restart(self) -> None:
        """Requests of the former life are still on their way."""
        self.changes += 1  # nothing is decided about the last change of the former life
        self.take_over()

    @invariant()
    def decisions_are_right_and_stay_right(self) -> None:
        assert all(happened == (change in self.happened) for change, happened in self.decided.items())

    def teardown(self) -> None:
        for request in self.on_their_way:
            self.arrive(request)
        self.decisions_are_right_and_stay_right()
        for step in (self.fence_answered, self.read):  # a store that answers ends every doubt
            if self.guard.in_doubt and not self.displaced:
                step()
        assert self.displaced or not self.guard.in_doubt
        self.decisions_are_right_and_stay_right()

    def fence_answered(self) -> None:
        self.send(self.guard.fence().value)
        self.answered()


TestGuard = GuardMachine.TestCase
TestGuard.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def item(value: bytes, revision: int) -> KeyValue:
    return KeyValue(KEY, value, 1, revision, 1, None)


def test_a_change_that_was_not_sent_is_not_in_doubt() -> None:
    guard = Guard(KEY, 1, 5)
    guard.change()
    guard.withdrawn()
    assert not guard.in_doubt
    assert guard.condition.mod_revision == 5


def test_a_guard_that_is_gone_or_unreadable_belongs_to_another_process() -> None:
    for found in (None, item(b"\xc1", 9), item(msgspec.msgpack.encode(Mark(2, 1)), 9)):
        guard = Guard(KEY, 1, 5)
        guard.change()
        assert guard.judge(found) is Verdict.DISPLACED
        assert guard.in_doubt
    with pytest.raises(ValueError, match="/writers/test"):
        Guard.first_mark(KEY, item(b"\xc1", 9))


def test_lives_follow_each_other() -> None:
    life, mark, expected = Guard.first_mark(KEY, None)
    assert (life, mark.key, expected) == (1, KEY, 0)
    assert Guard.first_mark(KEY, item(mark.value, 7))[::2] == (2, 7)
