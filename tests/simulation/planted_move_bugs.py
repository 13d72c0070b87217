"""Bugs that are planted into the moves of topics, to see that simulated clusters find them.

``python -m tests.simulation.planted_move_bugs`` looks for each of them and prints the table below: first in the
directed worlds of :mod:`test_simulation_moves`, then in random ones whose topic moves all the time, from seed 0 on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from danube.broker.directory.following import Following
from danube.broker.intake.intake import Intake
from danube.broker.moving import source, target
from danube.broker.topic.recovered import TopicSnapshot
from danube.cluster.moves import Departure, Doubt, Refused, Switch
from danube.log.producers import ProducerTable
from danube.log.recovery import Recovery
from danube.model import Durability
from danube.model.errors import DanubeError
from danube.model.ids import TopicId
from danube.testing.simulation import draw_plan, run_world
from danube.testing.simulation.plan import WorldPlan
from tests.simulation import test_simulation_moves as directed

MOST_SEEDS = 1_000
STORM_S = 6.0
MOVES_EVERY_S = 0.3

Plant = Callable[[pytest.MonkeyPatch], None]


def _change_state(patch: pytest.MonkeyPatch, change: Callable[[Any, TopicSnapshot], None]) -> None:
    """Change the state of topics that the source of a move sends."""
    complete = source._Move._complete

    async def changed(self: Any) -> Any:
        topic = self._topic
        whole = topic.whole_snapshot

        def state(**options: bool) -> bytes:
            snapshot = msgspec.msgpack.decode(whole(**options), type=TopicSnapshot)
            change(topic, snapshot)
            return msgspec.msgpack.encode(snapshot)

        topic.whole_snapshot = state
        try:
            return await complete(self)
        finally:
            del topic.whole_snapshot

    patch.setattr(source._Move, "_complete", changed)


def lose_the_producers(patch: pytest.MonkeyPatch) -> None:
    """Hands a topic over without the table of its producers."""

    def without(topic: Any, snapshot: TopicSnapshot) -> None:
        snapshot.producers = ProducerTable(topic._runtime.limits, topic.name).snapshot()

    _change_state(patch, without)


def lose_the_cursors(patch: pytest.MonkeyPatch) -> None:
    """Hands a topic over without what its subscriptions have acknowledged."""

    def without(_: Any, snapshot: TopicSnapshot) -> None:
        snapshot.cursors = []

    _change_state(patch, without)


class _Changed:
    """An object of which some attributes are others."""

    def __init__(self, whole: Any, **others: Any) -> None:
        self._whole = whole
        self.__dict__ |= others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


def switch_before_the_target_has_synced(patch: pytest.MonkeyPatch) -> None:
    """Answers that a copy is complete when it was submitted to the journal of the target, and not synced."""
    arrive, copy = target.Arrivals.__init__, target._Copy.__init__

    def written_only(self: Any, *call: Any, **options: Any) -> None:
        copy(self, *call, **options)
        self.durability = Durability.OS

    def hasty(self: Any, *rest: Any) -> None:
        arrive(self, *rest)
        runtime = self._runtime

        async def save(states: Mapping[TopicId, bytes]) -> None:
            if any(msgspec.msgpack.decode(state, type=TopicSnapshot).pending for state in states.values()):
                runtime.start(saved_later, states)
            else:
                await runtime.journal.save(states)

        async def saved_later(states: Mapping[TopicId, bytes]) -> None:
            with suppress(DanubeError):
                await runtime.journal.save(states)

        async def sync(sequence: int) -> None:
            await trio.lowlevel.checkpoint()

        self._runtime = _Changed(runtime, journal=_Changed(_Journal(runtime), save=save, sync=sync))

    patch.setattr(target._Copy, "__init__", written_only)
    patch.setattr(target.Arrivals, "__init__", hasty)


class _Journal:
    """The journal of a broker, which does not exist yet when its rooms are built."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime.journal, name)


def publish_while_it_is_frozen(patch: pytest.MonkeyPatch) -> None:
    """Admits messages of a topic while the rest of it is copied."""
    patch.setattr(Intake, "freeze", lambda self: None)


def switch_whatever_is_assigned(patch: pytest.MonkeyPatch) -> None:
    """Changes the owner without conditions, and without a look at the assignment or the order."""
    switch = source._Move._switch

    async def blind(self: Any) -> Any:
        directory, store = self._directory, self._directory.catalogue.store

        async def unconditional(conditions: Sequence[Any], operations: Sequence[Any]) -> Any:
            return await store.transact((), operations)

        catalogue = _Changed(directory.catalogue, store=_Changed(store, transact=unconditional))
        self._directory = _Changed(directory, catalogue=catalogue)
        try:
            return await switch(self)
        finally:
            self._directory = directory

    patch.setattr(source._Move, "_switch", blind)


