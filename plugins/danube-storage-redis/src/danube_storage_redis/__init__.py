"""Danube's history in Redis or Valkey: the storage backend ``redis://``.

``redis://[user:password@]host[:port]/prefix?option=value``, ``rediss://`` with TLS; the options are the fields of
:class:`RedisConfig`.
"""

from danube_storage_redis._backend import RedisBackend
from danube_storage_redis._plugin import RedisConfig, RedisStoragePlugin

__all__ = ["RedisBackend", "RedisConfig", "RedisStoragePlugin"]
