"""``Idempotency-Key``: what is a key, and which of them were used for what. Pure.

What makes a repetition safe is in the broker: a producer whose name is made of the key. The book only notices, while
this process lives, that a key is used for another body, and lets one request at a time use a key.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from danube.model.errors import FailedPreconditionError, InvalidArgumentError
from danube.web.messages import Outgoing

__all__ = ["KeyBook", "KeyReusedError", "checked_key", "fingerprint"]

_MOST_CHARACTERS: Final = 255


class KeyReusedError(FailedPreconditionError):
    """An ``Idempotency-Key`` was used for other messages."""

    code = "idempotency-key-reused"


def checked_key(text: str) -> str:
    """Return a key, without the quotation marks of a structured header.

    Raises:
        InvalidArgumentError: it is empty or too long, or has other characters than visible ASCII.
    """
    key = text.strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not 1 <= len(key) <= _MOST_CHARACTERS or not (key.isascii() and key.isprintable()):
        raise InvalidArgumentError(
            f"Idempotency-Key has 1 to {_MOST_CHARACTERS} visible ASCII characters; use a UUID for each request"
        )
    return key


def fingerprint(messages: Iterable[Outgoing]) -> bytes:
    """Return what differs between bodies that ask for different things."""
    found = hashlib.sha256()
    for message in messages:
        found.update(msgspec.msgpack.encode(message))
    return found.digest()


class KeyBook:
    """Which keys were used for which bodies.

    Args:
        most: keys that are remembered; of more, those are forgotten that were not used for the longest time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bodies: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bodies)

    def use(self, topic: str, key: str, body: bytes) -> None:
        """Note that a key is used for a body, which is a :func:`fingerprint`.

        Raises:
            KeyReusedError: it was used for another one.
        """
        known = self._bodies.setdefault((topic, key), body)
        if known != body:
            raise KeyReusedError(
                f"this Idempotency-Key was used for other messages of topic {topic}; take another key for these"
            )
        self._bodies.move_to_end((topic, key))
        if len(self._bodies) > self._most:
            self._bodies.popitem(last=False)
