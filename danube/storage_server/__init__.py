"""The storage server: serves a storage backend of one machine to brokers on others over Danube's own wire.

``danube storage-server disk:///data`` is the command; ``remote://host:port/space`` (package ``danube-storage-remote``)
is the backend that uses it, with the messages of :mod:`danube.model.storage_api`.
"""

from __future__ import annotations

from danube.storage_server._admission import Admission
from danube.storage_server._run import StorageServerConfig, run_storage_server
from danube.storage_server._service import StorageService

__all__ = ["Admission", "StorageServerConfig", "StorageService", "run_storage_server"]
