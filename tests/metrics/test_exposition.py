"""Histograms, and the text formats."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.metrics import families
from danube.metrics.families import FAMILIES, Family, Kind
from danube.metrics.histogram import COUNT_BOUNDS, DURATION_BOUNDS_S, Histogram
from danube.metrics.text import Exposition, wants_openmetrics

LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"(?:,|$)')
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def written(exposition: Exposition) -> str:
    return b"".join(exposition.pieces()).decode()


def labels_of(line: str) -> dict[str, str]:
    inside = line[line.index("{") + 1 : line.rindex("}")]
    assert "".join(match.group(0) for match in LABEL.finditer(inside)) == inside
    return {
        match.group(1): re.sub(r"\\.", lambda found: UNESCAPED[found.group(0)], match.group(2))
        for match in LABEL.finditer(inside)
    }


@given(st.lists(st.floats(0, 30)))
def test_each_observation_is_in_the_first_bucket_that_it_fits_in(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    expected = [sum(value <= bound for value in values) for bound in (*DURATION_BOUNDS_S, math.inf)]
    assert list(histogram.cumulative()) == expected
    assert histogram.total == pytest.approx(sum(values))


def test_the_buckets_of_durations_reach_from_100_us_to_10_s() -> None:
    assert (DURATION_BOUNDS_S[0], DURATION_BOUNDS_S[-1]) == (0.0001, 10.0)
    assert list(DURATION_BOUNDS_S) == sorted(set(DURATION_BOUNDS_S))


@given(st.text(), st.text())
def test_labels_survive_whatever_they_contain(topic: str, subscription: str) -> None:
    exposition = Exposition()
    exposition.add(families.LAG, 7, topic, subscription)
    line = written(exposition).split("\n", 2)[2].removesuffix("\n")
    assert line.endswith("} 7")
    assert "\n" not in line
    assert labels_of(line) == {"topic": topic, "subscription": subscription}


def test_text_without_utf8_form_is_replaced() -> None:
    exposition = Exposition()
    exposition.add(families.MESSAGES_IN, 1, "/default/\udcff")
    assert 'topic="/default/?"' in written(exposition)


def test_prometheus_text() -> None:
    exposition = Exposition()
    exposition.add(families.BYTES_IN, 5, "/default/b")
    exposition.add(families.MESSAGES_IN, 3, "/default/a")
    exposition.add(families.BYTES_IN, 6, "/default/a")
    exposition.add(families.MAX_FDS, math.inf)
    assert written(exposition) == (
        "# HELP process_max_fds Most file descriptors that the process may open.\n"
        "# TYPE process_max_fds gauge\n"
        "process_max_fds +Inf\n"
        f"# HELP danube_topic_messages_in_total {families.MESSAGES_IN.help}\n"
        "# TYPE danube_topic_messages_in_total counter\n"
        'danube_topic_messages_in_total{topic="/default/a"} 3\n'
        f"# HELP danube_topic_bytes_in_total {families.BYTES_IN.help}\n"
        "# TYPE danube_topic_bytes_in_total counter\n"
        'danube_topic_bytes_in_total{topic="/default/b"} 5\n'
        'danube_topic_bytes_in_total{topic="/default/a"} 6\n'
    )
    assert exposition.series == 4


def test_openmetrics_text() -> None:
    exposition = Exposition(openmetrics=True)
    exposition.add(families.MESSAGES_IN, 3, "/default/a")
    batches = Histogram(COUNT_BOUNDS)
    batches.observe(2)
    batches.observe(5000)
    exposition.add_histogram(families.COMMIT_BATCHES, batches)
    text = written(exposition)
    assert "# TYPE danube_topic_messages_in counter\ndanube_topic_messages_in_total{" in text
    assert '_bucket{le="1.0"} 0\ndanube_journal_commit_batches_bucket{le="2.0"} 1\n' in text
    assert (
        '_bucket{le="+Inf"} 2\ndanube_journal_commit_batches_sum 5002.0\ndanube_journal_commit_batches_count 2' in text
    )
    assert text.endswith("# EOF\n")
    assert exposition.series == 1 + len(COUNT_BOUNDS) + 3


def test_a_histogram_with_labels() -> None:
    exposition, histogram = Exposition(), Histogram()
    histogram.observe(0.0003)
    exposition.add_histogram(families.PUBLISH_SECONDS, histogram, "disk")
    lines = written(exposition).splitlines()
    assert lines[2] == 'danube_publish_duration_seconds_bucket{durability="disk",le="0.0001"} 0'
    assert lines[-2:] == [
        'danube_publish_duration_seconds_sum{durability="disk"} 0.0003',
        'danube_publish_duration_seconds_count{durability="disk"} 1',
    ]


def test_long_families_come_in_pieces() -> None:
    exposition = Exposition()
    for number in range(1200):
        exposition.add(families.MESSAGES_IN, number, f"/default/t{number}")
    pieces = list(exposition.pieces())
    assert len(pieces) == 4
    assert b"".join(pieces).count(b"\n") == 1202


def test_a_wrong_number_of_labels_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        Exposition().add(families.LAG, 1, "/default/a")
    with pytest.raises(ValueError, match="zip"):
        Exposition().add(families.OWNED, 1, "/default/a")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_names_follow_the_rules(family: Family) -> None:
    assert re.fullmatch(r"(danube|process)_[a-z0-9_]+", family.name)
    assert (family.kind is Kind.COUNTER) == family.name.endswith("_total")
    assert not re.search(r"_(bucket|sum|count|ms|total_.*)$", family.name)
    assert family.help.endswith(".")
    assert "le" not in family.labels
    assert all(re.fullmatch(r"[a-z_]+", label) for label in family.labels)


def test_names_are_unique() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        # What Prometheus 2.42 sends:
        (
            "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            True,
        ),
        ("text/plain;version=0.0.4;q=1,application/openmetrics-text;q=0.3", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=much", False),
    ],
)
def test_the_format_follows_the_accept_header(accept: str, expected: bool) -> None:
    assert wants_openmetrics(accept) is expected
