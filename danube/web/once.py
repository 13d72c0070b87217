"""Publishing with ``Idempotency-Key``: a repeated request stores nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import trio

from danube.http import single_error
from danube.model.batch import PART_OVERHEAD
from danube.model.errors import InvalidArgumentError, ProducerFencedError
from danube.model.limits import MIB
from danube.web.bodies import ReceiptRow, Receipts
from danube.web.idempotency import KeyReusedError, checked_key, fingerprint
from danube.web.messages import Outgoing

if TYPE_CHECKING:
    from danube.web.caller import ApiCall

__all__ = ["publish_once"]

_ATTEMPTS: Final = 6
"""How often a request tries while others use the same key: each try stores what is missing, and so ends soon."""
_PAUSE_S: Final = 0.05


async def publish_once(call: ApiCall, messages: Sequence[Outgoing]) -> Receipts:
    """Publish messages under the key of a request.

    Raises:
        KeyReusedError: the key was used for other messages.
        InvalidArgumentError: the key is none, or a producer is named, too.
    """
    key = checked_key(call.values["Idempotency-Key"])
    if call.values["producer"] is not None:
        raise InvalidArgumentError("a request has Idempotency-Key or producer, not both; leave out the producer")
    call.keys.use(call.topic, key, fingerprint(messages))
    pause_s = _PAUSE_S
    for attempt in range(_ATTEMPTS):
        try:
            return await _attempt(call, key, messages)
        except (ProducerFencedError, ExceptionGroup) as error:
            # The same request is made elsewhere, and has taken over: it may have stored some of the messages.
            if not isinstance(single_error(error), ProducerFencedError) or attempt == _ATTEMPTS - 1:
                raise
        await trio.sleep(pause_s * (1 + call.broker.runtime.new_id() % 1_000 / 1_000))
        pause_s *= 2
    raise AssertionError("the last attempt raises")


async def _attempt(call: ApiCall, key: str, messages: Sequence[Outgoing]) -> Receipts:
    async with call.client() as client:
        from danube.client import once  # loaded with the client

        limits = call.broker.runtime.limits
        try:
            receipts = await once.publish_once(
                client,
                call.topic,
                [
                    once.OnceMessage(each.payload, each.key, each.attributes, each.deliver_at, each.deliver_after_s)
                    for each in messages
                ],
                token=key,
                batch_max_bytes=min(MIB, limits.max_batch_bytes - PART_OVERHEAD),
                batch_max_messages=min(50_000, limits.max_batch_records),
            )
        except once.RepeatedTokenError as error:
            raise KeyReusedError(
                f"this Idempotency-Key was used for other messages of topic {call.topic}; take another key for these"
            ) from error
    return Receipts(
        receipts=[ReceiptRow(topic=each.topic, partition=each.partition, offset=each.offset) for each in receipts]
    )
