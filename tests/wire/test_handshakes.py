"""Which TLS handshakes run: counted, in turn, and at times that the tests choose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.wire._handshakes import LEAST_S, Handshake, Handshakes, address_key


class World:
    def __init__(self, most: int, most_per_address: int) -> None:
        self.handshakes = Handshakes(most, most_per_address)
        self.begun: list[str] = []
        self.given_up: list[str] = []
        self.open: dict[str, Handshake] = {}

    def enter(self, name: str, address: str, now: float) -> None:
        handshake = Handshake(address, lambda: self.begun.append(name), lambda: self.given_up.append(name))
        self.open[name] = handshake
        self.handshakes.enter(handshake, now)

    def leave(self, name: str, now: float, *, succeeded: bool = True) -> None:
        self.handshakes.leave(self.open.pop(name), now, succeeded=succeeded)


def test_so_many_run_at_once_and_addresses_take_turns() -> None:
    world = World(2, 2)
    for name in ("a1", "a2", "a3", "a4", "b1", "c1"):
        world.enter(name, name[0], 0.0)
    assert world.begun == ["a1", "a2"]
    for name, next_ones in (("a1", ["a3"]), ("a2", ["b1"]), ("a3", ["c1"]), ("b1", ["a4"])):
        del world.begun[:]
        world.leave(name, 0.1)
        assert world.begun == next_ones
    for name in ("c1", "a4"):
        world.leave(name, 0.2)
    assert world.handshakes.running == 0
    assert not world.handshakes._addresses
    assert not world.handshakes._queue


def test_one_address_does_not_take_all_room() -> None:
    world = World(4, 2)
    for number in range(4):
        world.enter(f"a{number}", "a", 0.0)
    world.enter("b", "b", 0.0)
    assert world.begun == ["a0", "a1", "b"]


def test_failures_occupy_their_room_for_a_second() -> None:
    world = World(10, 2)
    for number in range(5):
        world.enter(f"a{number}", "a", 0.0)
    world.leave("a0", 0.1, succeeded=False)
    world.leave("a1", 0.1)
    assert world.begun == ["a0", "a1", "a2"]
    world.handshakes.look(0.9)
    assert world.begun == ["a0", "a1", "a2"]
    world.handshakes.look(LEAST_S)
    assert world.begun == ["a0", "a1", "a2", "a3"]


def test_old_ones_are_given_up_for_those_that_wait() -> None:
    world = World(2, 2)
    world.enter("a0", "a", 0.0)
    world.enter("b0", "b", 0.5)
    world.handshakes.look(9.0)
    assert world.given_up == []  # none waits
    world.enter("c0", "c", 9.0)
    world.handshakes.look(9.0)
    assert world.given_up == ["a0"]
    world.leave("a0", 9.1, succeeded=False)
    assert world.begun[-1] == "c0"
    world.enter("b1", "b", 9.2)
    world.handshakes.look(9.3)
    assert world.given_up == ["a0", "b0"]
    world.leave("b1", 9.4, succeeded=False)  # it still waited
    world.leave("b0", 9.4, succeeded=False)
    world.leave("c0", 9.4)
    world.handshakes.look(20.0)
    assert not world.handshakes._addresses


STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "fail", "look"]), st.integers(0, 30), st.floats(0.0, 1.5)), max_size=80
)


@given(STEPS, st.integers(1, 4), st.integers(1, 3))
def test_whatever_happens_the_limits_hold_and_none_is_forgotten(
    steps: list[tuple[str, int, float]], most: int, most_per_address: int
) -> None:
    world = World(most, most_per_address)
    now, count = 0.0, 0
    for what, number, pause in steps:
        now += pause
        if what == "enter":
            world.enter(f"{count}", "abc"[number % 3], now)
            count += 1
        elif what == "look":
            world.handshakes.look(now)
        elif world.open:
            world.leave(list(world.open)[number % len(world.open)], now, succeeded=what == "leave")
        running = [each for each in world.open.values() if each.began_at is not None]
        assert len(running) == world.handshakes.running <= most
        for address in "abc":
            assert sum(each.address == address for each in running) <= most_per_address
    while world.open:  # all that wait get their turn when the others end
        now += 2 * LEAST_S
        world.handshakes.look(now)
        running_names = [name for name, each in world.open.items() if each.began_at is not None]
        assert running_names
        for name in running_names:
            world.leave(name, now)
    assert len(world.begun) == len(set(world.begun))
    world.handshakes.look(now + 2 * LEAST_S)
    assert not world.handshakes._addresses


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
    ],
)
def test_what_counts_as_one_address(host: str, key: str) -> None:
    assert address_key(host) == key
