"""Rights that change all the time, under load, in a cluster: *nothing succeeds a second after its revocation, and
nothing fails that was allowed throughout*.

Each principal publishes, and describes the topic, as fast as it is let; a storm grants and removes roles, suspends and
resumes, and revokes tokens, for which the principal gets others. The model is a timeline of what was allowed when.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from test_security_cluster import TOPIC, calling, owner_of, secured

from danube.metadata import Delete, Put
from danube.model import api
from danube.model.errors import DanubeError, Status
from danube.model.names import partition_name
from danube.security.records import (
    BINDINGS,
    REVOKED,
    BindingRecord,
    PrincipalRecord,
    RevocationRecord,
    encode_record,
    principal_key,
)

pytestmark = pytest.mark.virtual

LAG_S = 1.0
"""How long a change may take."""
STORM_S = 20.0
PRINCIPALS = 4
ROLES = {"producer": {"produce", "describe"}, "consumer": {"describe"}, "namespace-admin": {"produce", "describe"}}
SCOPES = ("/shop/orders", "/shop/ord*", "namespace:shop", "cluster")


class Outcome(NamedTuple):
    """One attempt of a principal."""

    what: str
    began: float
    ended: float
    token: str
    status: Status


class Subject:
    """A principal, what it was allowed when, and what it has tried."""

    def __init__(self, number: int) -> None:
        self.name = f"service:s{number}"
        self.bindings: dict[str, str] = {}
        self.suspended = False
        self.token = f"t{number}-0"
        self.revoked: dict[str, float] = {}
        self.allowed: list[tuple[float, frozenset[str]]] = [(0.0, frozenset())]
        self.outcomes: list[Outcome] = []

    def note(self) -> None:
        """Note what is allowed from now on."""
        rights = set().union(*(ROLES[role] for role in self.bindings.values())) if not self.suspended else set()
        self.allowed.append((trio.current_time(), frozenset(rights)))

    def ever(self, what: str, since: float, until: float) -> set[bool]:
        """Whether something was allowed: all answers between two times."""
        found = set()
        for index, (at, rights) in enumerate(self.allowed):
            after = self.allowed[index + 1][0] if index + 1 < len(self.allowed) else float("inf")
            if at <= until and after >= since:
                found.add(what in rights)
        return found

    def violations(self) -> list[str]:
        """Return the outcomes that must not be."""
        found = []
        for each in self.outcomes:
            revoked_at = self.revoked.get(each.token, float("inf"))
            answers = self.ever(each.what, each.began - LAG_S, each.ended)
            if each.status is Status.OK:
                bad = True not in answers or revoked_at < each.began - LAG_S
            elif each.status is Status.PERMISSION_DENIED:
                bad = False not in answers
            elif each.status is Status.UNAUTHENTICATED:
                bad = revoked_at > each.ended
            else:
                bad = True
            if bad:
                found.append(f"{self.name}: {each}, allowed {self.allowed}, revoked {self.revoked}")
        return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(1, 10))])
async def test_rights_change_in_storms(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    subjects = [Subject(number) for number in range(PRINCIPALS)]
    async with secured(tmp_path) as world, trio.open_nursery() as nursery:
        over_at = trio.current_time() + STORM_S

        async def publish(subject: Subject, topic: str) -> None:
            owner = owner_of(world, topic)
            while True:
                token, began = subject.token, trio.current_time()
                try:
                    async with (
                        calling(world, owner, subject.name, token_id=token) as calls,
                        calls.producing(topic, subject.name) as producer,
                    ):
                        sequence = producer.opened.next_sequence
                        while True:
                            producer.send(sequence, b"x")
                            await producer.acked()
                            sequence += 1
                            subject.outcomes.append(Outcome("produce", began, trio.current_time(), token, Status.OK))
                            await trio.sleep(0.1)
                            began = trio.current_time()
                except DanubeError as error:
                    subject.outcomes.append(Outcome("produce", began, trio.current_time(), token, error.status))
                await trio.sleep(0.2)

        async def describe(subject: Subject, number: int) -> None:
            machine = world.machines[number % len(world.machines)]
            while True:
                token, began, status = subject.token, trio.current_time(), Status.OK
                try:
                    async with calling(world, machine, subject.name, token_id=token) as calls:
                        await calls(api.Method.DESCRIBE_TOPIC, api.DescribeTopic(TOPIC), api.TopicInfo)
                except DanubeError as error:
                    status = error.status
                subject.outcomes.append(Outcome("describe", began, trio.current_time(), token, status))
                await trio.sleep(0.3)

        async def change(subject: Subject) -> None:
            """Change one thing; what was allowed is noted when it is written."""
            operations: list[Put | Delete] = [Put("/security-changes", b"")]
            draw = rng.random()
            if draw < 0.4 or not subject.bindings:
                name, role = f"{subject.name[8:]}-{rng.randrange(3)}", rng.choice(list(ROLES))
                record = BindingRecord(subject=subject.name, roles=(role,), scope=rng.choice(SCOPES))
                operations.append(Put(BINDINGS + name, encode_record(record)))
                subject.bindings[name] = role
            elif draw < 0.75:
                name = rng.choice(list(subject.bindings))
                operations.append(Delete(BINDINGS + name))
                del subject.bindings[name]
            elif draw < 0.9:
                subject.suspended = not subject.suspended
                suspended = encode_record(PrincipalRecord(is_suspended=True))
                key = principal_key(subject.name)
                operations.append(Put(key, suspended) if subject.suspended else Delete(key))
            else:
                revocation = encode_record(RevocationRecord(expires_us=world.wall_clock_us() + 10**12))
                operations.append(Put(REVOKED + subject.token, revocation))
                subject.revoked[subject.token] = trio.current_time()
                subject.token = f"{subject.name[8:]}-{len(subject.revoked)}"
            await world.store.transact([], operations)
            subject.note()

        for number, subject in enumerate(subjects):
            nursery.start_soon(publish, subject, partition_name(TOPIC, number))
            nursery.start_soon(describe, subject, number)
        while trio.current_time() < over_at:
            await change(rng.choice(subjects))
            await trio.sleep(rng.expovariate(2))
        nursery.cancel_scope.cancel()
    statuses = [each.status for subject in subjects for each in subject.outcomes]
    assert [each for subject in subjects for each in subject.violations()] == []
    assert statuses.count(Status.OK) > 100  # both happened, often
    assert statuses.count(Status.PERMISSION_DENIED) > 50
    assert statuses.count(Status.UNAUTHENTICATED) > 0
