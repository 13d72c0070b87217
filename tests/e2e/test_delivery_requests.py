"""Request and reply over topics, as services see it."""

from __future__ import annotations

import pytest
import trio
from brokers import BrokerProcess

from danube import connect
from danube.client import Message
from danube.model.errors import DeadlineExceededError, RequestFailedError


async def test_requests_are_answered_by_any_connected_responder(shared_broker: BrokerProcess) -> None:
    topic = "/default/double"
    url = shared_broker.url
    asked: list[str] = []

    async def double(request: Message) -> bytes:
        number = int(request.payload)
        if number == 13:
            raise ValueError("thirteen is not doubled here")
        if number == 99:
            await trio.sleep_forever()
        return b"%d" % (2 * number)

    async def ask(name: str, first: int) -> None:
        async with connect(url) as client, client.requester(topic) as requester, trio.open_nursery() as nursery:

            async def ask_one(number: int) -> None:
                reply = await requester.request(b"%d" % number, timeout_s=10)
                assert int(reply.payload) == 2 * number
                asked.append(name)

            for number in range(first, first + 50):
                nursery.start_soon(ask_one, number)

    with trio.fail_after(20):
        async with (
            connect(url) as one,
            connect(url) as two,
            one.responder(topic, double) as first,
            two.responder(topic, double) as second,
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, "ada", 100)
                nursery.start_soon(ask, "bob", 200)
            assert sorted(asked) == ["ada"] * 50 + ["bob"] * 50
            assert first.answered + second.answered == 100
            async with one.requester(topic) as requester:
                with pytest.raises(RequestFailedError, match="thirteen is not doubled here"):
                    await requester.request(b"13")
                with pytest.raises(DeadlineExceededError):
                    await requester.request(b"99", timeout_s=0.2)
                assert int((await requester.request(b"4")).payload) == 8
