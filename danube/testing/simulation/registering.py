"""Applications of a simulated world that use the schema registry, each by two brokers at a time if there are two.

They register schemas, the same one at both brokers at once now and then, read by number and by version what was
registered, be it by others, delete versions, change levels, and send messages with the numbers of schemas. All schemas
of shared subjects are compatible with each other, whatever their level is; in a subject whose versions are never
deleted, some registrations must be refused.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from danube.client import Client
from danube.model.batch import SchemaRef
from danube.model.errors import (
    AlreadyExistsError,
    DanubeError,
    IncompatibleSchemaError,
    NotFoundError,
    SchemaMismatchError,
    SchemaNotFoundError,
)
from danube.model.policies import SchemaValidation
from danube.testing.schema_history import SchemaHistory, SeenVersion
from danube.testing.simulation.node import shown_error

if TYPE_CHECKING:
    from danube.testing.simulation.workload import Applications, TopicPlan

__all__ = ["FIRM", "SHARED", "SchemaUserPlan", "audit_schemas", "draw_schema_users", "use_schemas"]

FIRM: Final = "/default/firm-value"
"""The subject whose versions are never deleted, and whose level stays, so that a refusal is final."""
SHARED: Final = ("/default/orders-value", "prices")
"""The other subjects."""
_POOL: Final = 12
"""Schemas that several applications register."""
_LEVELS: Final = ("none", "backward", "forward_transitive", "full", "full_transitive")


class SchemaUserPlan(NamedTuple):
    """An application that uses the registry."""

    name: str
    """Of the host."""
    topic: TopicPlan
    """Its brokers are asked, and its durability is that of the topic that the messages are sent to."""
    every_s: float
    """Mean pause."""
    crash_after_s: float
    """Mean time until the application crashes and restarts."""
    sends: bool
    """Whether it has a topic of its own, whose messages have schemas."""


def draw_schema_users(random: Random, topic: TopicPlan, *, sends: bool) -> list[SchemaUserPlan]:
    """Draw the applications of a world.

    Args:
        random: where from.
        topic: one of the world's, which is not of durability ``none`` if ``sends``.
        sends: whether they may have topics.
    """
    return [
        SchemaUserPlan(
            name=f"r{index}",
            topic=topic,
            every_s=random.choice((0.1, 0.3, 1.0)),
            crash_after_s=random.choice((8.0, 30.0, 1000.0)),
            sends=sends and random.random() < 0.7,
        )
        for index in range(random.choice((1, 2, 3)))
    ]


async def use_schemas(applications: Applications, plan: SchemaUserPlan, random: Random) -> None:
    """Use the registry until all is calm; continue after any error of a call."""
    user = _User(applications, plan)
    connect = partial(_two_clients, applications)
    await applications.again_and_again(plan.name, random, user.work, plan.crash_after_s, plan.topic, connect)


async def audit_schemas(history: SchemaHistory, client: Client, label: str, where: str) -> None:
    """Read everything from one broker, while nothing changes.

    Raises:
        DanubeError: it does not answer; what was read until then is recorded.
    """
    rows = await client.schemas.subjects(deleted=True)
    for row in rows:
        info = await client.schemas.subject(row.subject, deleted=True)
        found = [SeenVersion(each.version, each.number, each.is_deleted) for each in info.versions]
        for number in sorted({each.number for each in found}):
            start = trio.current_time()
            try:
                schema = await client.schemas.get(number)
            except SchemaNotFoundError:
                history.missed(number, where, start, trio.current_time())
            else:
                history.read(_content(schema.text), number, trio.current_time())
        history.audit(label, where, row.subject, info.number, found)


@asynccontextmanager
async def _two_clients(
    applications: Applications, host: str, random: Random, home: str
) -> AsyncIterator[Sequence[tuple[str, Client]]]:
    """Connect to two machines of a home, if there are two."""
    machines = list(applications.routes[home])
    chosen = random.sample(machines, 2) if applications.is_cluster else [machines[0], machines[0]]
    async with AsyncExitStack() as stack:
        yield [
            (machine, await stack.enter_async_context(applications.client(host, random, home, machine)))
            for machine in chosen
        ]


class _User:
    """An application, across its crashes."""

    def __init__(self, applications: Applications, plan: SchemaUserPlan) -> None:
        self._applications = applications
        self._history = applications.schemas
        self._plan = plan
        self._own = 0
        self._known: list[tuple[str, int, int]] = []
        """(subject, version, number) that were acknowledged."""
        self._sent = 0

    async def work(self, clients: Sequence[tuple[str, Client]], random: Random) -> bool:
        """Repeat actions until all is calm."""
        calm = self._applications.calm
        actions = {self._register: 5, self._read: 4, self._refuse: 1, self._delete: 1, self._set_level: 1}
        if self._plan.sends:
            actions[self._send] = 1
        while not calm.is_set():
            (action,) = random.choices(list(actions), list(actions.values()))
            try:
                await action(clients, random)
            except DanubeError as error:
                self._applications.trace("schema-error", self._plan.name, action.__name__, shown_error(error))
            with trio.move_on_after(random.expovariate(1 / self._plan.every_s)):
                await calm.wait()
        return True

    # --- Registering

    async def _register(self, clients: Sequence[tuple[str, Client]], random: Random) -> None:
        """Register at both brokers at once, the same schema or two; then read at one what the other has answered."""
        same = random.random() < 0.6
        first = random.choice((*SHARED, FIRM)), self._fields(random)
        second = first if same else (random.choice((*SHARED, FIRM)), self._fields(random))
        async with trio.open_nursery() as nursery:
            for number, (subject, fields) in enumerate((first, second)):
                reader = clients[1 - number] if random.random() < 0.7 else None
                nursery.start_soon(self._put, clients[number], reader, subject, _order(fields), _spelling(random))
                if random.random() < 0.5:
                    await trio.sleep(random.random() * 0.01)

    def _fields(self, random: Random) -> str:
        if random.random() < 0.5:
            return f"shared{random.randrange(_POOL)}"
        self._own += 1
        return f"{self._plan.name}x{self._own}"

    async def _put(
        self,
        to: tuple[str, Client],
        reader: tuple[str, Client] | None,
        subject: str,
        schema: dict[str, Any],
        spelling: dict[str, Any],
    ) -> None:
        history, (machine, client) = self._history, to
        text = json.dumps(schema, **spelling)
        asked = history.registering(subject, _content(text), trio.current_time())
        try:
            done = await client.schemas.register(subject, "avro", text)
        except IncompatibleSchemaError as error:
            history.violation(f"S5: {machine} refuses what is compatible: {shown_error(error)}")
            return
        except DanubeError as error:
            self._applications.trace("register-failed", self._plan.name, subject, shown_error(error))
            return
        history.acknowledged(asked, done.number, done.version, done.subject_number, trio.current_time())
        self._applications.trace("registered", machine, subject, done.version, done.number, done.is_new)
        self._known.append((subject, done.version, done.number))
        if reader is not None:
            with suppress(DanubeError):
                await self._read_number(reader, done.number)
                await self._read_version(reader, subject, done.version, deleted=True)

    async def _refuse(self, clients: Sequence[tuple[str, Client]], random: Random) -> None:
        """Register what no version of the firm subject is compatible with."""
        if not any(subject == FIRM for subject, _, _ in self._known):
            return
        self._own += 1
        text = json.dumps(_order(f"{self._plan.name}x{self._own}", needed=True))
        asked = self._history.registering(FIRM, _content(text), trio.current_time())
        machine, client = random.choice(clients)
        try:
            await client.schemas.register(FIRM, "avro", text)
        except IncompatibleSchemaError as error:
            self._history.refused(asked, shown_error(error))
            self._applications.trace("refused", machine, FIRM)
        else:
            self._history.violation(f"S5: {machine} accepts for {FIRM} what is not compatible: {text}")

    # --- Reading

    async def _read(self, clients: Sequence[tuple[str, Client]], random: Random) -> None:
        """Read something that was registered before."""
        if not self._known:
            return
        subject, version, number = random.choice(self._known)
        if random.random() < 0.5:
            await self._read_number(random.choice(clients), number)
        else:
            await self._read_version(random.choice(clients), subject, version, deleted=random.random() < 0.5)

    async def _read_number(self, of: tuple[str, Client], number: int) -> None:
        (machine, client), start = of, trio.current_time()
        try:
            found = await client.schemas.get(number)
        except NotFoundError as error:
            self._applications.trace("schema-missed", machine, shown_error(error))
            self._history.missed(number, machine, start, trio.current_time())
        else:
            self._history.read(_content(found.text), found.number, trio.current_time())

    async def _read_version(self, of: tuple[str, Client], subject: str, version: int, *, deleted: bool) -> None:
        (machine, client), start = of, trio.current_time()
        try:
            found = await client.schemas.version(subject, version, deleted=deleted)
        except NotFoundError as error:
            self._applications.trace("schema-missed", machine, shown_error(error))
            self._history.missed_version(subject, version, machine, start, trio.current_time(), deleted=deleted)
        else:
            content = _content(found.text)
            self._history.read_version(subject, found.version, content, found.number, trio.current_time())

    # --- Changing

    async def _delete(self, clients: Sequence[tuple[str, Client]], random: Random) -> None:
        """Delete a version of a shared subject, or all."""
        known = [each for each in self._known if each[0] != FIRM]
        if not known:
            return
        subject, version, _ = random.choice(known)
        version = random.choice((version, version, version, 0))
        machine, client = random.choice(clients)
        start = trio.current_time()
        self._history.deleting(subject, version, start)
        gone = await client.schemas.delete(subject, version)
        self._history.deleted(subject, gone, start)
        self._applications.trace("schema-deleted", machine, subject, gone)

    async def _set_level(self, clients: Sequence[tuple[str, Client]], random: Random) -> None:
        machine, client = random.choice(clients)
        subject, level = random.choice(SHARED), random.choice(_LEVELS)
        await client.schemas.set_compatibility(subject, level=level)
        self._applications.trace("schema-level", machine, subject, level)

    # --- Messages

    async def _send(self, clients: Sequence[tuple[str, Client]], random: Random) -> None:
        """Send messages with the number of a schema to a topic that takes no others, and read them."""
        known = [each for each in self._known if each[0] == FIRM]
        if not known:
            return
        topic = f"/default/schemas-{self._plan.name}"
        _, client = random.choice(clients)
        with suppress(AlreadyExistsError):
            await client.admin.create_topic(topic, durability=self._plan.topic.durability)
        await client.schemas.bind(topic, FIRM)
        await client.admin.change_policies(topic, schema_validation=SchemaValidation.ENFORCE)
        _, version, number = random.choice(known)
        self._sent += 1
        payload = b"%d|%d" % (number, self._sent)
        try:
            async with client.producer(topic) as producer:
                producer._carry(SchemaRef(number, version))
                await producer.send(payload)
        except SchemaMismatchError as error:
            self._history.violation(f"S4: a message with number {number} of {FIRM} is refused: {shown_error(error)}")
            return
        self._applications.trace("sent-with-schema", topic, number)
        async with client.reader(topic, start="earliest") as reader:
            with trio.move_on_after(1.0):
                async for batch in reader.batches():
                    for message in batch:
                        if int(message.payload.partition(b"|")[0]) != batch.schema_id:
                            self._history.violation(f"S4: {message.payload!r} arrives with number {batch.schema_id}")
                        if message.payload == payload:
                            return


def _order(name: str, *, needed: bool = False) -> dict[str, Any]:
    """Return a schema that is compatible with all others, or with none of them."""
    field = {"name": name, "type": "int"} if needed else {"name": name, "type": ["null", "int"], "default": None}
    return {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, field]}


def _spelling(random: Random) -> dict[str, Any]:
    """Return how to write a schema: its content is the same."""
    return random.choice(({}, {"indent": 1}, {"sort_keys": True}))


def _content(text: str) -> str:
    """Return what is equal for all spellings of a schema of this module: the name of its field."""
    field = json.loads(text)["fields"][1]
    return str(field["name"]) if "default" in field else f"needed {field['name']}"
