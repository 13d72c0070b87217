"""Records what callers saw of a schema registry, and finds violations of its contract, in time n log n of the history.

Rules:

* S1. A content has one number, a number stands for one content, and numbers of subjects are none of schemas.
* S2. A version of a subject has one number, for ever; a content has one version of a subject, unless it was deleted
  and registered again.
* S3. Numbers and versions respect real time: what was acknowledged before another thing was asked for first has the
  lower one. So none is used again.
* S4. What was acknowledged, or read, is found by every read that begins after that, at every broker. Only a deletion
  takes a version away, from reads that leave deleted ones out.
* S5. A registration that was refused has left nothing.
* S6. In the end, all brokers tell the same versions of a subject, with everything that was acknowledged.

A registration without an answer may have been made; whether it was is what later reads say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

__all__ = ["Registration", "SchemaHistory", "SeenVersion"]

_MOST_VIOLATIONS: Final = 20


class Registration(NamedTuple):
    """A registration that was asked for."""

    subject: str
    content: str
    start: float


class SeenVersion(NamedTuple):
    """A version of a subject, as a broker lists it."""

    version: int
    number: int
    is_deleted: bool


class _Deletion(msgspec.Struct, gc=False):
    start: float
    version: int
    """0: all of the subject."""
    gone: Sequence[int] = ()
    """What the answer says; empty: there was none."""


class _Miss(NamedTuple):
    start: float
    end: float
    where: str
    subject: str
    """Empty: it was asked for by its number."""
    wanted: int
    """A version of the subject, or a number."""
    deleted: bool
    """Whether deleted versions were asked for, too."""


class _Audit(NamedTuple):
    label: str
    where: str
    subject: str
    number: int
    versions: Sequence[SeenVersion]


class SchemaHistory:
    """The history of one registry; see the module. Times are seconds of one clock."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.registered = 0
        """Registrations that were acknowledged."""
        self.found = 0
        """Reads that found something."""
        self._asked: dict[tuple[str, str], float] = {}
        """When a content was first to be registered for a subject."""
        self._number_of: dict[str, int] = {}
        self._content_of: dict[int, str] = {}
        self._numbers: dict[int, float] = {}
        """When a schema was certainly there."""
        self._versions: dict[tuple[str, int], tuple[int, float]] = {}
        """The number of a version, and when it was certainly there."""
        self._subjects: dict[str, int] = {}
        """Numbers of subjects."""
        self._deletions: defaultdict[str, list[_Deletion]] = defaultdict(list)
        self._refused: dict[tuple[str, str], str] = {}
        self._misses: list[_Miss] = []
        self._audits: list[_Audit] = []

    def violation(self, text: str) -> None:
        """Record a violation."""
        if len(self.violations) < _MOST_VIOLATIONS:
            self.violations.append(text)

    # --- What callers do and see

    def registering(self, subject: str, content: str, now: float) -> Registration:
        """Record that a registration is about to be asked for; ``content`` is equal for all spellings of a schema."""
        self._asked.setdefault((subject, content), now)
        return Registration(subject, content, now)

    def acknowledged(self, asked: Registration, number: int, version: int, subject_number: int, now: float) -> None:
        """Record that a registration was answered."""
        self.registered += 1
        self._is_there(asked.content, number, now)
        self._has_version(asked.subject, version, number, now)
        self._has_number(asked.subject, subject_number)

    def refused(self, asked: Registration, why: str) -> None:
        """Record that a registration was refused which can only be refused, also when it is repeated."""
        self._refused[asked.subject, asked.content] = why

    def deleting(self, subject: str, version: int, now: float) -> None:
        """Record that a version is about to be deleted; 0: all of the subject."""
        self._deletions[subject].append(_Deletion(now, version))

    def deleted(self, subject: str, gone: Sequence[int], start: float) -> None:
        """Record that a deletion, which began at ``start``, was acknowledged."""
        self._deletions[subject].append(_Deletion(start, -1, tuple(gone)))

    def read(self, content: str, number: int, now: float) -> None:
        """Record that a schema was read by its number, or that a message with it arrived."""
        self.found += 1
        self._is_there(content, number, now)

    def read_version(self, subject: str, version: int, content: str, number: int, now: float) -> None:
        """Record that a version of a subject was read."""
        self.read(content, number, now)
        self._has_version(subject, version, number, now)

    def missed(self, number: int, where: str, start: float, now: float) -> None:
        """Record that a broker says that there is no schema with a number."""
        self._misses.append(_Miss(start, now, where, "", number, True))

    def missed_version(
        self, subject: str, version: int, where: str, start: float, now: float, *, deleted: bool
    ) -> None:
        """Record that a broker says that a subject does not exist, or has no such version.

        Args:
            subject, version: what was read.
            where: the broker.
            start, now: when the read began and ended.
            deleted: whether deleted versions were asked for, too.
        """
        self._misses.append(_Miss(start, now, where, subject, version, deleted))

    def audit(self, label: str, where: str, subject: str, number: int, versions: Sequence[SeenVersion]) -> None:
        """Record all versions that a broker lists for a subject, deleted ones too, while nothing changes.

        Args:
            label: of the moment.
            where: the broker.
            subject, number: its name and number.
            versions: what it lists.
        """
        self._audits.append(_Audit(label, where, subject, number, tuple(versions)))
        self._has_number(subject, number)

    # --- What follows from it

    def _is_there(self, content: str, number: int, now: float) -> None:
        other = self._number_of.setdefault(content, number)
        if other != number:
            self.violation(f"S1: {content} has the numbers {other} and {number}")
        known = self._content_of.setdefault(number, content)
        if known != content:
            self.violation(f"S1: number {number} is {known} and {content}")
        self._numbers[number] = min(now, self._numbers.get(number, math.inf))

    def _has_version(self, subject: str, version: int, number: int, now: float) -> None:
        known, since = self._versions.get((subject, version), (number, now))
        if known != number:
            self.violation(f"S2: version {version} of {subject} is number {known} and number {number}")
        self._versions[subject, version] = known, min(now, since)

    def _has_number(self, subject: str, number: int) -> None:
        known = self._subjects.setdefault(subject, number)
        if known != number:
            self.violation(f"S1: {subject} has the numbers {known} and {number}")

    # --- The end

    def check(self) -> list[str]:
        """Return all violations; call it once, when all is over."""
        self._check_subject_numbers()
        self._check_single_versions()
        self._check_order()
        self._check_misses()
        self._check_audits()
        return self.violations

    def _check_subject_numbers(self) -> None:
        owners: dict[int, str] = {}
        for subject, number in self._subjects.items():
            if number in self._content_of:
                self.violation(f"S1: number {number} is {subject} and {self._content_of[number]}")
            other = owners.setdefault(number, subject)
            if other != subject:
                self.violation(f"S1: number {number} is {other} and {subject}")

    def _check_single_versions(self) -> None:
        found: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for (subject, version), (number, _) in self._versions.items():
            found[subject, number].append(version)
        for (subject, number), versions in found.items():
            versions.sort()
            for before, after in pairwise(versions):
                if not self._may_be_deleted(subject, before, self._versions[subject, after][1]):
                    self.violation(f"S2: number {number} is version {before} and version {after} of {subject}")

    def _may_be_deleted(self, subject: str, version: int, now: float) -> bool:
        """Whether a deletion of a version had begun at a time; of ``latest`` and of all it may be any version."""
        return any(
            each.start <= now and (each.version in (version, 0) or version in each.gone)
            for each in self._deletions[subject]
        )

    def _check_order(self) -> None:
        first: dict[str, float] = {}
        for (_, content), start in self._asked.items():
            first[content] = min(start, first.get(content, math.inf))
        numbers = [(number, first.get(content, -math.inf)) for number, content in self._content_of.items()]
        self._check_series("number", ((number, asked, self._numbers[number]) for number, asked in numbers))
        series: defaultdict[str, list[tuple[int, float, float]]] = defaultdict(list)
        for (subject, version), (number, since) in self._versions.items():
            asked = self._asked.get((subject, self._content_of.get(number, "")), -math.inf)
            series[subject].append((version, asked, since))
        for subject, each in series.items():
            self._check_series(f"{subject}: version", each)

    def _check_series(self, what: str, found: Iterable[tuple[int, float, float]]) -> None:
        """Check (value, when it was asked for first, when it was there): none was there before a lower one was wanted.

        A content that was deleted and registered again was wanted for the first time, so that says little of it.
        """
        earliest, which = math.inf, 0
        for value, asked, since in sorted(found, reverse=True):
            if earliest < asked:
                self.violation(
                    f"S3: {what} {value} was asked for at {asked:.6f}, and {which} was there at {earliest:.6f}"
                )
            if since < earliest:
                earliest, which = since, value

    def _check_misses(self) -> None:
        for miss in self._misses:
            if not miss.subject:
                since = self._numbers.get(miss.wanted, math.inf)
                what = f"number {miss.wanted}"
            else:
                _, since = self._versions.get((miss.subject, miss.wanted), (0, math.inf))
                what = f"version {miss.wanted} of {miss.subject}"
                if not miss.deleted and self._may_be_deleted(miss.subject, miss.wanted, miss.end):
                    continue
            # A caller that reads at once what it was told begins in the same moment of virtual time.
            if since <= miss.start:
                self.violation(
                    f"S4: {miss.where} says at {miss.end:.6f} that there is no {what}, which was there at {since:.6f}"
                )

    def _check_audits(self) -> None:
        told: dict[tuple[str, str], _Audit] = {}
        for audit in self._audits:
            known = told.setdefault((audit.label, audit.subject), audit)
            if known.versions != audit.versions:
                self.violation(
                    f"S6: {audit.label}: {audit.where} and {known.where} tell different versions of {audit.subject}"
                )
            rows = {each.version: each for each in audit.versions}
            self._check_rows(audit, rows)
        audited = {(audit.label, audit.where) for audit in self._audits}
        for label, where in sorted(audited):
            seen = {audit.subject for audit in self._audits if (audit.label, audit.where) == (label, where)}
            for subject in sorted(self._subjects.keys() - seen):
                self.violation(f"S6: {label}: {where} does not tell of {subject}")

    def _check_rows(self, audit: _Audit, rows: dict[int, SeenVersion]) -> None:
        subject = audit.subject
        for (name, version), (number, _) in self._versions.items():
            if name != subject:
                continue
            row = rows.get(version)
            if row is None or row.number != number:
                there = "nothing" if row is None else f"number {row.number}"
                self.violation(
                    f"S6: {audit.label}: {audit.where} tells {there} as version {version} of {subject}, not {number}"
                )
            elif row.is_deleted and not self._may_be_deleted(subject, version, math.inf):
                self.violation(f"S6: {audit.label}: version {version} of {subject} is deleted, and was not to be")
        for deletion in self._deletions[subject]:
            for version in deletion.gone:
                if version in rows and not rows[version].is_deleted:
                    self.violation(f"S6: {audit.label}: version {version} of {subject} was deleted, and is back")
        for (name, content), why in self._refused.items():
            number_of = self._number_of.get(content)
            if name == subject and any(row.number == number_of for row in audit.versions):
                self.violation(f"S5: {subject} has {content}, which was refused: {why}")
