"""Who votes: an odd number, no member that lacks much, and no member that is gone while another one could."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.cluster.forming import Founding
from danube.cluster.group_memory import (
    Add,
    GroupMemory,
    decode_memory,
    encode_memory,
    file_name,
    file_number,
    founded,
    newest,
    next_number,
)
from danube.cluster.voters import DEAD_S, MOST_BEHIND, Seen, next_change
from danube.model.errors import DataLossError
from danube.raft import Conf, NodeId

GOOD = Seen(0, 0.0)
GONE = Seen(5_000, DEAD_S)


def conf(voters: str, learners: str = "") -> Conf:
    return Conf(tuple(map(NodeId, map(int, voters))), learners=tuple(map(NodeId, map(int, learners))))


@pytest.mark.parametrize(
    ("before", "states", "after"),
    [
        (conf("1"), {}, None),
        (conf("1", "2"), {2: GOOD}, None),
        (conf("1", "23"), {2: GOOD, 3: GOOD}, conf("123")),
        (conf("1", "23"), {2: GOOD, 3: Seen(MOST_BEHIND + 1, 0.0)}, None),
        (conf("1", "23"), {2: GOOD, 3: Seen(0, 6.0)}, None),
        (conf("1", "234"), {2: GOOD, 3: GOOD, 4: GOOD}, conf("123", "4")),
        (conf("123", "45"), {2: GOOD, 3: GOOD, 4: GOOD, 5: GOOD}, conf("12345")),
        (conf("12345", "67"), dict.fromkeys(range(2, 8), GOOD), None),
        (conf("12", "3"), {2: GOOD, 3: GOOD}, conf("123")),
        (conf("12"), {2: GOOD}, conf("1", "2")),
        (conf("1234"), {2: GOOD, 3: GONE, 4: GOOD}, conf("124", "3")),
        (conf("123", "4"), {2: GONE, 3: GOOD, 4: GOOD}, conf("134", "2")),
        (conf("123", "4"), {2: Seen(0, DEAD_S - 1), 3: GOOD, 4: GOOD}, None),
        (conf("123", "4"), {2: GONE, 3: GOOD, 4: GONE}, None),
        (conf("123", "4"), {}, None),
        (Conf((NodeId(1), NodeId(2)), outgoing=(NodeId(1),)), {2: GOOD}, None),
    ],
)
def test_the_next_change(before: Conf, states: dict[int, Seen], after: Conf | None) -> None:
    change = next_change(before, NodeId(1), {NodeId(each): seen for each, seen in states.items()})
    assert (change and Conf(change.voters, learners=change.learners)) == after


SEEN = st.builds(Seen, st.sampled_from([0, 50, 101, 10_000]), st.sampled_from([0.0, 4.0, 60.0, DEAD_S + 1]))


@given(st.integers(1, 9), st.integers(0, 9), st.data())
def test_changes_come_to_an_end_with_an_odd_number_of_voters(voters: int, learners: int, data: st.DataObject) -> None:
    members = [NodeId(each) for each in range(1, voters + learners + 1)]
    now = Conf(tuple(members[:voters]), learners=tuple(members[voters:]))
    leader = data.draw(st.sampled_from(members[:voters]))
    seen = {each: data.draw(SEEN) for each in members if each != leader}
    for _ in range(20):
        change = next_change(now, leader, seen)
        if change is None:
            break
        assert leader in change.voters
        assert set(change.voters) | set(change.learners) == set(members)
        now = Conf(change.voters, learners=change.learners)
    else:
        raise AssertionError("it never ends")
    assert len(now.voters) % 2
    assert len(now.voters) <= 5 or not learners


FOUNDING = Founding("danube", 7, ("a:1", "b:1", "c:1", "d:1"), ("ia", "ib", "ic", "id"))


def test_founders_have_the_first_ids_and_an_odd_number_votes() -> None:
    memory = founded(FOUNDING, "id")
    assert memory.member == 4
    assert memory.conf == conf("123", "4")
    assert memory.addresses == {1: "a:1", 2: "b:1", 3: "c:1", 4: "d:1"}


def test_the_newest_whole_version_counts() -> None:
    one, two = founded(FOUNDING, "ia"), founded(FOUNDING, "ib")
    files = {1: encode_memory(one), 2: encode_memory(two)}
    assert newest(files, "here") == two
    files[2] = files[2][:20] + b"\xff" + files[2][21:]
    assert newest(files, "here") == one
    with pytest.raises(DataLossError, match="'group-0000000000000002', which says to which cluster"):
        newest({2: files[2]}, "here")
    assert newest({}, "here") is None
    assert next_number([]) == 1
    assert next_number([1, 31]) == 32
    assert file_number(file_name(31)) == 31
    assert file_number("journal-0000000000000001.log") is None


@given(st.binary(max_size=200), st.integers(0, 10_000), st.integers(1, 255))
def test_damage_of_the_file_is_noticed(garbage: bytes, position: int, mask: int) -> None:
    assert decode_memory(garbage) is None or garbage == encode_memory(founded(FOUNDING, "ia"))
    whole = GroupMemory(cluster="danube", member=NodeId(70_000), addresses={NodeId(0): "a:1"})
    content = bytearray(encode_memory(whole))
    assert decode_memory(bytes(content)) == whole
    content[position % len(content)] ^= mask
    assert decode_memory(bytes(content)) in (None, whole)


def test_a_broker_replaces_those_at_its_address_and_with_its_identity() -> None:
    ask = Add("danube", NodeId(9), "mine", "b:6650")
    addresses = {NodeId(1): "a:6650", NodeId(2): "b:6650", NodeId(9): "b:6650"}
    identities = {NodeId(1): "other", NodeId(3): "mine", NodeId(9): "mine"}
    members = [NodeId(number) for number in (9, 4, 3, 2, 1)]
    assert ask.replaces(members, addresses.get, identities) == [2, 3]
