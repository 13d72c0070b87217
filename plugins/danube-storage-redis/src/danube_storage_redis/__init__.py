"""Storage backend for Danube's history in Redis or Valkey: ``redis://``.

``redis://[user:password@]host[:port]/prefix?option=value``, ``rediss://`` with TLS; the options are the fields of
:class:`RedisConfig`.
"""

from danube_storage_redis._backend import RedisBackend
from danube_storage_redis._plugin import RedisConfig, RedisStoragePlugin

__all__ = ["RedisBackend", "RedisConfig", "RedisStoragePlugin"]
