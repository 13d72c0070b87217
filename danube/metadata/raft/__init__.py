"""Replicated metadata: the embedded store on several brokers, by Raft (:mod:`danube.raft`).

::

    store      the contract of a metadata store
    node       one member: its loops, disk, table, links and clock                              (shell)
    wal        its log: a journal of its own                                                    (shell)
    sqlite_table   its table, and copies of it                                                  (shell)
    inspection     reads a stopped member's files                                               (shell)
    memory_copy    a table in memory, brought up to date with the log                           (pure)
    replica    what the member says and does: calls, messages and time in, work out             (pure)
    calls, proposals, confirmations, renewals, members      the books of its calls              (pure)
    forwarding, leases, transfer    proposals on their way, deadlines at the leader, copies     (pure)
    comparing                       whether the tables of all members are equal                 (pure)
    start, pace, posts, cutting     how it begins, its clock, its payloads, what it forgets     (pure)
    state      applies the log to a table: commands, keys, leases, history                      (pure)
    commands, records, messages     what log entries, the journal and links carry               (pure)
"""

from danube.metadata.raft.links import Links, NoLinks, PeerLinks
from danube.metadata.raft.node import Node, Worker, in_thread
from danube.metadata.raft.options import NodeOptions
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
