"""Keeps a consume stream open for an inflow: opens it, reads its replies, and opens another one after a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import msgspec

from danube.client._checks import encoded
from danube.client._retry import Retry, ask, receive_reply
from danube.model import api
from danube.model.errors import DanubeError, ProtocolError, SubscriptionBusyError

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from danube.client._inflow import Inflow
    from danube.client._pool import Pool
    from danube.wire.client import Channel

__all__ = ["ConsumeStream"]

_decode = msgspec.msgpack.Decoder(api.ConsumeReply).decode


class ConsumeStream:
    """The stream of one inflow.

    Args:
        pool: connections to the brokers.
        inflow: receives what arrives.
    """

    def __init__(self, pool: Pool, inflow: Inflow) -> None:
        self._pool = pool
        self._inflow = inflow
        self._route = pool.route(inflow.topic)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Keep a stream open until cancelled; ``started()`` is called when the first one is open.

        A permanent error ends the inflow: before ``started()`` it is raised, afterwards the application gets it once it
        has taken all deliveries that have arrived.
        """
        inflow = self._inflow
        retry = Retry(self._pool)
        while True:
            try:
                channel = await self._pool.follow(self._route)
                inflow.opening()
                with anyio.CancelScope() as scope:
                    inflow.interrupt = scope.cancel
                    await self._session(channel, retry, task_status)
            except DanubeError as error:
                if self._route.failed(error):
                    continue
                # After an outage the broker may still count this consumer's old stream as connected.
                again = error.retryable or isinstance(error, ProtocolError)
                again = again or (retry.succeeded_once and isinstance(error, SubscriptionBusyError))
                if again and await retry.wait(error):
                    continue
                final = self._route.explained(error)
                if not retry.succeeded_once:
                    raise final from error.__cause__
                inflow.fail(final)
                return
            finally:
                inflow.lost()

    async def _session(self, channel: Channel, retry: Retry, task_status: TaskStatus[None]) -> None:
        inflow = self._inflow
        topic = inflow.topic
        async with ask(channel, api.Method.CONSUME) as stream:
            inflow.open_message.topic_id = self._route.topic_id
            with retry.opening(f"opening a consumer on {topic}"):
                await stream.send(encoded(inflow.open_message))
                answer = await receive_reply(stream, _decode, topic)
            if not isinstance(answer, api.ConsumeOpened):
                raise ProtocolError(f"the broker answered ConsumeOpen with {type(answer).__name__}")
            inflow.opened(stream, answer)
            self._route.served(answer.topic_id)
            if not retry.succeeded_once:
                task_status.started()
            retry.succeeded()
            while True:
                reply = await receive_reply(stream, _decode, topic)
                if inflow.stream is stream:
                    inflow.take(reply)
