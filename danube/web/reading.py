"""Handlers that publish and read messages, by the native client within the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from danube.http import Response, TextSink, event_text
from danube.model.errors import InvalidArgumentError, NotFoundError
from danube.model.query_api import LogState
from danube.web.administration import Handler, event_stream
from danube.web.bodies import MessagePage, MessageRow, ReceiptRow, Receipts
from danube.web.caller import ApiCall
from danube.web.guard import media_type
from danube.web.messages import (
    Last,
    Outgoing,
    Positions,
    message_row,
    ndjson_messages,
    parse_positions,
    published,
    raw_message,
    shown_positions,
)
from danube.web.once import publish_once
from danube.web.routes import BYTES, JSON, NDJSON

if TYPE_CHECKING:
    from danube.client import Client, Message

__all__ = ["HANDLERS"]

_MOST_BYTES: Final = 8 * 1024 * 1024
"""Payloads of one page; the last message may exceed it."""
_MOST_LOOKED_AT: Final = 20_000
"""Messages that are read to find the last N of several partitions."""


# --- Publishing


async def publish(call: ApiCall) -> Receipts:
    """Publish messages, and answer when all of them are durable."""
    messages = await _outgoing(call)
    if call.values["Idempotency-Key"] is not None:
        return await publish_once(call, messages)
    async with (
        call.client() as client,
        client.producer(call.topic, name=call.values["producer"]) as producer,
    ):
        pending = [
            producer.send_nowait(
                each.payload,
                key=each.key,
                attributes=each.attributes,
                deliver_at=each.deliver_at,
                deliver_after_s=each.deliver_after_s,
            )
            for each in messages
        ]
        receipts = [await each for each in pending]
    return Receipts(
        receipts=[ReceiptRow(topic=each.topic, partition=each.partition, offset=each.offset) for each in receipts]
    )


async def _outgoing(call: ApiCall) -> list[Outgoing]:
    kind = media_type(call.request.headers)
    if kind == JSON:
        messages = published(call.body)
    elif kind == NDJSON:
        messages = ndjson_messages(await call.request.body.read())
    else:
        messages = [raw_message(await call.request.body.read(), call.request.headers)]
    if not messages:
        raise InvalidArgumentError("the body has no message; send at least one")
    return messages


# --- Reading


class _Log:
    """One plain topic or partition that is read."""

    def __init__(self, state: LogState) -> None:
        self.state = state
        self.start = int(state.start_offset)
        self.end = int(state.end_offset)


async def _logs(call: ApiCall, client: Client) -> dict[int, _Log]:
    """Return the logs of the topic in the path, by partition."""
    return {state.partition: _Log(state) for state in await client.logs.states([call.topic])}


def _starts(logs: Mapping[int, _Log], wanted: Positions) -> dict[int, int | str | datetime]:
    """Return where to read each partition from."""
    if isinstance(wanted, dict):
        for partition in wanted:
            if partition not in logs:
                raise InvalidArgumentError(f"the position names partition {partition}, which is not read here")
        return {partition: wanted.get(partition, log.start) for partition, log in logs.items()}
    if isinstance(wanted, Last):
        return {partition: max(log.start, log.end - wanted.messages) for partition, log in logs.items()}
    if wanted == "earliest":
        return {partition: log.start for partition, log in logs.items()}
    if wanted == "latest":
        return {partition: log.end for partition, log in logs.items()}
    return dict.fromkeys(logs, wanted)


def _for_reader(
    logs: Mapping[int, _Log], starts: Mapping[int, int | str | datetime]
) -> tuple[str, Mapping[int, int | str | datetime]]:
    """Return the topic of a reader, and where it starts: its own numbers of partitions begin with 0."""
    if len(logs) == 1:
        ((partition, log),) = logs.items()
        return log.state.name, {0: starts[partition]}
    return next(iter(logs.values())).state.topic, starts


async def read_messages(call: ApiCall) -> MessagePage:
    """Read a page of messages."""
    values = call.values
    limit, payload_bytes = values["limit"], values["payload_bytes"]
    wanted = parse_positions(values["from"])
    last = wanted.messages if isinstance(wanted, Last) else None
    if last is not None and last > limit:
        wanted = Last(limit)
        last = limit
    async with call.client() as client:
        logs = await _logs(call, client)
        starts = _starts(logs, wanted)
        single = next(iter(logs)) if len(logs) == 1 else None
        most = limit if last is None else min(last * len(logs), _MOST_LOOKED_AT)
        found: list[tuple[int, int, int, Message]] = []
        behind: dict[int, int] = {}
        size, caught_up = 0, False
        topic, start = _for_reader(logs, starts)
        async with client.reader(topic, start=start, credit_messages=max(most, 1), credit_bytes=1 << 20) as reader:
            behind = _numbered(reader.position, single)
            while len(found) < most and size < _MOST_BYTES:
                batch = await anext(reader.batches(until_caught_up=True), None)
                if batch is None:
                    caught_up = True
                    break
                partition = batch.partition if single is None else single
                for message in batch[: most - len(found)]:
                    found.append((message.append_time_us, partition, message.offset, message))
                    behind[partition] = message.offset + 1
                    size += min(len(message.payload), payload_bytes)
                    if size >= _MOST_BYTES:
                        break
            if caught_up:
                behind = {**behind, **_numbered(reader.position, single)}
    found.sort(key=lambda each: each[:3])
    if last is not None:
        found = found[-last:]
    rows = [message_row(message, partition, payload_bytes) for _, partition, _, message in found]
    return MessagePage(messages=rows, next=shown_positions(behind), caught_up=caught_up)


def _numbered(positions: Mapping[int, int], single: int | None) -> dict[int, int]:
    """Return the positions of a reader by the numbers of the partitions."""
    return dict(positions) if single is None else dict.fromkeys([single], next(iter(positions.values())))


async def read_message(call: ApiCall) -> Any:
    """Return one message, or its payload."""
    partition, offset = _number(call, "partition"), _number(call, "offset")
    missing = NotFoundError(f"topic {call.topic} has no message at partition {partition}, offset {offset}")
    async with call.client() as client:
        logs = await _logs(call, client)
        log = logs.get(partition)
        if log is None or not log.start <= offset < log.end:
            raise missing
        async with client.reader(log.state.name, start=offset, credit_messages=1) as reader:
            batch = await anext(reader.batches(until_caught_up=True), None)
            message = None if batch is None else batch[0]
    if message is None or message.offset != offset:
        raise missing
    if call.values["download"] is not None:
        name = f"{call.path['name']}-{partition}-{offset}.bin"
        disposition = ("Content-Disposition", f'attachment; filename="{name}"')
        return Response(200, message.payload, content_type=BYTES, headers=[disposition])
    return message_row(message, partition, len(message.payload))


def _number(call: ApiCall, name: str) -> int:
    text = call.path[name]
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidArgumentError(f"{name} {ascii(text)[:80]} is no number")
    return int(text)


async def tail_messages(call: ApiCall) -> Response:
    """Follow a topic by a stream of events."""
    last = call.values["Last-Event-ID"]
    wanted = parse_positions(last or call.values["from"])
    payload_bytes = call.values["payload_bytes"]
    async with call.client() as client:  # errors become a status, which a stream that has begun has no more
        starts = _starts(await _logs(call, client), wanted)

    async def stream(sink: TextSink) -> None:
        async with call.client() as client:
            logs = await _logs(call, client)
            single = next(iter(logs)) if len(logs) == 1 else None
            topic, start = _for_reader(logs, {**_starts(logs, "earliest"), **starts})
            async with client.reader(topic, start=start, credit_messages=1_000, credit_bytes=4 << 20) as reader:
                positions = _numbered(reader.position, single)
                opened = event_text(b"{}", name="open", event_id=shown_positions(positions), retry_ms=1_000)
                await sink.send(opened)
                while True:
                    batch = await reader.receive_batch()
                    partition = batch.partition if single is None else single
                    await sink.send(b"".join(_events_of(batch, partition, positions, payload_bytes)))

    return event_stream(stream)


def _events_of(batch: Sequence[Message], partition: int, positions: dict[int, int], payload_bytes: int) -> list[bytes]:
    """Return an event for each message; its id is the position behind it in all partitions."""
    found = []
    for message in batch:
        positions[partition] = message.offset + 1
        row: MessageRow = message_row(message, partition, payload_bytes)
        found.append(event_text(msgspec.json.encode(row), name="message", event_id=shown_positions(positions)))
    return found


HANDLERS: Final[Mapping[str, Handler]] = {
    handler.__name__: handler for handler in (publish, read_messages, read_message, tail_messages)
}
"""By the operation of the route."""
