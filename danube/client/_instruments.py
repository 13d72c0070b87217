"""What a client that is traced and measured takes instead of its own classes.

The client itself has no code for that on the way of a message: a client with telemetry opens other producers,
consumers, readers and stages, derived from the ordinary ones. The implementation is
:class:`danube.client.telemetry.Telemetry`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from danube.client._consumer import Consumer
    from danube.client._encoding import EncodingProducer
    from danube.client._pool import Pool
    from danube.client._producer import Producer
    from danube.client._reader import Reader
    from danube.client._stages import Stages

__all__ = ["NOT_TRACED", "Instruments", "Processing"]


class Processing:
    """The handling of a message or batch; made by ``processing()`` of consumers and readers.

    Without telemetry it does nothing.
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def failed(self, error: BaseException | str) -> None:
        """Record that the handling has failed, if no exception leaves the block: the message is refused, say.

        Args:
            error: what happened, or its name.
        """


NOT_TRACED: Final = Processing()


@runtime_checkable
class Instruments(Protocol):
    """Makes objects that are traced and measured; see :class:`danube.client.telemetry.Telemetry`."""

    def producer(self, *args: Any) -> Producer:
        """Return a producer; arguments as of :class:`danube.client.Producer`."""
        ...

    def encoding_producer(self, *args: Any) -> EncodingProducer[Any]:
        """Return a producer that encodes values; arguments as of :class:`danube.client.Producer`."""
        ...

    def consumer(self, *args: Any) -> Consumer:
        """Return a consumer; arguments as of :class:`danube.client.Consumer`."""
        ...

    def reader(self, *args: Any) -> Reader:
        """Return a reader; arguments as of :class:`danube.client.Reader`."""
        ...

    def stages(self, pool: Pool) -> Stages:
        """Return what :attr:`danube.client.Client.stages` is."""
        ...