def go_on_in_doubt(patch: pytest.MonkeyPatch) -> None:
    """Takes a switch whose answer was lost for one that was refused: the topic goes on at its source."""
    after = Departure._after

    def hasty(self: Departure, action: Any, event: Any) -> Any:
        if isinstance(action, Switch) and isinstance(event, Doubt):
            event = Refused(event.reason)
        return after(self, action, event)

    patch.setattr(Departure, "_after", hasty)


def resurrect_former_tenures(patch: pytest.MonkeyPatch) -> None:
    """Leaves the entries of a topic that has moved away in the journal, and reads on over the TAKEOVER behind them."""
    bury, forget = Recovery._bury, Recovery._forget

    async def leave(self: Any, topic: Any) -> None:
        await topic.intake.wait_settled()
        self._directory.runtime.journal.drop_topic(topic.topic_id)
        self.leaving.discard(topic.topic_id)

    async def unburied(self: Any, topic_id: TopicId, copy: Any) -> None:
        if copy is not None:
            await copy.until_idle()
        self._runtime.journal.drop_topic(topic_id)
        self._forget(topic_id)

    def buried(self: Any, topic_id: TopicId, file: Any) -> None:
        bury(self, topic_id, file)
        forget(self, topic_id)

    patch.setattr(Following, "_leave", leave)
    patch.setattr(target.Arrivals, "_bury", unburied)
    patch.setattr(Recovery, "_bury", buried)
    patch.setattr(Recovery, "_forget", lambda self, topic_id: None)


MOVE_PLANTS: tuple[Plant, ...] = (
    lose_the_producers,
    switch_before_the_target_has_synced,
    publish_while_it_is_frozen,
    lose_the_cursors,
    go_on_in_doubt,
    switch_whatever_is_assigned,
    resurrect_former_tenures,
)

DIRECTED: dict[str, Callable[[], None]] = {
    "the source is cut off": directed.test_a_switch_that_arrives_from_a_source_that_is_cut_off,
    "the switch is late": partial(directed.test_a_switch_whose_answer_is_lost_may_still_be_on_its_way, 2.0, 0.0),
    "the target loses its power": partial(
        directed.test_a_target_that_loses_its_power_at_once_has_what_it_took, Durability.DISK
    ),
    "a consumer moves along": directed.test_what_was_acknowledged_before_a_move_is_not_delivered_behind_it,
    "the topic returns": partial(
        directed.test_a_topic_that_returns_has_only_what_returned_with_it, Durability.DISK, "before the tombstone"
    ),
    "the topic returns, synced by the system": partial(
        directed.test_a_topic_that_returns_has_only_what_returned_with_it, Durability.OS, "when it is back"
    ),
}
"""The worlds of :mod:`test_simulation_moves` that find bugs more certainly than a seed does."""


MOVE_WORLDS: tuple[str | int, ...] = (*DIRECTED, *range(MOST_SEEDS))
"""Where a bug is looked for, in this order."""

MOVES_FOUND_BY: dict[str, tuple[str | int, str]] = {
    "lose_the_producers": ("the source is cut off", "ProducerFencedError: producer 'p' of topic"),
    "switch_before_the_target_has_synced": ("the target loses its power", "acknowledged messages are lost"),
    "publish_while_it_is_frozen": ("the source is cut off", "acknowledged messages are lost"),
    "lose_the_cursors": ("a consumer moves along", "acknowledged messages are delivered again"),
    "go_on_in_doubt": ("the source is cut off", "acknowledged messages are lost"),
    "switch_whatever_is_assigned": ("the switch is late", "TopicNotFoundError: topic"),
    "resurrect_former_tenures": ("the topic returns, synced by the system", "are damaged or missing in the journal"),
}
"""The world that finds a bug, and what it says, in part: a plant that fails in another way is no evidence. Each takes
one or two seconds."""


def draw_moves(seed: int) -> WorldPlan:
    """Draw a small cluster with one topic, which moves all the time."""
    plan = draw_plan(seed, duration_s=STORM_S, kind="cluster")
    topics = plan.topics[:1]
    return plan._replace(
        topics=topics,
        producers=[each for each in plan.producers if each.topic in topics],
        consumers=[each for each in plan.consumers if each.topic in topics],
        chores=[each for each in plan.chores if each.topic in topics],
        moves_every_s=MOVES_EVERY_S,
    )


def _told(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def find_in_moves(plant: Plant, where: Iterable[str | int]) -> tuple[str | int, str] | None:
    """Return the first of the directed worlds, or of the seeds, that finds the bug, and what it says first."""
    for each in where:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            try:
                if isinstance(each, str):
                    DIRECTED[each]()
                    violations = []
                else:
                    violations = run_world(each, plan=draw_moves(each)).violations
            except Exception as error:  # noqa: BLE001 - a world that breaks is a bug that is found, too
                violations = [_told(error)]
        if violations:
            return each, violations[0]
    return None


if __name__ == "__main__":
    names = sys.argv[1:]
    for each in MOVE_PLANTS:
        if not names or each.__name__ in names:
            found = find_in_moves(each, MOVE_WORLDS)
            sys.stdout.write(f"    {each.__name__!r}: {found!r},\n")
            sys.stdout.flush()
