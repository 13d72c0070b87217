"""Messages as JSON, positions as text, and what publishers send. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from danube.model.decoding import UNDECODABLE
from danube.model.errors import InvalidArgumentError, LimitExceededError
from danube.model.policies import EARLIEST, LATEST
from danube.web.bodies import MessageRow, Publication, PublishedMessage, Pull, PulledMessage

__all__ = [
    "MOST_PUBLISHED",
    "Last",
    "Outgoing",
    "Positions",
    "message_row",
    "ndjson_messages",
    "parse_positions",
    "published",
    "pull_start",
    "pulled_message",
    "raw_message",
    "shown_positions",
]

MOST_PUBLISHED: Final = 100_000
"""Messages of one call."""
_MAX_DIGITS: Final = 19
_ATTRIBUTE: Final = "danube-attribute-"


class Delivered(Protocol):
    """A message as the client has received it."""

    payload: bytes
    offset: int
    key_bytes: bytes | None
    attributes: dict[str, str] | None

    @property
    def topic(self) -> str:
        """The plain topic or partition."""
        ...

    @property
    def partition(self) -> int:
        """0 in a plain topic."""
        ...

    @property
    def publish_time_us(self) -> int:
        """By the producer's clock."""
        ...

    @property
    def append_time_us(self) -> int:
        """By the broker's clock."""
        ...

    @property
    def producer(self) -> str:
        """Name of the producer."""
        ...

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        ...


def message_row(message: Delivered, partition: int, payload_bytes: int) -> MessageRow:
    """Return a message as JSON.

    Args:
        message: as it was received.
        partition: its number; a reader of one partition does not know it.
        payload_bytes: beyond which its payload is cut.
    """
    return MessageRow(**_fields(message, partition, payload_bytes))


def pulled_message(message: Delivered, ack_id: str, payload_bytes: int) -> PulledMessage:
    """Return a delivery to a puller as JSON."""
    return PulledMessage(ack_id=ack_id, attempt=message.attempt, **_fields(message, message.partition, payload_bytes))


def _fields(message: Delivered, partition: int, payload_bytes: int) -> dict[str, Any]:
    payload, size = message.payload, len(message.payload)
    cut = size > payload_bytes
    text, binary = _text_or_base64(_cut(payload, payload_bytes) if cut else payload)
    key, key_base64 = (None, None) if message.key_bytes is None else _text_or_base64(message.key_bytes)
    return {
        "topic": message.topic,
        "partition": partition,
        "offset": message.offset,
        "key": key,
        "key_base64": key_base64,
        "attributes": message.attributes or {},
        "publish_time_us": message.publish_time_us,
        "append_time_us": message.append_time_us,
        "producer": message.producer,
        "size_bytes": size,
        "payload": text,
        "payload_base64": binary,
        "truncated": cut,
    }


def _cut(payload: bytes, size: int) -> bytes:
    """Return the beginning of a payload; of a text without half a character."""
    piece = payload[:size]
    for dropped in range(min(4, len(piece))):
        shorter = piece[: len(piece) - dropped]
        try:
            shorter.decode("utf-8")
        except UnicodeDecodeError:
            continue
        return shorter
    return piece


def _text_or_base64(data: bytes) -> tuple[str | None, str | None]:
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError:
        return None, base64.b64encode(data).decode("ascii")


# --- Positions -------------------------------------------------------------------------------------------------------


class Last(NamedTuple):
    """The last so many messages."""

    messages: int


Positions = str | int | datetime | Last | dict[int, int]
"""``earliest``, ``latest``, an offset, a time, the last N messages, or an offset for each partition."""


def parse_positions(text: str) -> Positions:
    """Parse where to read from: ``earliest``, ``latest``, ``15``, ``-100``, ``@TIME``, or ``0:15,1:22`` by partition.

    Raises:
        InvalidArgumentError: it is none of these.
    """
    if text in (EARLIEST, LATEST):
        return text
    if text.startswith("@"):
        return _moment(text[1:])
    if text.startswith("-") and _is_number(text[1:]) and int(text[1:]):
        return Last(int(text[1:]))
    if _is_number(text):
        return int(text)
    found: dict[int, int] = {}
    for pair in text.split(","):
        partition, colon, offset = pair.partition(":")
        if not colon or not _is_number(partition) or not _is_number(offset) or int(partition) in found:
            raise InvalidArgumentError(
                f"position {ascii(text)[:80]} is not earliest, latest, an offset, -N, @TIME such as"
                " @2026-01-31T12:00:00Z, or the position that an answer has given"
            )
        found[int(partition)] = int(offset)
    return found


