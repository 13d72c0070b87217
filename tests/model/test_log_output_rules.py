"""The form of lines in the log, the counting of repeats, and the levels that return by themselves."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.model import Limits
from danube.model.errors import InvalidArgumentError, LimitExceededError
from danube.model.log_api import ChangeLogLevel, LevelBook, check_change
from danube.model.log_events import event_of, fields_of, log_event, repeat_key
from danube.model.log_lines import MAX_FIELD_CHARACTERS, json_line
from danube.model.log_repeats import Due, Repeats
from danube.model.secret import Secret


def line(**fields: object) -> dict[str, object]:
    made = json_line(time_s=1.5, level="ERROR", logger="danube", message="it failed", event="a.b", fields=fields)
    assert "\n" not in made
    return json.loads(made)


def test_a_line_is_one_object_with_its_fields() -> None:
    assert line(topic="/default/t", offset=7, ready=True, nothing=None) == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "error",
        "logger": "danube",
        "event": "a.b",
        "message": "it failed",
        "topic": "/default/t",
        "offset": 7,
        "ready": True,
    }


def test_secrets_are_not_shown_and_fields_do_not_replace_the_own_ones() -> None:
    assert line(password=Secret("pa55"), event="x", message="x")["password"] == "***"
    assert line(event="x")["event"] == "a.b"


@given(st.text() | st.characters(categories=["Cs"]))
def test_any_text_becomes_one_line_of_utf8(text: str) -> None:
    made = json_line(time_s=0, level="info", logger="l", message=text, exception=text or "x", fields={"topic": text})
    assert len(made.encode().splitlines()) == 1
    json.loads(made)


def test_long_texts_are_cut() -> None:
    message = line(text="x" * 100_000)["text"]
    assert isinstance(message, str)
    assert len(message) == MAX_FIELD_CHARACTERS
    assert message.endswith("…")


def test_the_first_line_of_a_minute_is_written_and_its_repeats_are_counted() -> None:
    repeats: Repeats[str] = Repeats(60, 10)
    assert repeats.note("a", "1", 0)
    assert repeats.note("b", "1", 30)
    assert not repeats.note("a", "2", 31)
    assert not repeats.note("a", "3", 32)
    assert repeats.due(59.9) == []
    assert repeats.due(60) == [Due("3", 2)]
    assert not repeats.note("a", "4", 61), "what was reported begins another minute"
    assert repeats.due(95) == [], "b had no repeats"
    assert repeats.note("b", "2", 95)
    assert repeats.due(120) == [Due("4", 1)]
    assert repeats.due(180) == []
    assert len(repeats) == 0


def test_only_some_keys_are_remembered_and_the_rest_is_reported_at_the_end() -> None:
    repeats: Repeats[str] = Repeats(60, 2)
    assert [repeats.note(key, key, 0) for key in "aabbc"] == [True, False, True, False, True]
    assert repeats.note("a", "again", 1), "it was forgotten for c"
    assert len(repeats) == 2
    assert not repeats.note("c", "c2", 1)
    assert repeats.rest() == [Due("c2", 1)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 50)), max_size=60))
def test_every_line_is_written_or_counted(steps: list[tuple[str, float]]) -> None:
    repeats: Repeats[str] = Repeats(60, 3)
    now = 0.0
    written = counted = 0
    for key, pause in steps:
        now += pause
        counted += sum(due.number for due in repeats.due(now))
        written += repeats.note(key, key, now)
    assert written + counted + sum(due.number for due in repeats.rest()) == len(steps)


def test_connections_are_no_things_of_their_own() -> None:
    def key(connection: int, **fields: object) -> tuple[str, ...] | None:
        return repeat_key(
            log_event("c.failed", repeating=True, connection=connection, peer=f"h:{connection}", **fields)
        )

    assert key(1, method="/x") == key(2, method="/x") == ("c.failed", "/x")
    assert key(1, method="/x") != key(1, method="/y")
    assert repeat_key(log_event("c.failed", connection=1)) is None
    assert repeat_key({}) is None
    assert (event_of({}), fields_of({})) == ("other", {})


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (ChangeLogLevel("loud"), InvalidArgumentError, "debug, info, warning or error"),
        (ChangeLogLevel("info", "root"), InvalidArgumentError, "danube.metadata"),
        (ChangeLogLevel("info", "danube."), InvalidArgumentError, "danube.metadata"),
        (ChangeLogLevel("info", for_s=0), InvalidArgumentError, "greater than 0"),
        (ChangeLogLevel("info", for_s=math.nan), InvalidArgumentError, "greater than 0"),
        (ChangeLogLevel("info", for_s=1e6), LimitExceededError, "log_level_max_s"),
    ],
)
def test_wrong_changes_of_levels_are_refused(request_: ChangeLogLevel, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_change(request_, Limits())


def test_the_level_from_before_the_first_change_returns() -> None:
    book = LevelBook(2)
    assert book.next_due == math.inf
    assert book.change("danube", 20, 100.0) == 20
    assert book.change("danube", 10, 50.0) == 20, "the change is not what returns"
    assert book.change("danube.wire", 0, 60.0) == 0
    with pytest.raises(LimitExceededError, match="max_log_levels is 2"):
        book.change("danube.peers", 0, 60.0)
    assert book.next_due == 50
    assert book.due(49) == []
    assert book.due(55) == [("danube", 20)]
    assert book.forget("danube.wire") == 0
    assert book.forget("danube.wire") is None
    assert book.due(math.inf) == []
