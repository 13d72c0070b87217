"""Storage backends for Danube's history in S3 and compatible services.

``s3://`` uses s3fs; ``s3+obstore://`` (:mod:`danube_storage_s3.obstore`, extra ``obstore``) a client written in Rust
that needs a fraction of the CPU time. Both have the same options and pass the same conformance tests.
"""

from __future__ import annotations

from danube_storage_s3._backend import S3Backend
from danube_storage_s3._options import S3Config
from danube_storage_s3._plugin import S3StoragePlugin

__all__ = ["S3Backend", "S3Config", "S3StoragePlugin"]
