"""Storage backends: where history lives. Contract, the shared caller around it, and the built-in backends."""

from danube.storage._contract import ListPage, ObjectInfo, StorageBackend, StorageCapabilities

__all__ = ["ListPage", "ObjectInfo", "StorageBackend", "StorageCapabilities"]
