"""Producers with a schema: they take values, and send payloads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from danube.client._generics import P
from danube.client._producer import Producer
from danube.client._receipts import RangeReceipt, Receipt

if TYPE_CHECKING:
    from danube.client._receipt import Pending
    from danube.client._values import Writing

__all__ = ["EncodingProducer"]


class EncodingProducer(Producer[P]):
    """A producer that encodes what it sends; behaviour as of its base.

    The base, which knows bytes only, stays as it is. A class with telemetry has this one before its own in the order of
    bases.
    """

    _writing: Writing

    async def send(
        self,
        payload: P,
        *,
        key: str | bytes | None = None,
        attributes: dict[str, str] | None = None,
        deliver_at: datetime | None = None,
        deliver_after_s: float | None = None,
    ) -> Receipt:
        """Send one value; as :meth:`Producer.send`."""
        encoded = self._writing.codec.encode(payload)
        return await super().send(
            encoded,  # type: ignore[arg-type]
            key=key,
            attributes=attributes,
            deliver_at=deliver_at,
            deliver_after_s=deliver_after_s,
        )

    def send_nowait(
        self,
        payload: P,
        *,
        key: str | bytes | None = None,
        attributes: dict[str, str] | None = None,
        deliver_at: datetime | None = None,
        deliver_after_s: float | None = None,
    ) -> Pending:
        """Accept one value; as :meth:`Producer.send_nowait`."""
        encoded = self._writing.codec.encode(payload)
        return super().send_nowait(
            encoded,  # type: ignore[arg-type]
            key=key,
            attributes=attributes,
            deliver_at=deliver_at,
            deliver_after_s=deliver_after_s,
        )

    async def send_many(
        self,
        payloads: Sequence[P],
        *,
        key: str | bytes | None = None,
        keys: Sequence[str | bytes | None] | None = None,
        attributes: dict[str, str] | None = None,
        deliver_at: datetime | None = None,
        deliver_after_s: float | None = None,
    ) -> RangeReceipt:
        """Send many values; as :meth:`Producer.send_many`."""
        encoded = self._writing.codec.encode_many(payloads)
        return await super().send_many(
            encoded,  # type: ignore[arg-type]
            key=key,
            keys=keys,
            attributes=attributes,
            deliver_at=deliver_at,
            deliver_after_s=deliver_after_s,
        )
