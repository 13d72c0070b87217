"""Opens the storages of a broker at its start."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from danube.model.errors import ConfigurationError
from danube.model.limits import MIB
from danube.model.log_events import log_event
from danube.storage import Marker, Storage, StorageBackend

if TYPE_CHECKING:
    from danube.broker.runtime.runtime import Runtime
    from danube.metadata import RowChange
    from danube.model import Limits

__all__ = ["OpenedStorages", "expect_identity", "open_storages"]

_log = logging.getLogger("danube.broker")

_FOOTER_BYTES: Final = 8 * MIB
"""More than the bytes of a segment beside its batches: indexes, names, and a table of its parts."""


class OpenedStorages(NamedTuple):
    """All storages, by name."""

    for_history: dict[str, Storage]
    lanes: dict[str, Storage]
    """The same storages, for commits that must not wait behind segments."""
    markers: dict[str, Marker]
    """Markers of the storages that survive the end of the broker; no durable data is written to the others."""


@asynccontextmanager
async def open_storages(
    runtime: Runtime, remember: Callable[[str, str, bool], Awaitable[str]]
) -> AsyncIterator[OpenedStorages]:
    """Open the storages of the configuration.

    Args:
        runtime: of the broker.
        remember: stores the identity (second) that a storage (first) received with the first write to it, or, if the
            third is true, when its contents were accepted; returns the identity that is stored.

    Raises:
        ConfigurationError: a storage is unknown, or accepts only objects that are too small.
    """
    config, seams = runtime.config, runtime.seams
    async with AsyncExitStack() as stack:
        opened = OpenedStorages({}, {}, {})
        for name, storage in config.all_storages.items():
            backend = await stack.enter_async_context(seams.open_backend(config, storage, runtime.clock_us))
            if backend.capabilities.durable:
                _check_object_size(name, backend, config.limits)
                opened.markers[name] = Marker(
                    name, config.cluster, random=seams.random, remember=partial(remember, name)
                )
            opened.for_history[name], opened.lanes[name] = (
                Storage(
                    backend,
                    random=seams.random,
                    limits=config.limits,
                    name=name,
                    max_concurrency=storage.max_concurrency,
                    marker=opened.markers.get(name),
                )
                for _ in range(2)
            )
            if not backend.capabilities.durable:
                _log.warning(
                    "storage %r (%s) is not durable: durable topics are not sealed into it and stay in the journal",
                    name,
                    opened.for_history[name].url,
                    extra=log_event("storage.not_durable", storage=name),
                )
        yield opened


def expect_identity(markers: Mapping[str, Marker], change: RowChange[str]) -> None:
    """Have the marker of a storage expect the identity that any broker has stored.

    Args:
        markers: by the names that the storages have in the metadata.
        change: of the identity of a storage.
    """
    marker = markers.get(change.name)
    if marker is not None and change.after is not None:
        marker.expect(change.after)


def _check_object_size(name: str, backend: StorageBackend, limits: Limits) -> None:
    """Refuse a storage whose object size is too small for segments: sealing would fail again and again."""
    needed = limits.segment_bytes + limits.max_batch_bytes + _FOOTER_BYTES
    if backend.capabilities.max_object_bytes < needed:
        raise ConfigurationError(
            f"storage {name!r} ({backend.url}) stores at most {backend.capabilities.max_object_bytes} bytes in one"
            f" object, and a segment may have {needed} (limits segment_bytes = {limits.segment_bytes} and"
            f" max_batch_bytes = {limits.max_batch_bytes}, and its index): choose another storage, or lower"
            " these limits"
        )
