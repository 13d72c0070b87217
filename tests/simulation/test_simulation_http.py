"""HTTP in the simulated network: callers publish, pull and acknowledge while connections break and the broker dies.

Each request that got no answer is repeated with its ``Idempotency-Key``, and the history checker is asked whether the
promises hold: nothing is stored twice or in another order, everything is delivered, and what was acknowledged is not
delivered again by later sessions.
"""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import h11
import pytest
import trio
from broker.broker_harness import RunningBroker, VirtualMachine, running_broker

import danube.web
from danube.model.policies import Durability, SubscriptionType
from danube.testing.history import Audited, History, Session

pytestmark = pytest.mark.virtual

PORT = 8650
TOPIC = "/default/orders"
ORDERS = "/api/v1/topics/default/orders"
BILLING = f"{ORDERS}/subscriptions/billing"
PUBLISHERS, REQUESTS, FAULTS = 3, 10, 14
ANSWER_S = 15.0
PATIENCE_S = 3_600.0


class World:
    """A simulated broker with HTTP, its callers, and what they have seen."""

    def __init__(self, running: RunningBroker, seed: int) -> None:
        assert running.machine is not None
        self.running = running
        self.machine: VirtualMachine = running.machine
        self.random = random.Random(seed)
        self.history = History(trio.current_time)
        self.publishing = PUBLISHERS
        self.lost_answers = 0

    async def ask(
        self, method: str, path: str, body: Any = None, *, patience_s: float = ANSWER_S, **headers: str
    ) -> tuple[int, Any]:
        """Return status and JSON of the answer; status 0: there was none, whatever became of the request."""
        with (
            trio.move_on_after(patience_s),
            suppress(
                OSError,
                anyio.BrokenResourceError,
                anyio.ClosedResourceError,
                anyio.EndOfStream,
                h11.RemoteProtocolError,
            ),
        ):
            stream = await self.machine.network.connect("test", VirtualMachine.HOST, PORT)
            try:
                return await self._exchange(stream, method, path, body, headers)
            finally:
                with trio.CancelScope(shield=True):
                    await stream.aclose()
        self.lost_answers += 1
        return 0, None

    async def _exchange(
        self, stream: Any, method: str, path: str, body: Any, headers: dict[str, str]
    ) -> tuple[int, Any]:
        http = h11.Connection(h11.CLIENT)
        data = b"" if body is None else json.dumps(body).encode()
        given = {"Host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if data:
            given |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
        head = http.send(h11.Request(method=method, target=path, headers=list(given.items())))
        await stream.send(head + (http.send(h11.Data(data=data)) if data else b"") + http.send(h11.EndOfMessage()))
        status, found = 0, b""
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await stream.receive(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                found += event.data
            elif isinstance(event, h11.EndOfMessage):
                return status, json.loads(found) if found else None

    # --- Callers

    async def publish(self, name: str) -> None:
        """Publish requests one after the other; repeat each until it is answered."""
        chance = random.Random(f"{name} {self.random.random()}")
        number = 0
        for request in range(REQUESTS):
            payloads = [f"{name}-{request}-{each}" for each in range(chance.randint(1, 4))]
            for payload in payloads:
                self.history.publish(name, 1, number, TOPIC, payload.encode(), None)
                number += 1
            body = {"messages": [{"payload": payload} for payload in payloads]}
            while True:
                # Callers that give up meet every moment of a request, before and after its messages are stored.
                patience_s = chance.choice([ANSWER_S, chance.uniform(0, 0.1)])
                key = f"{name}-{request}"
                status, said = await self.ask(
                    "POST", f"{ORDERS}/messages", body, patience_s=patience_s, Idempotency_Key=key
                )
                if status == 201:
                    break
                assert status in (0, 409, 503, 504), (status, said)
                assert status != 409 or said["code"] == "producer-fenced", said
                await trio.sleep(0.3)
            for payload, receipt in zip(payloads, said["receipts"], strict=True):
                self.history.acknowledge(payload.encode(), receipt["topic"], receipt["offset"])
            await trio.sleep(chance.random())
        self.publishing -= 1

    async def pull(self) -> None:
        """Pull and acknowledge until everything is published and acknowledged."""
        history = self.history
        began, sessions = history.opening(), dict[str, Session]()
        while True:
            lives = self.machine.node.lives
            asked = {"max": 5, "wait_s": 2, "type": "exclusive", "start": "earliest"}
            status, said = await self.ask("POST", f"{BILLING}:pull", asked)
            if status != 200:
                assert status in (0, 409, 503, 504), (status, said)
                await trio.sleep(0.3)
                continue
            taken: dict[str, tuple[Session, Any, tuple[int, int]]] = {}
            for row in said["messages"]:
                name = f"{lives} {row['ack_id'].partition('-')[0]}"
                if name not in sessions:
                    sessions[name] = history.session("billing", SubscriptionType.EXCLUSIVE, [TOPIC], began=began)
                session, payload = sessions[name], row["payload"].encode()
                history.deliver(session, 1, TOPIC, row["offset"], payload, None, attempt=row["attempt"])
                moment = history.moment(session, TOPIC)
                taken[row["ack_id"]] = session, history.given(session, TOPIC, row["offset"], payload, moment), moment
            began = history.opening()
            if taken:
                status, said = await self.ask("POST", f"{BILLING}:ack", {"ack_ids": list(taken)})
                if status == 200:
                    for ack_id in taken.keys() - set(said["unknown"]):
                        session, spot, moment = taken[ack_id]
                        history.confirmed(session, TOPIC, [spot], 1, moment)
            elif not self.publishing and await self._backlog() == 0:
                return

    async def _backlog(self) -> int:
        status, said = await self.ask("GET", BILLING)
        return int(said["subscriptions"][0]["backlog_messages"]) if status == 200 else -1

    # --- Faults

    async def disturb(self) -> None:
        network, here, there = self.machine.network, "test", VirtualMachine.HOST
        for _ in range(FAULTS):
            await trio.sleep(self.random.uniform(0.1, 1.5))
            match self.random.choice(["reset", "cut", "half-open", "kill", "power", "drain"]):
                case "reset":
                    network.reset(here, there)
                case "cut":
                    network.set_cut(here, there, True)
                    await trio.sleep(self.random.uniform(0.1, 20))
                    network.mend(here, there)
                case "half-open":
                    network.half_open(here, there)
                case "drain":
                    await self.running.drain()
                    await self.start()
                case fault:
                    self.machine.node.crash(power_loss=fault == "power")
                    await self.running._ended.wait()
                    if fault == "power":
                        self.history.power_loss()
                    await self.start()

    async def start(self) -> None:
        self.history.new_life()
        await self.running.start()
        self.history.recovered()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(2, 10))])
