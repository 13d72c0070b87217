"""Metadata engine for Danube that passes changes through raftos: ``raftos://``. For demonstration only.

The options are the fields of :class:`RaftosConfig`.
"""

from danube_metadata_raftos._plugin import RaftosConfig, RaftosPlugin
from danube_metadata_raftos._store import RaftosStore

__all__ = ["RaftosConfig", "RaftosPlugin", "RaftosStore"]
