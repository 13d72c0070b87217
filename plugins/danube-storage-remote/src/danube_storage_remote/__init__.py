"""Storage backend ``remote://``: Danube's history on another machine, served by ``danube storage-server``.

``remote://host[:port]/space?option=value``; the options are the fields of :class:`RemoteConfig`.
"""

from danube_storage_remote._backend import RemoteBackend
from danube_storage_remote._connection import RemoteConnection
from danube_storage_remote._plugin import RemoteConfig, RemoteStoragePlugin

__all__ = ["RemoteBackend", "RemoteConfig", "RemoteConnection", "RemoteStoragePlugin"]
