"""The conformance kit over ``s3://`` and ``s3+obstore://``, against SeaweedFS and moto."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from ports import free_port
from storage_servers import S3_REGION, MotoServer, SeaweedServer

from danube.model.limits import MIB
from danube.storage import open_backend
from danube.testing.storage import StorageConformance

FOLDERS_FIRST = "SeaweedFS lists folder by folder, so a/b comes before a-b and not behind it as S3 has it"


@pytest.fixture(scope="module")
def seaweed_bucket(seaweed: SeaweedServer) -> str:
    return seaweed.bucket()


@pytest.fixture(scope="module")
def moto_bucket(moto: MotoServer) -> str:
    return moto.bucket()


class _S3(StorageConformance):
    """What is the same for all: each test has a prefix of its own in one bucket."""

    scheme = "s3"
    options = ""
    many = 120

    def settle(self, server, bucket):
        self.server, self.bucket, self.prefix = server, bucket, f"p/{uuid.uuid4().hex}"

    def url(self, bucket):
        return self.server.storage_url(bucket, self.prefix).replace("s3://", f"{self.scheme}://") + self.options

    def open_backend(self):
        return open_backend(self.url(self.bucket))

    def open_missing(self):
        return open_backend(self.url(f"b{uuid.uuid4().hex[:16]}"))

    @asynccontextmanager
    async def open_unreachable(self):
        address = f"http://127.0.0.1:{free_port()}"
        url = f"{self.scheme}://{self.bucket}/{self.prefix}?endpoint_url={address}&region={S3_REGION}&key=a&secret=b"
        async with open_backend(url + self.options) as backend:
            yield backend

    async def leave_upload(self, backend, key):
        upload = await backend.request("create_multipart_upload", Key=f"{self.prefix}/{key}")
        await backend.request(
            "upload_part", Key=f"{self.prefix}/{key}", UploadId=upload["UploadId"], PartNumber=1, Body=b"partial"
        )


class TestSeaweed(_S3):
    known_gaps: ClassVar[dict[str, str]] = {
        "test_list_order_and_prefixes": FOLDERS_FIRST,
        "test_list_start_after": FOLDERS_FIRST,
    }
    races = 1

    @pytest.fixture(autouse=True)
    def _place(self, seaweed, seaweed_bucket):
        self.settle(seaweed, seaweed_bucket)

    @asynccontextmanager
    async def open_denied(self):
        async with open_backend(self.url(self.bucket).replace("secret=", "secret=wrong")) as backend:
            yield backend


class TestSeaweedInParts(TestSeaweed):
    # Parts make no difference to these.
    test_keys = test_head = test_what_does_not_exist = test_many_ranges = test_list_pages = test_list_after_write = None
    test_delete = test_many_at_once = test_denied = test_one_winner = test_overwrite = test_ranges = None

    options = f"&single_put_bytes={5 * MIB}&part_bytes={5 * MIB}"
    cancel_bytes = 16 * MIB
    cancelled_may_be_whole = True  # the request that completes an upload is short, and may be on its way
    big_bytes = 12 * MIB


class TestMoto(_S3):
    known_gaps: ClassVar[dict[str, str]] = {
        "test_cancelled_put_leaves_no_object": "moto stores what it has got when a connection breaks in a put",
        "test_abandoned_uploads_are_removed": "moto says of every upload that it was begun in 2010",
        "test_one_winner": "moto looks for an object in one step, and stores the new one in another",
    }

    @pytest.fixture(autouse=True)
    def _place(self, moto, moto_bucket):
        self.settle(moto, moto_bucket)


class TestObstore(TestSeaweed):
    scheme = "s3+obstore"
    test_abandoned_uploads_are_removed = None  # it uploads nothing in parts
