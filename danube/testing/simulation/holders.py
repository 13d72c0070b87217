"""Knows which machine holds each topic of a simulated cluster, and tells the history what concerns it.

In the history each partition is a home of its own. A power loss concerns the partitions that the machine holds at that
moment, and a start those that it held last. A topic has another holder from the moment on at which the view of the new
owner shows its assignment. At that moment the former owner serves it no more, and the new one has accepted nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from danube.cluster.records import Reason, parse_topic_id
from danube.model.ids import TopicId

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.cluster.records import Assignment
    from danube.metadata import RowChange
    from danube.testing.history import History
    from danube.testing.simulation.node import BrokerNode, Life
    from danube.testing.simulation.trace import Trace

__all__ = ["Holders"]


class Holders:
    """See the module.

    Args:
        history: gets what concerns each partition.
        trace: gets a line whenever a partition has another holder.
    """

    def __init__(self, history: History, trace: Trace) -> None:
        self._history = history
        self._trace = trace
        self._machines: dict[str, str] = {}
        """The machine that holds a partition."""
        self._names: dict[TopicId, str] = {}

    def begin(self, part: str, topic_id: TopicId, machine: str) -> None:
        """Note the first holder of a partition, or of a topic without any."""
        self._machines[part], self._names[topic_id] = machine, part
        self._history.at_home(part, part)
        self._history.new_life(part)

    def topic_id(self, part: str) -> TopicId:
        """Return the id of a partition."""
        return next(topic_id for topic_id, name in self._names.items() if name == part)

    def of(self, node: BrokerNode) -> list[str]:
        """Return the partitions that a machine holds."""
        self._look(node)
        return [part for part, machine in self._machines.items() if machine == node.name]

    def _look(self, node: BrokerNode) -> None:
        """Note what a broker serves, unless it is about to hand it over: then the new owner may have it already."""
        directory = _directory_of(node.life)
        if directory is None or node.life is None or node.life.over:
            return
        for topic in directory.topics():
            part = self._names.get(topic.topic_id)
            if part is not None and not topic.is_frozen:
                self._machines[part] = node.name

    # --- What happens to a machine ---

    def started(self, node: BrokerNode) -> None:
        """A life begins."""
        for part in self.of(node):
            self._history.new_life(part)

    def recovered(self, node: BrokerNode) -> None:
        """The broker is ready; from now on it is watched for topics that it gets."""
        for part in self.of(node):
            self._history.recovered(part)
        directory, life = _directory_of(node.life), node.life
        assert directory is not None
        assert life is not None
        directory.membership.on_assigned.append(self._watch(node, life, directory))

    def _watch(self, node: BrokerNode, life: Life, directory: Directory) -> Callable[[RowChange[Assignment]], None]:
        def changed(change: RowChange[Assignment]) -> None:
            me, before, after = directory.membership.me, change.before, change.after
            if life.over or after is None or after.owner != me or (before is not None and before.owner == me):
                return
            part = self._names.get(parse_topic_id(change.name))
            if part is None:
                return
            self._trace("handed-over", part, self._machines[part], node.name)
            self._machines[part] = node.name
            if after.move and after.reason is not Reason.FORGOTTEN:
                self._history.handed_over(part)
            else:
                self._history.new_life(part)

        return changed

    def lost_power(self, parts: list[str]) -> None:
        """A machine that held these partitions has lost its power."""
        for part in parts:
            self._history.power_loss(part)


def _directory_of(life: Life | None) -> Directory | None:
    """Return the topics of a life; None before it has any."""
    if life is None:
        return None
    return getattr(life.broker, "directory", None)
