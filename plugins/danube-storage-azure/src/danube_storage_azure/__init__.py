"""Storage backend for Danube's history in Azure Blob Storage, using adlfs."""

from __future__ import annotations

from danube_storage_azure._backend import AzureBackend
from danube_storage_azure._plugin import AzureConfig, AzureStoragePlugin

__all__ = ["AzureBackend", "AzureConfig", "AzureStoragePlugin"]
