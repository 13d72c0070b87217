"""What a broker remembers of jobs, and for how long."""

from __future__ import annotations

import math

import pytest

from danube.broker.operations.job_book import JobBook
from danube.model import Limits
from danube.model.errors import DanubeError, LimitExceededError
from danube.model.job_api import MAX_ERROR_CHARACTERS, ReportJob

T = "/default/t"


def report(name: str = "etl", topic: str = T, **fields: object) -> ReportJob:
    return ReportJob(name, topic, **{"kind": "spark-read", "every_s": 10.0, **fields})  # type: ignore[arg-type]


def test_the_rate_is_that_between_two_reports_and_rows_add_up() -> None:
    book = JobBook(Limits())
    book.note(report(rows=5, lag=100), 0)
    (job,) = book.jobs(1)
    assert (job.rows, job.rows_per_s, job.lag, job.silent_s, job.error_s) == (5, 0, 100, 1, None)
    book.note(report(rows=200, lag=7), 10)
    (job,) = book.jobs(12)
    assert (job.rows, job.rows_per_s, job.lag, job.silent_s, job.known_s) == (205, 20, 7, 2, 12)
    book.note(report(rows=1), 10)
    assert book.jobs(10)[0].rows_per_s == 20, "no time has passed"


def test_a_job_that_breaks_its_promise_is_missing_and_later_forgotten() -> None:
    book = JobBook(Limits(job_expiry_s=100))
    book.note(report(rows=1), 0)
    book.note(report(rows=10), 10)
    book.note(report("free", every_s=0.0), 10)
    assert [(job.name, job.missing) for job in book.jobs(40)] == [("etl", False), ("free", False)]
    assert [(job.name, job.missing, job.rows_per_s) for job in book.jobs(41)] == [("etl", True, 0), ("free", False, 0)]
    book.note(report("free", every_s=0.0), 60)
    assert [job.name for job in book.jobs(110)] == ["free"]
    assert book.jobs(160) == []


def test_an_error_is_kept_with_its_age_and_cut() -> None:
    book = JobBook(Limits())
    book.note(report(error="x" * 5_000), 0)
    book.note(report(), 10)
    (job,) = book.jobs(15)
    assert (len(job.error), job.error_s) == (MAX_ERROR_CHARACTERS, 15)


def test_jobs_are_sorted_and_end() -> None:
    book = JobBook(Limits())
    for name, topic in (("b", T), ("a", "/default/z"), ("a", T)):
        book.note(report(name, topic), 0)
    assert [(job.name, job.topic) for job in book.jobs(0)] == [("a", T), ("a", "/default/z"), ("b", T)]
    book.note(report("a", over=True), 1)
    book.note(report("unseen", over=True), 1)
    assert [(job.name, job.topic) for job in book.jobs(1)] == [("a", "/default/z"), ("b", T)]


def test_only_so_many_are_listed_until_others_expire() -> None:
    book = JobBook(Limits(max_jobs=2, job_expiry_s=100))
    book.note(report("a"), 0)
    book.note(report("b"), 50)
    with pytest.raises(LimitExceededError, match="max_jobs is 2"):
        book.note(report("c"), 60)
    book.note(report("a"), 60)
    book.note(report("c"), 155)
    assert [job.name for job in book.jobs(155)] == ["a", "c"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"topic": "t"},
        {"kind": "Spark!"},
        {"kind": ""},
        {"rows": -1},
        {"lag": -1},
        {"every_s": -1.0},
        {"every_s": math.nan},
        {"every_s": math.inf},
    ],
)
def test_wrong_reports_are_refused(wrong: dict[str, object]) -> None:
    book = JobBook(Limits())
    with pytest.raises(DanubeError):
        book.note(report(**wrong), 0)  # type: ignore[arg-type]
    assert book.jobs(0) == []
