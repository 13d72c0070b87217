"""The checks of ``danube doctor --cluster``. Pure: the answers of all brokers in, checks out.

The doctor visits every broker itself and asks each for its status of the cluster, for which that broker asks all
others. So a broker that only some of the others reach is found, and so are brokers whose tables differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

from danube.cluster.status import CLOCK_TOLERANCE_S
from danube.model.checks import Check
from danube.model.cluster_api import BrokerRow, ClusterStatus, StorageFace
from danube.model.spoken import spoken_count, spoken_duration

__all__ = ["FAR_BEHIND", "LATE_LOOP_S", "Visit", "check_cluster"]

LATE_LOOP_S: Final = 0.2
"""A loop whose timers are late by more than this is reported: it is close to costing elections and sessions."""
FAR_BEHIND: Final = 1_000
"""A member of the metadata with more entries to apply is reported."""
_FULL_JOURNAL: Final = 0.9


class Visit(NamedTuple):
    """What the doctor found at one broker."""

    name: str
    status: ClusterStatus | None
    """Its answer; None if it gave none."""
    problem: str = ""
    rtt_s: float = 0.0
    """How long a short call took."""
    clock_offset_s: float = 0.0
    """How far its wall clock is ahead of the doctor's, give or take half of ``rtt_s``."""


def check_cluster(reference: ClusterStatus, visits: Sequence[Visit]) -> list[Check]:
    """Return the checks of a cluster.

    Args:
        reference: the answer of the broker that was asked first.
        visits: one for each broker that has a session according to it.
    """
    answered = [visit for visit in visits if visit.status is not None]
    found = [_members(reference), _metadata(reference)]
    by_name = {visit.name: visit for visit in visits}
    found += [_broker(reference, row, by_name.get(row.name)) for row in reference.brokers]
    found += [_links(visit.name, visit.status) for visit in answered if visit.status is not None]
    if len(answered) > 1:
        found += [*_clocks(answered), _views(reference, answered)]
    found += [*_loops(reference), _versions(reference), *_storages(reference)]
    return found


def _members(status: ClusterStatus) -> Check:
    running = [row for row in status.brokers if row.session]
    detail = f"{status.cluster}: {spoken_count(len(status.brokers), 'broker')}, {len(running)} with a session"
    if not status.coordinator:
        return Check(
            "cluster",
            False,
            f"{detail}; no coordinator",
            "a broker becomes the coordinator within seconds if the metadata can be changed: see the check of the"
            " metadata, and the logs of the brokers",
        )
    return Check("cluster", True, f"{detail}; coordinator b{status.coordinator}")


def _metadata(status: ClusterStatus) -> Check:
    metadata = status.metadata
    if not metadata.members:
        kept = metadata.kept_by or metadata.engine or "the engine of the configuration"
        return Check("metadata", True, f"kept by {kept}, which is not checked")
    voters = [each for each in metadata.members if each.role in ("leader", "voter")]
    silent = [each for each in voters if each.behind < 0]
    late = [each for each in metadata.members if each.behind > FAR_BEHIND]
    leader = next((each for each in metadata.members if each.role == "leader"), None)
    detail = f"term {metadata.term}, {spoken_count(len(voters), 'voter')}"
    if leader is None:
        return Check(
            "metadata",
            False,
            f"{detail}; no leader is known, so the metadata cannot be changed",
            f"start the brokers that vote: {len(voters) // 2 + 1} of {len(voters)} are needed",
        )
    detail = f"leader {f'b{leader.broker}' if leader.broker else f'member {leader.member:x}'}, {detail}"
    if silent:
        spare = (len(voters) - 1) // 2 - len(silent)
        left = f"{spare} more may fail" if spare > 0 else "no other may fail now"
        return Check(
            "metadata",
            False,
            f"{detail}; {spoken_count(len(silent), 'voter')} not heard: {left}",
            "start the brokers that are away; danube cluster voters lists the members",
        )
    if late:
        names = ", ".join(f"b{each.broker} {each.behind:,}" for each in late)
        return Check("metadata", False, f"{detail}; entries behind: {names}", "check disk and load of these brokers")
    hint = "; an even number of voters is no safer than one less" if len(voters) % 2 == 0 else ""
    return Check("metadata", True, f"{detail}; all members are up to date{hint}")


def _broker(status: ClusterStatus, row: BrokerRow, visit: Visit | None) -> Check:
    name = f"broker {row.name}"
    if row.state == "gone":
        return Check(name, True, "declared gone")
    if not row.session:
        count = sum(each.count for each in status.waiting if each.broker == row.broker)
        waits = f"; {spoken_count(count, 'topic')} {'waits' if count == 1 else 'wait'} for it" if count else ""
        away = f" for {spoken_duration(row.away_s)}" if row.away_s >= 0 else ""
        replaced = f"; b{row.successor} runs at its address, from another data directory" if row.successor else ""
        start = "" if replaced else "start it, or "
        return Check(
            name,
            False,
            f"has had no session{away}{waits}{replaced}",
            f"{start}see: danube cluster explain {row.name}",
        )
    if visit is None or visit.status is None:
        why = visit.problem if visit is not None else "it was not asked"
        return Check(
            name,
            False,
            f"{row.address}: it has a session, but does not answer here: {why}",
            "check that it runs, the address that it advertises, and the network to it",
        )
    own = next((each for each in visit.status.brokers if each.broker == row.broker), row)
    figures = own.figures
    detail = f"{row.address} answers in {_ms(visit.rtt_s)}; {spoken_count(row.topics, 'topic')}"
    if figures is None:
        return Check(name, True, detail)
    faults = []
    if figures.topics < row.topics:
        faults.append(f"serves {figures.topics:,} of them")
    if figures.session != row.session:
        faults.append(
            "believes that it has no session" if not figures.session else "has another session than the metadata say"
        )
    if figures.journal_limit_bytes and figures.journal_used_bytes > _FULL_JOURNAL * figures.journal_limit_bytes:
        faults.append(f"its journal is {figures.journal_used_bytes / figures.journal_limit_bytes:.0%} full")
    if figures.sealing_failing_s:
        faults.append(f"sealing has been failing for {spoken_duration(figures.sealing_failing_s)}")
    if figures.stranded_topics:
        faults.append(f"its journal has messages of {spoken_count(figures.stranded_topics, 'topic')} that do not exist")
    remedy = f"see: danube cluster explain {row.name}, danube storage status --url danube://{row.address}, and its log"
    return Check(name, not faults, "; ".join((detail, *faults)), remedy)


