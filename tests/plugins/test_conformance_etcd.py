"""The conformance kit for metadata stores over ``etcd://``, with real servers."""

from __future__ import annotations

import uuid

import pytest
from etcd_servers import QUICK, EtcdCluster

from danube.metadata import open_store
from danube.testing.metadata import MetadataStoreConformance

pytestmark = [pytest.mark.extended, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    with EtcdCluster(tmp_path_factory.mktemp("etcd"), 1, *QUICK) as cluster:
        yield cluster


class TestEtcd(MetadataStoreConformance):
    """Each test has a prefix of its own. etcd is not compacted by counting changes, so there is another test for it."""

    lease_s = 3.0

    @pytest.fixture(autouse=True)
    def _place(self, etcd):
        self.url = f"etcd://{etcd.location}/{uuid.uuid4().hex}"

    def open_store(self):
        return open_store(self.url)


class TestEtcdWithoutPrefix(MetadataStoreConformance):
    """With all keys of an etcd, which must be empty. Leases have nothing to do with prefixes."""

    lacks = frozenset({"leases"})

    @pytest.fixture(autouse=True)
    def _place(self, etcd):
        etcd.ctl("del", "", "--from-key")
        self.url = f"etcd://{etcd.location}"

    def open_store(self):
        return open_store(self.url)

    test_capabilities = None
