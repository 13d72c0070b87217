"""Danube's history in Azure Blob Storage, through adlfs."""

from __future__ import annotations

from danube_storage_azure._backend import AzureBackend
from danube_storage_azure._plugin import AzureConfig, AzureStoragePlugin

__all__ = ["AzureBackend", "AzureConfig", "AzureStoragePlugin"]