def _links(name: str, status: ClusterStatus) -> Check:
    others = [row for row in status.brokers if row.broker != status.broker and row.session]
    if not others:
        return Check(f"links of {name}", True, "there is no other broker")
    broken = [f"{row.name}: {row.problem}" for row in others if row.problem]
    reached = [f"{row.name} in {_ms(row.rtt_s)}" for row in others if row.figures is not None]
    detail = f"reaches {', '.join(reached)}" if reached else "reaches no other broker"
    if broken:
        detail += f"; does not reach {'; '.join(broken)}"
    return Check(
        f"links of {name}",
        not broken,
        detail,
        "brokers need each other's client port: check addresses, firewalls and the cluster's secret",
    )


def _clocks(answered: Sequence[Visit]) -> Iterator[Check]:
    middle = median(visit.clock_offset_s for visit in answered)
    for visit in answered:
        offset_s = visit.clock_offset_s - middle
        certain_s = max(0.0, abs(offset_s) - visit.rtt_s / 2)
        yield Check(
            f"clock of {visit.name}",
            certain_s <= CLOCK_TOLERANCE_S,
            f"{offset_s:+.3f} s beside the others",
            "run a time service (chrony, systemd-timesyncd): publish times, delays and expiries depend on it",
        )


def _views(reference: ClusterStatus, answered: Sequence[Visit]) -> Check:
    """Compare what the brokers' tables say: sessions, coordinator, leader."""
    expected = _view_of(reference)
    differing = [visit.name for visit in answered if visit.status is not None and _view_of(visit.status) != expected]
    if not differing:
        return Check("tables", True, "all brokers see the same sessions, coordinator and cluster")
    return Check(
        "tables",
        False,
        f"{', '.join(differing)}: sessions, coordinator or cluster differ from those that b{reference.broker} sees",
        "run this again: changes arrive within a second. If it remains, that broker is cut off from the metadata",
    )


def _view_of(status: ClusterStatus) -> tuple[object, ...]:
    sessions = tuple((row.broker, row.session) for row in status.brokers)
    return status.cluster, status.incarnation, status.coordinator, sessions


def _loops(status: ClusterStatus) -> Iterator[Check]:
    for row in status.brokers:
        if row.figures is not None and row.figures.loop_lag_s >= 0:
            lag_s = row.figures.loop_lag_s
            yield Check(
                f"loop of {row.name}",
                lag_s <= LATE_LOOP_S,
                f"timers late by {_ms(lag_s)} (p99 of the last minute)",
                "the process gets too little CPU, or is suspended: give it a core, and see what else runs there",
            )


def _versions(status: ClusterStatus) -> Check:
    running = [row for row in status.brokers if row.session]
    versions = sorted({row.version for row in running})
    levels = sorted({row.feature_level for row in running})
    detail = f"Danube {', '.join(versions) or 'unknown'}; feature level of the cluster {status.feature_level}"
    if len(levels) > 1 or len(versions) > 1:
        each = ", ".join(f"{row.name} {row.version} (level {row.feature_level})" for row in running)
        return Check("versions", False, f"{detail}; they differ: {each}", "finish the upgrade of the other brokers")
    return Check("versions", True, detail)


def _storages(status: ClusterStatus) -> Iterator[Check]:
    """Compare the storages that at least one broker calls shared."""
    told = {row.name: row.figures.storages for row in status.brokers if row.figures is not None}
    names = sorted({face.storage for faces in told.values() for face in faces if face.shared})
    for storage in names:
        faces: dict[str, StorageFace | None] = {
            name: next((face for face in found if face.storage == storage), None) for name, found in told.items()
        }
        missing = [name for name, face in faces.items() if face is None]
        urls = sorted({f"{face.url}{'' if face.shared else ' (not shared)'}" for face in faces.values() if face})
        if missing:
            detail = f"{', '.join(missing)} {'has' if len(missing) == 1 else 'have'} no such storage"
        elif len(urls) > 1:
            detail = "configured differently: " + "; ".join(
                f"{name} {face.url}{'' if face.shared else ' (not shared)'}" for name, face in faces.items() if face
            )
        else:
            yield Check(f"storage {storage}", True, f"{urls[0]}, on all brokers that answered")
            continue
        yield Check(
            f"storage {storage}", False, detail, "give all brokers the same [storages]: topics move between them"
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
