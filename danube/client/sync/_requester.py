"""The blocking requester."""

from __future__ import annotations

import msgspec

from danube.client import _requests
from danube.client._payloads import BytesLike
from danube.client.sync._loop import Loop
from danube.client.sync._messages import Message

__all__ = ["Requester"]


class Requester:
    """Sends requests and waits for their replies; made by :meth:`Client.requester`."""

    def __init__(self, requester: _requests.Requester, loop: Loop) -> None:
        self._requester = requester
        self._loop = loop
        self.topic = requester.topic

    @property
    def outstanding(self) -> int:
        """Number of requests that wait for their replies."""
        return self._requester.outstanding

    def request(
        self,
        payload: BytesLike,
        *,
        key: str | None = None,
        attributes: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Message:
        """Send a request, and return the reply; see :meth:`danube.client.Requester.request`."""
        reply = self._loop.run(self._requester.request, payload, key=key, attributes=attributes, timeout_s=timeout_s)
        return Message(*msgspec.structs.astuple(reply))
