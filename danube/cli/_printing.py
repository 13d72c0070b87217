"""Formats messages as payloads, rows, JSON objects, or in a format of the user, and writes them to standard output.

Writing happens in a thread, because a pipe whose reader sleeps (``| less``) would otherwise keep the client from
answering its broker's PINGs.
"""

from __future__ import annotations

import base64
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import trio

from danube.cli._format import Shown, compile_format, iso_time
from danube.cli._output import Output

__all__ = [
    "Printer",
    "json_lines",
    "key_fields",
    "make_printer",
    "payload_fields",
    "table_head",
    "table_lines",
    "visible",
    "write",
    "write_now",
]

Printer: TypeAlias = Callable[[Sequence[Shown]], bytes]
"""Converts messages to the bytes to print."""


def make_printer(format: str | None, output: Output) -> Printer:
    """Return the function that formats messages.

    Raises:
        InvalidArgumentError: the format is invalid.
    """
    if format is not None:
        show = compile_format(format)
        return lambda messages: b"".join(map(show, messages))
    if output is Output.JSON:
        return json_lines
    if output is Output.TABLE:
        return table_lines
    return _payload_lines


def _payload_lines(messages: Sequence[Any]) -> bytes:
    payloads: Iterable[bytes] = (
        messages.payloads() if hasattr(messages, "payloads") else [message.payload for message in messages]
    )
    return b"\n".join([*payloads, b""])


_encode_lines = msgspec.json.Encoder().encode_lines


def json_lines(messages: Sequence[Shown]) -> bytes:
    """Return one JSON object a line. What is not UTF-8 is base64, as stated in ``encoding`` and ``key_encoding``."""
    return _encode_lines([_json_object(message) for message in messages])


def _json_object(message: Shown) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        **key_fields(message.key_bytes),
    }
    shown |= payload_fields(message.payload)
    shown["publish_time"] = iso_time(message.publish_time_us)
    shown["producer"] = message.producer
    shown["attempt"] = message.attempt
    shown["attributes"] = message.attributes or {}
    return shown


def payload_fields(payload: bytes) -> dict[str, str]:
    """Return a payload as fields of a JSON object: its text, or base64 if it is not UTF-8."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "encoding": "base64"}


def key_fields(key: bytes | None) -> dict[str, str | None]:
    """Return a key as fields of a JSON object: its text, or base64 if it is not UTF-8."""
    try:
        return {"key": None if key is None else key.decode()}
    except UnicodeDecodeError:
        return {"key": base64.b64encode(key or b"").decode(), "key_encoding": "base64"}


_ROW: Final = "{:>9}  {:>12}  {:<27}  {:<16}  {}\n"


def table_head() -> bytes:
    """Return the header line of :func:`table_lines`."""
    return _ROW.format("partition", "offset", "publish time", "key", "payload").encode()


def table_lines(messages: Sequence[Shown]) -> bytes:
    """Return one row a line; control characters of keys and payloads are escaped, so that a row stays one line."""
    return "".join(
        _ROW.format(
            message.partition,
            message.offset,
            iso_time(message.publish_time_us),
            visible((message.key_bytes or b"").decode(errors="backslashreplace")),
            visible(message.payload.decode(errors="backslashreplace")),
        )
        for message in messages
    ).encode("utf-8", "backslashreplace")


def visible(text: str) -> str:
    """Return a text with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


async def write(data: bytes) -> None:
    """Write all bytes to standard output. Cancelling abandons the thread that writes."""
    await trio.to_thread.run_sync(write_now, data, abandon_on_cancel=True)


def write_now(data: bytes) -> None:
    """Write all bytes to standard output, unbuffered: when this returns, the operating system has them."""
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:  # standard output was replaced by an object in memory
        sys.stdout.buffer.write(data)
        return
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
