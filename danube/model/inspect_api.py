"""The native API of inspections: readers, checks of a broker's machine, its plugins, and its tasks.

Like :mod:`danube.model.api`: msgspec Structs, encoded as msgpack arrays, new fields at the end with a default.
"""

from __future__ import annotations

from typing import Final

import msgspec

from danube.model.ids import Offset

__all__ = [
    "MAX_TASK_ROWS",
    "CheckList",
    "CheckRow",
    "ExpandTopic",
    "GetTasks",
    "InspectMethod",
    "ListPlugins",
    "ListReaders",
    "PluginList",
    "PluginRow",
    "ReaderInfo",
    "ReaderList",
    "RunDoctor",
    "TaskRow",
    "TaskTree",
]

MAX_TASK_ROWS: Final = 5_000
"""Most tasks of one answer."""


class InspectMethod:
    """Paths of the calls."""

    READERS: Final = "/danube.native.v1.Topics/ListReaders"
    EXPAND: Final = "/danube.native.v1.Topics/Expand"
    DOCTOR: Final = "/danube.native.v1.Broker/Doctor"
    PLUGINS: Final = "/danube.native.v1.Broker/Plugins"
    TASKS: Final = "/danube.native.v1.Broker/Tasks"


class _Message(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages."""


# --- Topics ----------------------------------------------------------------------------------------------------------


class ListReaders(_Message):
    """Asks for the readers of a topic: consumers without a subscription. Answered with ReaderList."""

    topic: str


class ReaderInfo(_Message, kw_only=True):
    """One connected reader of a plain topic or a partition."""

    topic: str
    name: str
    """As it says itself; empty: it says none."""
    reader_id: int
    """Unique in the life of the broker that serves the topic."""
    start_offset: Offset
    """Where it has started."""
    position: Offset
    """The next message that it gets."""
    end_offset: Offset
    """Of the topic: the difference is what it has not got yet."""
    credit_messages: int = 0
    """Messages that it accepts at the moment."""
    credit_bytes: int = 0
    delivered_messages: int = 0


class ReaderList(_Message):
    """Answer to ListReaders, in the order of partitions and ids."""

    readers: list[ReaderInfo]


class ExpandTopic(_Message):
    """Gives a partitioned topic more partitions; answered with TopicInfo, when that is durable.

    Messages stay where they are. The partition of a key depends on their number: later messages of a key may be in
    another partition than earlier ones.
    """

    topic: str
    partitions: int
    """Their new number, which is not below the present one."""


# --- The broker ------------------------------------------------------------------------------------------------------


class RunDoctor(_Message):
    """Checks the machine of the answering broker, its sealing and its storages. Answered with CheckList.

    It takes about a second, and writes a temporary file to the data directory; within 10 s the machine is not checked
    again. Journal and metadata are not compared:
    that needs a broker that does not run.
    """


class CheckRow(_Message):
    """The result of one check."""

    check: str
    ok: bool
    detail: str
    remedy: str = ""
    """What to do if it is not ok."""


class CheckList(_Message):
    """Answer to RunDoctor."""

    checks: list[CheckRow]
    broker: str = ""
    """The broker that has answered: ``b1``."""


class ListPlugins(_Message):
    """Asks which storage backends and metadata engines are installed at the broker. Answered with PluginList."""


class PluginRow(_Message, kw_only=True):
    """One installed storage backend or metadata engine."""

    kind: str
    """``storage`` or ``metadata``."""
    scheme: str
    """Of the URLs that select it: ``s3``."""
    built_in: bool
    package: str
    version: str
    summary: str
    """What it is; or why it cannot be loaded."""
    loadable: bool = True


class PluginList(_Message):
    """Answer to ListPlugins."""

    plugins: list[PluginRow]


class GetTasks(_Message):
    """Asks for the tree of tasks of the answering broker. Answered with TaskTree."""

    limit: int = 1_000
    """Most tasks, from 1 to :data:`MAX_TASK_ROWS`; the rest is counted."""


class TaskRow(_Message, kw_only=True):
    """One task. Values of variables are not shown, so there are no secrets in it."""

    depth: int
    """0: the root; a task is a child of the last one before it whose depth is one less."""
    name: str
    """Its function."""
    where: list[str] = []
    """``module:line function``, from its function to what it waits for; of many calls those in the middle are left
    out."""


class TaskTree(_Message, kw_only=True):
    """Answer to GetTasks: the tasks in the order of a walk, parents before children."""

    tasks: list[TaskRow]
    total: int
    """All tasks, those that the limit has left out included."""
    broker: str = ""
    """The broker that has answered: ``b1``."""
