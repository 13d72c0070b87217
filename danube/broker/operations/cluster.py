"""Operations on the cluster: its status, and explanations of brokers and topics.

Any broker answers for all. It reads its own tables, asks the other brokers for their figures (and the owner of a topic
for the topic's state), and has pure rules compose the answer (:mod:`danube.cluster.status`,
:mod:`danube.cluster.explain`). A broker that does not answer within :data:`ASK_S` is marked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

import trio

from danube.cluster.absences import Absences
from danube.cluster.asking import (
    CHANNEL,
    AskFigures,
    AskLeaving,
    AskLoads,
    AskTopics,
    FiguresTold,
    LeavingTold,
    Question,
    Told,
    TopicsTold,
    TopicTold,
    decode_answer,
    decode_question,
    encode,
)
from danube.cluster.features import FEATURE_LEVEL
from danube.cluster.gaps import lost_with
from danube.cluster.group_memory import MEMBERS, MemberRecord, is_member_name
from danube.cluster.records import broker_name, parse_topic_id, topic_key
from danube.cluster.status import Answer, KnownTopic, View, compose_status, shown_gaps, shown_moves, unserved
from danube.history.sealed_end import sealed_end
from danube.metadata import Table
from danube.model import Durability, api, validate_topic
from danube.model.cluster_api import (
    MOST_PLACES,
    MOST_STAYING,
    UNKNOWN,
    BrokerFigures,
    ClusterStatus,
    ExplainCluster,
    Explained,
    GetClusterStatus,
    StorageFace,
    TopicPlace,
    UpgradeCluster,
    Upgraded,
)
from danube.model.errors import DanubeError, InvalidArgumentError, NotFoundError, UnavailableError
from danube.model.ids import BrokerId, TopicId
from danube.model.records import members

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.moving import MoveFigures
    from danube.broker.operations.weights import Weights
    from danube.broker.runtime.config import BalanceConfig
    from danube.broker.runtime.pulse import Pulse
    from danube.cluster.membership import Membership
    from danube.cluster.upgrading import Upgrading
    from danube.cluster.weighing import Scales, Weighing
    from danube.peers import Peer
    from danube.raft import NodeId

__all__ = ["ASK_S", "Calls", "ClusterOperations"]

ASK_S: Final = 1.5
"""How long another broker may take to answer."""
_MOST_SEALED_ENDS: Final = 20
"""Of so many waiting topics the end of the sealed history is looked up: a listing each."""


_UNCERTAIN: Final = (
    "it stores nothing, so it may get another owner while the session of this one is not certain to be alive; the"
    " metadata do not answer this broker"
)


class Calls(Protocol):
    """The part of the links between brokers that this needs."""

    async def call(self, to: str, channel: str, payload: bytes, timeout_s: float) -> bytes:
        """Call the handler of a channel at the broker with an address, and return its answer."""
        ...


class ClusterOperations:
    """Operations on the cluster; see the module.

    Args:
        directory: of the topics.
        membership: of this broker.
        coordinator: returns the broker that coordinates, as far as this one knows.
        info: returns the status of this broker.
        draining: returns whether it is shutting down.
        pulse: of this broker.
        moves: counts how moves of its topics end.
        staged: returns the topics for which batches are staged that have to stay with them.
        calls: returns the links to the other brokers; None: there are none.
        upgrading: returns what raises the feature level.

    Attributes:
        remove_member: removes a member from the group that keeps the metadata; None: the brokers do not keep them.
    """

    remove_member: Callable[[NodeId], Awaitable[object]] | None = None

    def __init__(
        self,
        directory: Directory,
        membership: Membership,
        *,
        coordinator: Callable[[], BrokerId | None],
        info: Callable[[], api.BrokerInfo],
        draining: Callable[[], bool],
        pulse: Pulse,
        moves: MoveFigures,
        staged: Callable[[], Collection[TopicId]],
        calls: Callable[[], Calls | None],
        upgrading: Callable[[], Upgrading],
    ) -> None:
        self._upgrading = upgrading
        self._directory = directory
        self._membership = membership
        self._coordinator = coordinator
        self._info = info
        self._draining = draining
        self._pulse = pulse
        self._moves = moves
        self._staged = staged
        self._calls = calls
        self._members = Table(directory.catalogue.store, MEMBERS, MemberRecord, watched=True, is_name=is_member_name)
        self._absences = Absences()
        self._note()
        membership.on_change.append(self._note)

    async def upgrade(self, _request: UpgradeCluster) -> Upgraded:
        """Raise the feature level of the cluster to the newest one.

        Raises:
            FailedPreconditionError: a broker that may return knows less; the message names it.
            UnavailableError: the metadata do not answer.
        """
        found = await self._upgrading().upgrade()
        return Upgraded(found.newest, found.level)

    async def run(self) -> None:
        """Task: follow who the members of the group are that keeps the metadata.

        Raises:
            DanubeError: the metadata store failed for good, for example because it was closed.
        """
        await self._members.follow()

    def _note(self) -> None:
        member = self._membership
        self._absences.note(member.brokers.values, member.sessions.values, trio.current_time())

    def view(self) -> View:
        """Return the tables of the cluster as this broker has them."""
        self._note()
        member = self._membership
        sessions = member.sessions
        standing = self._directory.catalogue.store.standing()
        return View(
            me=member.me,
            cluster=member.cluster,
            brokers=member.brokers.values,
            sessions=sessions.values,
            session_revisions={name: sessions.revision(name) for name in sessions.values},
            assignments=member.assignments.values,
            moves=member.moves.values,
            gaps=self._directory.catalogue.gaps.every(),
            wall_clock_s=self._directory.runtime.clock_us() / 1e6,
            coordinator=self._coordinator(),
            absences=self._absences,
            members=self._members.values,
            has_leader=not standing.member or standing.leader != 0,
            now=trio.current_time(),
        )

    @property
    def me(self) -> BrokerId:
        """The number of this broker."""
        return self._membership.me

    def owner(self, topic_id: TopicId) -> BrokerId | None:
        """Return the broker to which a topic or partition is assigned, whether it runs or not; None: to none."""
        assignment = self._membership.assignments.values.get(topic_key(topic_id))
        return None if assignment is None else assignment.owner

    # --- Use cases ---

    async def status(self, request: GetClusterStatus) -> ClusterStatus:
        """Return the status of the cluster."""
        return await self._compose(self.view(), gather=request.gather)

    async def _compose(self, view: View, *, gather: bool) -> ClusterStatus:
        known = self._known({*unserved(view), *shown_moves(view), *shown_gaps(view)})
        waiting = {
            topic_id: (topic, view.assignments[topic_key(topic_id)])
            for topic_id, topic in known.items()
            if topic_key(topic_id) in view.assignments
        }
        return compose_status(view, await self._ask_all(view, gather=gather), waiting)

    async def explain(self, request: ExplainCluster) -> Explained:
        """Explain a broker, a topic, or all partitions of a topic.

        Raises:
            NotFoundError: there is no such broker or topic.
            InvalidArgumentError: the name of the topic is invalid.
        """
        if request.subject.startswith("/"):
            return await self._explain_topic(request.subject)
        return await self._explain_broker(request.subject)

    async def _explain_topic(self, name: str) -> Explained:
        from danube.cluster.explain import explain_topic, place_of  # not needed when a broker starts

        validate_topic(name)
        catalogue = self._directory.catalogue
        record = catalogue.find(name)
        if record is None:
            record, topic_id = catalogue.locate(name)
            named = [(name, TopicId(topic_id))]
        else:
            named = members(name, record)
            if not named:
                raise NotFoundError(f"topic {name!r} has no partitions")
        view = self.view()
        places = [
            place_of(view, topic_id, KnownTopic(each, record.durability, record.storage)) for each, topic_id in named
        ]
        await self._complete(view, places)
        return explain_topic(view, name, places)

    async def _explain_broker(self, name: str) -> Explained:
        from danube.cluster.explain import explain_broker, place_of, sorted_places

        view = self.view()
        if name not in view.brokers and name not in view.sessions:
            known = ", ".join(sorted(view.brokers, key=lambda each: (len(each), each)))
            raise NotFoundError(
                f"there is no broker {name!r} in this cluster; its brokers are {known}. The name of a topic begins with"
                " a slash"
            )
        status = await self._compose(view, gather=True)
        row = next(each for each in status.brokers if each.name == name)
        owned = [parse_topic_id(key) for key, assignment in view.assignments.items() if assignment.owner == row.broker]
        chosen = self._known(owned[: 5 * MOST_PLACES])
        places = sorted_places([place_of(view, topic_id, topic) for topic_id, topic in chosen.items()])[:MOST_PLACES]
        await self._complete(view, places)
        lost = self._known(topic_id for topic_id, _ in lost_with(view.gaps).get(BrokerId(row.broker), ()))
        return explain_broker(view, row, status, sorted_places(places), len(owned), lost)

    # --- Topics ---

    def _known(self, topic_ids: Iterable[TopicId]) -> dict[TopicId, KnownTopic]:
        """Return what the catalogue knows of topics; those that it does not know are left out."""
        wanted = set(topic_ids)
        found: dict[TopicId, KnownTopic] = {}
        if wanted:
            for name, record in self._directory.catalogue.topics():
                if not wanted.isdisjoint(record.topic_ids):
                    for each, topic_id in members(name, record):
                        if topic_id in wanted:
                            found[topic_id] = KnownTopic(each, record.durability, record.storage)
        return found

    async def _complete(self, view: View, places: Sequence[TopicPlace]) -> None:
        """Fill in what the tables do not say: how the owners serve their topics, and how far history reaches."""
        await self._ask_owners(view, places)
        with trio.move_on_after(ASK_S), suppress(UnavailableError):  # it is not known if the metadata do not answer
            for place in [each for each in places if each.state in ("waiting", "unknown")][:_MOST_SEALED_ENDS]:
                end = await sealed_end(self._directory.catalogue.store, place.topic_id)
                place.sealed_end = UNKNOWN if end is None else end

    async def _ask_owners(self, view: View, places: Sequence[TopicPlace]) -> None:
        asked: dict[BrokerId, list[TopicPlace]] = {}
        for place in places:
            if place.state == "unknown":
                asked.setdefault(BrokerId(place.broker), []).append(place)
        async with trio.open_nursery() as nursery:
            for broker, group in asked.items():
                nursery.start_soon(self._ask_owner, view, broker, group)

    async def _ask_owner(self, view: View, broker: BrokerId, places: Sequence[TopicPlace]) -> None:
        names = [place.topic for place in places]
        if broker == view.me:
            told = self._tell_topics(names)
        else:
            session = view.sessions.get(broker_name(broker))
            try:
                if session is None:
                    raise UnavailableError(f"broker {broker_name(broker)} has just ended")
                answer = await self._ask(session.address, AskTopics(names))
            except DanubeError as error:
                for place in places:
                    place.detail = str(error)
                return
            if not isinstance(answer, TopicsTold) or len(answer.topics) != len(names):
                for place in places:
                    place.detail = "it gave another answer than was asked for"
                return
            told = answer.topics
        for place, each in zip(places, told, strict=True):
            place.state = "served" if each.served else "unavailable"
            place.detail, place.sealed_end = each.detail, each.sealed_end
            place.hindrance, place.move_failure = each.hindrance, each.failure

    def _tell_topics(self, names: Sequence[str]) -> list[TopicTold]:
        """Say how topics of this broker are."""
        told = []
        staged = frozenset[TopicId]() if self._membership.is_alone else self._staged()
        for name in names:
            try:
                topic = self._directory.find(name)
                topic.check_alive()
            except DanubeError as error:
                told.append(TopicTold(False, str(error)))
            else:
                if topic.lossy and not self._membership.is_certain():
                    told.append(TopicTold(False, _UNCERTAIN))
                else:
                    sealed_end = UNKNOWN if topic.lossy else topic.log.journal_start
                    hindrance = "" if self._membership.is_alone else self.weights.hindrance(topic, staged)
                    failure = self._moves.failures.get(topic.topic_id, "")
                    told.append(TopicTold(True, "", sealed_end, hindrance, failure))
        return told

    # --- Moves ---

    @cached_property
    def weights(self) -> Weights:
        """What the topics of this broker weigh, and which of them cannot move; a broker alone is never asked."""
        from danube.broker.operations.weights import Weights

        return Weights(self._directory, self._pulse, self._moves, self._staged)

    @cached_property
    def scales(self) -> Scales:
        """Asks all brokers for their loads; loaded like :attr:`weights`."""
        from danube.cluster.weighing import Scales

        return Scales(self._membership, self.weights.loads, self._calls, self._directory.partitions)

    def weighing(self, config: BalanceConfig) -> Weighing:
        """Make the part of the coordinator that knows the loads."""
        from danube.cluster.weighing import Weighing

        return Weighing(self.scales, enabled=config.enabled, rules=config.rules(), round_s=config.interval_s)

    async def hindrances(self, topics: Sequence[tuple[str, TopicId]]) -> dict[TopicId, str]:
        """Return why topics or partitions cannot be moved, as far as their owners say so."""
        view = self.view()
        places = [
            TopicPlace(
                topic=name,
                durability=Durability.NONE,
                state="unknown",
                topic_id=topic_id,
                broker=view.assignments[topic_key(topic_id)].owner,
            )
            for name, topic_id in topics
            if topic_key(topic_id) in view.assignments and view.has_session(view.assignments[topic_key(topic_id)].owner)
        ]
        await self._ask_owners(view, places)
        return {place.topic_id: place.hindrance for place in places if place.hindrance}

    async def ask_leaving(self, broker: BrokerId) -> LeavingTold:
        """Ask a broker that runs which of its topics cannot move.

        Raises:
            DanubeError: it does not answer.
        """
        if broker == self._membership.me:
            return await self.weights.leaving(MOST_STAYING)
        told = await self._ask(self._membership.session_address(broker), AskLeaving(MOST_STAYING))
        if not isinstance(told, LeavingTold):
            raise InvalidArgumentError("it gave another answer than was asked for")
        return told

    # --- Other brokers ---

    async def answer(self, _peer: Peer, payload: bytes) -> bytes:
        """Answer another broker's question, of :data:`danube.cluster.asking.CHANNEL`.

        Raises:
            InvalidArgumentError: this version does not know it.
        """
        await trio.lowlevel.checkpoint()
        question = decode_question(payload)
        if isinstance(question, AskFigures):
            return encode(FiguresTold(self.figures()))
        if isinstance(question, AskLoads):
            return encode(await self.weights.loads(question.most))
        if isinstance(question, AskLeaving):
            return encode(await self.weights.leaving(question.most))
        return encode(TopicsTold(self._tell_topics(question.topics)))

    def figures(self) -> BrokerFigures:
        """Return what this broker tells about itself."""
        info, rates, lag_s = self._info(), self._pulse.rates(), self._pulse.lag_s()
        storages = self._directory.history.storages
        return BrokerFigures(
            broker=self._membership.me,
            version=info.version,
            feature_level=FEATURE_LEVEL,
            uptime_s=info.uptime_s,
            time_us=self._directory.runtime.clock_us(),
            draining=self._draining(),
            connections=info.connections,
            topics=info.topics,
            in_bytes_s=rates.received,
            out_bytes_s=rates.sent,
            journal_used_bytes=info.journal_used_bytes,
            journal_limit_bytes=info.journal_limit_bytes,
            loop_lag_s=UNKNOWN if lag_s is None else lag_s,
            sealing_failing_s=info.sealing_failing_s,
            stranded_topics=info.stranded_topics,
            session=self._membership.session_revision,
            session_certain=self._membership.is_certain(),
            storages=[
                StorageFace(storage=name, url=storage.url, shared=storage.capabilities.shared)
                for name, storage in sorted(storages.items())
            ],
            metadata=self._directory.catalogue.store.standing(),
        )

    async def _ask_all(self, view: View, *, gather: bool) -> dict[BrokerId, Answer]:
        """Return the figures of all brokers with a session, or the reasons why they did not answer."""
        answers = {view.me: Answer(figures=self.figures(), rtt_s=0.0)}

        async def ask(broker: BrokerId, address: str) -> None:
            answers[broker] = await self._ask_figures(address)

        async with trio.open_nursery() as nursery:
            for broker, address in list(self._membership.owners.addresses()) if gather else []:
                if broker != view.me:
                    nursery.start_soon(ask, broker, address)
        return answers

    async def _ask_figures(self, address: str) -> Answer:
        clock_us = self._directory.runtime.clock_us
        began, began_us = trio.current_time(), clock_us()
        try:
            told = await self._ask(address, AskFigures())
        except DanubeError as error:
            return Answer(problem=str(error))
        rtt_s, middle_us = trio.current_time() - began, (began_us + clock_us()) / 2
        if not isinstance(told, FiguresTold):
            return Answer(problem="it gave another answer than was asked for")
        return Answer(figures=told.figures, rtt_s=rtt_s, clock_offset_s=(told.figures.time_us - middle_us) / 1e6)

    async def _ask(self, address: str, question: Question) -> Told:
        """Ask another broker.

        Raises:
            DanubeError: it does not answer, or this version does not understand what it says.
        """
        calls = self._calls()
        if calls is None:
            raise UnavailableError("this broker has no links to others")
        return decode_answer(await calls.call(address, CHANNEL, encode(question), ASK_S))
