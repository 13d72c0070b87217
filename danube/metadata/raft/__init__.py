"""Replicated metadata: the embedded store on several brokers, by Raft (:mod:`danube.raft`).

::

    store      the contract of a metadata store
    node       one member: drives everything below                                              (shell)
    wal        its log: a journal of its own                                                    (shell)
    sqlite_table   its table, and copies of it                                                  (shell)
    state      applies the log to a table: commands, keys, leases, history                      (pure)
    commands, records, messages     what log entries, the journal and links carry               (pure)
    forwarding, leases, transfer    proposals on their way, deadlines at the leader, copies     (pure)
"""

from danube.metadata.raft.links import Links, NoLinks, PeerLinks
from danube.metadata.raft.node import Node, NodeOptions, Worker, in_thread
from danube.metadata.raft.sqlite_table import SqliteStateTable
from danube.metadata.raft.state import StateTable, digest_of
from danube.metadata.raft.store import RaftStore

__all__ = [
    "Links",
    "NoLinks",
    "Node",
    "NodeOptions",
    "PeerLinks",
    "RaftStore",
    "SqliteStateTable",
    "StateTable",
    "Worker",
    "digest_of",
    "in_thread",
]
