"""Storage backends for history: the contract, the caller with retries around it, and the built-in backends.

:class:`StorageBackend` is the interface of a plugin; its module explains the design. :class:`Storage` is used by
the broker: a backend with deadlines, retries and statistics. :func:`open_storage` opens the backend of a URL:
``memory://``, ``disk://``, ``fsspec+PROTOCOL://``, or one provided by a plugin.
"""

from __future__ import annotations

from danube.storage._contract import ListPage, ObjectInfo, StorageBackend, StorageCapabilities
from danube.storage._directory import reachable_url
from danube.storage._keys import LEGAL_CHARACTERS, is_key, validate_key, validate_prefix
from danube.storage._marker import Marker
from danube.storage._plugins import (
    KNOWN_PACKAGES,
    InstalledStoragePlugin,
    StoragePlugin,
    StorageSurroundings,
    WallClock,
    install_command,
    installed_plugins,
    load_plugin,
    open_backend,
    open_storage,
    system_wall_clock_us,
)
from danube.storage._stats import OperationStats, StorageHealth, StorageStats
from danube.storage._storage import Storage
from danube.storage._url import ALIASES, is_secret, parse_url, storage_place
from danube.storage.disk import DiskBackend, open_disk
from danube.storage.memory import SHARED_SPACES, MemoryBackend, MemorySpace, MemorySpaces

__all__ = [
    "StorageBackend",
    "StorageCapabilities",
    "ObjectInfo",
    "ListPage",
    "LEGAL_CHARACTERS",
    "is_key",
    "validate_key",
    "validate_prefix",
    "Storage",
    "Marker",
    "StorageStats",
    "OperationStats",
    "StorageHealth",
    "open_storage",
    "storage_place",
    "reachable_url",
    "parse_url",
    "open_backend",
    "installed_plugins",
    "install_command",
    "KNOWN_PACKAGES",
    "ALIASES",
    "is_secret",
    "load_plugin",
    "InstalledStoragePlugin",
    "StoragePlugin",
    "StorageSurroundings",
    "WallClock",
    "system_wall_clock_us",
    "DiskBackend",
    "open_disk",
    "MemoryBackend",
    "MemorySpace",
    "MemorySpaces",
    "SHARED_SPACES",
]
