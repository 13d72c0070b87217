"""The ``raftos://`` plugin."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import trio

from danube.metadata import MetadataPlugin, MetadataStore, Surroundings
from danube.model.errors import ConfigurationError
from danube_metadata_raftos._nodes import RaftosNodes
from danube_metadata_raftos._store import RaftosStore

__all__ = ["RaftosConfig", "RaftosPlugin"]

_log: Final = logging.getLogger("danube.metadata.raftos")


class RaftosConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of ``raftos://``."""

    heartbeat_s: float = 0.3
    """Seconds between heartbeats, from 0.02 to 10. A leader that is silent for 5 times that is replaced, and with it
    the store is over."""
    timeout_s: float = 15.0
    """How long raftos may take for one change, in seconds, before the store is given up; from 1 to 600."""


class RaftosPlugin(MetadataPlugin[RaftosConfig]):
    """``raftos://``: one broker's metadata through raftos, for demonstration."""

    name: ClassVar[str] = "raftos"
    summary: ClassVar[str] = "experimental, for one broker; loses what it has acknowledged"
    config: ClassVar[type[RaftosConfig]] = RaftosConfig

    @asynccontextmanager
    async def open(self, config: RaftosConfig, surroundings: Surroundings) -> AsyncIterator[MetadataStore]:
        """Start three nodes, and end them and delete their files at the end.

        Raises:
            ConfigurationError: an option is invalid, the URL names a place, or raftos is not installed.
        """
        if surroundings.location or surroundings.path:
            raise ConfigurationError(
                "the metadata engine 'raftos' runs in the broker: write raftos://, without a place"
            )
        for name, least, most in (("heartbeat_s", 0.02, 10.0), ("timeout_s", 1.0, 600.0)):
            if not least <= getattr(config, name) <= most:
                raise ConfigurationError(
                    f"the option {name!r} of the metadata engine 'raftos' is {getattr(config, name)}; it must be from"
                    f" {least} to {most}"
                )
        with tempfile.TemporaryDirectory(prefix="danube-raftos-", ignore_cleanup_errors=True) as directory:
            nodes = RaftosNodes(Path(directory), config.heartbeat_s, surroundings.random.randbytes(32))
            _log.warning("the metadata engine 'raftos' is for demonstration only: it loses what it has acknowledged")
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(nodes.start)
            try:
                async with RaftosStore(
                    nodes, timeout_s=config.timeout_s, limits=surroundings.limits, clock=surroundings.clock
                ) as store:
                    yield store
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(nodes.stop)
