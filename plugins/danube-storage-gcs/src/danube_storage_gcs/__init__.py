"""Storage backend for Danube's history in Google Cloud Storage, using gcsfs."""

from __future__ import annotations

from danube_storage_gcs._backend import GcsBackend
from danube_storage_gcs._plugin import GcsConfig, GcsStoragePlugin

__all__ = ["GcsBackend", "GcsConfig", "GcsStoragePlugin"]