async def test_the_promises_hold_for_callers_of_http(tmp_path: Path, seed: int) -> None:
    faces = (danube.web.face,)
    settings: dict[str, Any] = {"http_listen": [f"{VirtualMachine.HOST}:{PORT}"], "faces": faces}
    async with running_broker(tmp_path, patience_s=PATIENCE_S, **settings) as running:
        world = World(running, seed)
        assert (await world.ask("POST", "/api/v1/topics", {"topic": TOPIC}))[0] == 201
        world.history.topic(TOPIC, Durability.DISK)
        world.history.new_life()
        async with trio.open_nursery() as nursery:
            for number in range(PUBLISHERS):
                nursery.start_soon(world.publish, f"p{number}")
            nursery.start_soon(world.pull)
            nursery.start_soon(world.disturb)
        for label in ("at the end", "after a restart"):
            status, said = await world.ask("GET", f"{ORDERS}/messages?limit=1000")
            assert status == 200, said
            found = [Audited(row["offset"], row["payload"].encode(), None) for row in said["messages"]]
            world.history.audit(label, TOPIC, found)
            await running.restart(crash=True)
        assert world.history.check() == []
        assert world.history.acknowledged_messages == world.history.published_messages > 20
        assert world.lost_answers > 0, "nothing was disturbed"
