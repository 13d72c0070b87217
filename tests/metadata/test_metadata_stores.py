"""The conformance kit over both built-in stores, and over a store behind a slow network."""

from __future__ import annotations

from random import Random

import pytest

from danube.metadata import EmbeddedStore, MemoryStore
from danube.model.limits import Limits
from danube.testing.metadata import FaultyMetadataStore, MetadataStoreConformance

HISTORY = 400
LIMITS = Limits(metadata_history_revisions=HISTORY)


class TestMemoryStore(MetadataStoreConformance):
    lacks = frozenset({"durable"})
    history_revisions = HISTORY

    def open_store(self):
        return MemoryStore(limits=LIMITS)


class TestEmbeddedStore(MetadataStoreConformance):
    history_revisions = HISTORY

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path):
        self.directory = tmp_path / "metadata"

    def open_store(self):
        return EmbeddedStore(self.directory, limits=LIMITS)


class TestSlowStore(MetadataStoreConformance):
    lacks = frozenset({"durable"})

    def open_store(self):
        return FaultyMetadataStore(MemoryStore(limits=LIMITS), Random(7), latency_s=0.0005)
