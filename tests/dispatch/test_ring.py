"""The hashing ring: few keys move when members change, and only to permitted ones."""

from __future__ import annotations

import pytest

from danube.dispatch.inflight import Member
from danube.dispatch.ring import Ring, ring_hash

KEYS = {name: ring_hash(name.encode()) for name in (f"user-{number}" for number in range(1000))}


def owners_of(ring, keys=KEYS):
    return {name: ring.owner(place, name.encode()) for name, place in keys.items()}


def moved(before, after):
    return {name: (before[name], after[name]) for name in before if before[name] is not after[name]}


def ring_of(*members):
    ring = Ring()
    for member in members:
        ring.add(member)
    return ring


def test_the_ring_moves_about_one_key_in_n_at_a_join_and_back_at_a_leave():
    ring = Ring()
    members = [Member(number, f"consumer-{number}") for number in range(5)]
    for member in members[:4]:
        ring.add(member)
    places = [ring_hash(f"user-{number}".encode()) for number in range(4000)]
    before = [ring.owner(place) for place in places]
    for member in members[:4]:
        assert 0.15 < before.count(member) / len(places) < 0.40
    ring.add(members[4])
    after = [ring.owner(place) for place in places]
    moved = [new for old, new in zip(before, after, strict=True) if old is not new]
    assert set(moved) == {members[4]}, "keys move to the new consumer only"
    assert 0.10 < len(moved) / len(places) < 0.30
    ring.remove(members[4])
    assert [ring.owner(place) for place in places] == before
    ring.remove(members[0])
    ring.add(Member(77, "consumer-0"))
    again = [ring.owner(place).name for place in places]
    assert again == [owner.name for owner in before], "a consumer that comes back under its name gets its keys back"
    assert Ring().owner(5) is None


def test_ring_hash_is_the_upstream_one():
    digest = 0xAF63DC4C8601EC8C  # FNV-1a 64 of "a", from the reference test vectors
    folded = (digest >> 32) ^ (digest & 0xFFFFFFFF)
    folded = ((folded ^ folded >> 16) * 0x85EBCA6B) % 2**32
    folded = ((folded ^ folded >> 13) * 0xC2B2AE35) % 2**32
    assert ring_hash(b"a") == folded ^ folded >> 16
    assert 0 <= ring_hash("schl\N{LATIN SMALL LETTER U WITH DIAERESIS}ssel".encode()) < 2**32


@pytest.mark.parametrize("count", range(2, 9))
def test_a_join_takes_one_in_n_from_everybody_and_a_leave_gives_them_back(count):
    members = [Member(number, f"worker-{number}") for number in range(count)]
    ring = ring_of(*members[:-1])
    before = owners_of(ring)
    ring.add(members[-1])
    joined = owners_of(ring)
    to_newcomer = moved(before, joined)
    assert {new for _, new in to_newcomer.values()} == {members[-1]}
    assert 0.5 / count < len(to_newcomer) / len(KEYS) < 1.6 / count
    assert {old for old, _ in to_newcomer.values()} == set(members[:-1]), "each member gives some"
    ring.remove(members[-1])
    assert owners_of(ring) == before
    ring.remove(members[0])
    assert {old for old, _ in moved(before, owners_of(ring)).values()} == {members[0]}


@pytest.mark.parametrize("count", range(2, 9))
def test_filters_decide_who_may_and_the_ring_who_does(count):
    even = {name: place for name, place in KEYS.items() if int(name[-1]) % 2 == 0}
    filters = tuple(f"*{digit}" for digit in (0, 2, 4, 6, 8))
    picky = [Member(number, f"even-{number}", filters) for number in range(count)]
    all_round = Member(99, "all-round")
    ring = ring_of(all_round, *picky[:-1])
    before = owners_of(ring)
    assert {before[name] for name in KEYS if name not in even} == {all_round}
    assert {before[name] for name in even} == {all_round, *picky[:-1]}
    ring.add(picky[-1])
    to_newcomer = moved(before, owners_of(ring))
    assert {new for _, new in to_newcomer.values()} == {picky[-1]}
    assert set(to_newcomer) <= set(even)
    assert 0.5 / (count + 1) < len(to_newcomer) / len(even) < 1.7 / (count + 1)
    ring.remove(all_round)
    after = owners_of(ring)
    assert {name for name, owner in after.items() if owner is None} == set(KEYS) - set(even)
    assert ring.filtered
    for member in picky:
        ring.remove(member)
    assert not ring.filtered


def test_a_suspended_consumer_lends_its_keys_and_gets_them_back():
    members = [Member(number, f"worker-{number}") for number in range(4)]
    ring = ring_of(*members)
    before = owners_of(ring)
    ring.suspend(members[2])
    lent = moved(before, owners_of(ring))
    assert {old for old, _ in lent.values()} == {members[2]}
    assert {new for _, new in lent.values()} == {members[0], members[1], members[3]}
    for member in (members[0], members[1], members[3]):
        ring.suspend(member)
    assert owners_of(ring) == before, "all are suspended, so none is preferred"
    ring.resume(members[3])
    assert set(owners_of(ring).values()) == {members[3]}
    for member in members:
        ring.resume(member)
    assert owners_of(ring) == before


def test_a_suspended_consumer_keeps_what_only_it_may_have():
    picky, other = Member(1, "picky", ("user-1*",)), Member(2, "other", ("user-2*",))
    ring = ring_of(picky, other)
    ring.suspend(picky)
    assert ring.owner(ring_hash(b"user-12"), b"user-12") is picky
    assert ring.owner(ring_hash(b"user-21"), b"user-21") is other
    assert ring.owner(ring_hash(b"user-31"), b"user-31") is None


def test_every_change_has_a_version_of_its_own():
    member = Member(1, "ann")
    ring = Ring()
    seen = {ring.version}
    for change in (ring.add, ring.suspend, ring.resume, ring.remove):
        change(member)
        assert ring.version not in seen
        seen.add(ring.version)
