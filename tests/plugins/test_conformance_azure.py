"""The conformance kit over ``azure://``, against Azurite."""

from __future__ import annotations

import base64
import uuid
from urllib.parse import quote

import pytest
from ports import free_port
from storage_servers import AZURITE_KEY, AzuriteServer

from danube.storage import open_backend
from danube.testing.storage import StorageConformance


@pytest.fixture(scope="module")
def azure_container(azurite: AzuriteServer) -> str:
    return azurite.bucket()


class TestAzure(StorageConformance):
    many = 80
    cancel_bytes = 16 << 20
    cancelled_may_be_whole = True  # the server reads faster than it stores

    @pytest.fixture(autouse=True)
    def _place(self, azurite, azure_container):
        self.server, self.container, self.prefix = azurite, azure_container, f"p/{uuid.uuid4().hex}"

    def url(self, connection_string):
        return f"az://{self.container}/{self.prefix}?connection_string={quote(connection_string, safe='')}"

    def open_backend(self):
        return open_backend(self.server.storage_url(self.container, self.prefix))

    def open_missing(self):
        return open_backend(self.server.storage_url(f"b{uuid.uuid4().hex[:16]}", self.prefix))

    def open_denied(self):
        wrong = base64.b64encode(b"wrong" * 8).decode()
        return open_backend(self.url(self.server.connection_string.replace(AZURITE_KEY, wrong)))

    def open_unreachable(self):
        elsewhere = self.server.connection_string.replace(f":{self.server.port}/", f":{free_port()}/")
        return open_backend(self.url(elsewhere))
