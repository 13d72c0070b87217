"""The conformance kit over ``gcs://``, against fake-gcs-server."""

from __future__ import annotations

import uuid

import pytest
from ports import free_port
from storage_servers import FakeGcsServer

from danube.storage import open_backend
from danube.testing.storage import StorageConformance


@pytest.fixture(scope="module")
def gcs_bucket(fake_gcs: FakeGcsServer) -> str:
    return fake_gcs.bucket()


class TestGcs(StorageConformance):
    cancelled_may_be_whole = True  # the server reads faster than it stores

    @pytest.fixture(autouse=True)
    def _place(self, fake_gcs, gcs_bucket):
        self.server, self.bucket, self.prefix = fake_gcs, gcs_bucket, f"p/{uuid.uuid4().hex}"

    def open_backend(self):
        return open_backend(self.server.storage_url(self.bucket, self.prefix))

    def open_missing(self):
        return open_backend(self.server.storage_url(f"b{uuid.uuid4().hex[:16]}", self.prefix))

    def open_unreachable(self):
        return open_backend(f"gs://{self.bucket}/{self.prefix}?endpoint_url=http://127.0.0.1:{free_port()}&token=anon")