def shown_positions(positions: Mapping[int, int]) -> str:
    """Return positions by partition as :func:`parse_positions` takes them."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        moment.timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"{ascii(text)[:80]} is not an ISO 8601 time such as 2026-01-31T12:00:00Z"
        ) from error
    return moment


def pull_start(pull: Pull) -> str | int:
    """Return where the subscription of a pull starts if it does not exist yet.

    Raises:
        InvalidArgumentError: the position is invalid.
    """
    start = parse_positions(str(pull.start))
    if not isinstance(start, str | int):
        raise InvalidArgumentError(f"start {pull.start!r} is not earliest, latest or an offset")
    return start


# --- Publishing ------------------------------------------------------------------------------------------------------


class Outgoing(NamedTuple):
    """A message to be published."""

    payload: bytes
    key: bytes | None = None
    attributes: dict[str, str] | None = None
    deliver_after_s: float | None = None
    deliver_at: datetime | None = None


def published(publication: Publication) -> list[Outgoing]:
    """Return the messages of a JSON body.

    Raises:
        InvalidArgumentError: one of them is invalid; the message names its index.
        LimitExceededError: there are too many.
    """
    _check_count(len(publication.messages))
    return [_outgoing(message, f"messages[{at}]") for at, message in enumerate(publication.messages)]


def ndjson_messages(body: bytes) -> list[Outgoing]:
    """Return the messages of a body with a JSON message on each line; empty lines are skipped.

    Raises:
        InvalidArgumentError: one of them is invalid; the message names its line.
        LimitExceededError: there are too many.
    """
    return list(_ndjson(body))


def _ndjson(body: bytes) -> Iterator[Outgoing]:
    decoder = msgspec.json.Decoder(PublishedMessage)
    count = 0
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line.strip():
            continue
        count += 1
        _check_count(count)
        try:
            message = decoder.decode(line)
        except UNDECODABLE as error:
            raise InvalidArgumentError(f"line {number} of the body is no message: {error}") from error
        yield _outgoing(message, f"line {number}")


def raw_message(body: bytes, headers: Mapping[str, str]) -> Outgoing:
    """Return the message of a raw body: all of it is the payload.

    Raises:
        InvalidArgumentError: a header is invalid.
    """
    attributes = {
        name.removeprefix(_ATTRIBUTE): _utf8(value) for name, value in headers.items() if name.startswith(_ATTRIBUTE)
    }
    after = headers.get("danube-deliver-after")
    key = headers.get("danube-key")
    return Outgoing(
        body,
        None if key is None else key.encode("latin-1"),
        attributes or None,
        None if after is None else _seconds(after),
    )


def _utf8(value: str) -> str:
    """Return the text that a header carries as UTF-8; headers arrive as Latin-1."""
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError("the value of a header Danube-Attribute-... is not UTF-8") from error


def _seconds(text: str) -> float:
    try:
        return float(text.removesuffix("s"))
    except ValueError as error:
        raise InvalidArgumentError(
            f"Danube-Deliver-After {ascii(text)[:40]} is no number of seconds, such as 30 or 1.5"
        ) from error


def _check_count(count: int) -> None:
    if count > MOST_PUBLISHED:
        raise LimitExceededError(f"a call publishes at most {MOST_PUBLISHED} messages; send the others in another one")


def _outgoing(message: PublishedMessage, where: str) -> Outgoing:
    given = [
        name
        for name, value in (
            ("payload", message.payload),
            ("payload_base64", message.payload_base64),
            ("value", None if message.value is msgspec.UNSET else ()),
        )
        if value is not None
    ]
    if len(given) != 1:
        raise InvalidArgumentError(
            f"{where} has {', '.join(given) or 'no payload'}; give one of payload, payload_base64 and value"
        )
    if message.payload is not None:
        payload = _encoded(message.payload, where)
    elif message.payload_base64 is not None:
        payload = _from_base64(message.payload_base64, f"{where}: payload_base64")
    else:
        payload = _compact(message.value, where)
    if message.key is not None and message.key_base64 is not None:
        raise InvalidArgumentError(f"{where} has key and key_base64; give one of them")
    key = None if message.key is None else _encoded(message.key, where)
    if message.key_base64 is not None:
        key = _from_base64(message.key_base64, f"{where}: key_base64")
    return Outgoing(
        payload,
        key,
        message.attributes,
        message.deliver_after_s,
        None if message.deliver_at is None else _moment(message.deliver_at),
    )


def _encoded(text: str, where: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{where} contains half of a surrogate pair, which is no character") from error


def _compact(value: Any, where: str) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{where}: the value cannot be written as JSON: {error}") from error


def _from_base64(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidArgumentError(f"{where} is no base64") from error
