"""Metadata engine for Danube in etcd: ``etcd://``.

``etcd://host[:port][,host[:port]...][/prefix]``; the options are the fields of :class:`EtcdConfig`.
"""

from danube_metadata_etcd._plugin import EtcdConfig, EtcdPlugin
from danube_metadata_etcd._store import EtcdStore

__all__ = ["EtcdConfig", "EtcdPlugin", "EtcdStore"]
