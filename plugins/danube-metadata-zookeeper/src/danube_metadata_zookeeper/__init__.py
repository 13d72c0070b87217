"""Metadata engine for Danube in Apache ZooKeeper: ``zookeeper://``.

``zookeeper://host[:port][,host[:port]...][/prefix]``; the options are the fields of :class:`ZooKeeperConfig`.
"""

from danube_metadata_zookeeper._plugin import ZooKeeperConfig, ZooKeeperPlugin
from danube_metadata_zookeeper._store import ZooKeeperStore

__all__ = ["ZooKeeperConfig", "ZooKeeperPlugin", "ZooKeeperStore"]
