"""What a broker's log handler writes: text or JSON, repeats counted."""

from __future__ import annotations

import io
import json
import logging
from typing import Any, Literal

from danube.broker.runtime.log_output import LogOutput
from danube.model.log_events import log_event


class Output:
    """A handler with a clock that the test sets."""

    def __init__(self, format_: Literal["text", "json"]) -> None:
        self.now = 0.0
        self.stream = io.StringIO()
        self.handler = LogOutput(format_, self.stream, lambda: self.now)
        self.logger = logging.Logger("danube.test")
        self.logger.addHandler(self.handler)

    def lines(self) -> list[str]:
        lines = self.stream.getvalue().splitlines()
        self.stream.truncate(self.stream.seek(0))
        return lines

    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()]


def test_a_line_of_text_is_as_ever() -> None:
    output = Output("text")
    output.logger.error("topic %r stops", "/default/t", extra=log_event("topic.stopped", topic="/default/t"))
    (line,) = output.lines()
    assert line.endswith(" ERROR danube.test: topic '/default/t' stops")


def test_a_json_line_has_event_fields_and_exception() -> None:
    output = Output("json")
    output.logger.warning("plain %d", 1)
    try:
        raise ValueError("odd")
    except ValueError:
        output.logger.exception("it failed", extra=log_event("call.failed", method="/x"))
    plain, failed = output.objects()
    assert (plain["event"], plain["message"], plain["level"], plain["logger"]) == (
        "other",
        "plain 1",
        "warning",
        "danube.test",
    )
    assert (failed["event"], failed["method"], failed["level"]) == ("call.failed", "/x", "error")
    assert failed["exception"].startswith("Traceback")
    assert "ValueError: odd" in failed["exception"]


def fail(output: Output, method: str) -> None:
    output.logger.error(
        "the handler of %s failed", method, extra=log_event("call.failed", repeating=True, method=method)
    )


def test_repeats_are_written_once_a_minute_with_their_number() -> None:
    output = Output("json")
    for _ in range(100):
        fail(output, "/x")
    fail(output, "/y")
    output.logger.error("another", extra=log_event("a.b"))
    output.logger.error("another", extra=log_event("a.b"))
    assert [line["message"] for line in output.objects()] == [
        "the handler of /x failed",
        "the handler of /y failed",
        "another",
        "another",
    ]
    output.now = 61
    fail(output, "/x")
    (line,) = output.objects()
    assert (line["repeats"], line["event"], line["method"]) == (99, "call.failed", "/x")
    assert "99 lines" in line["message"]
    output.handler.flush_repeats()
    (line,) = output.objects()
    assert line["repeats"] == 1


def test_repeats_are_counted_in_text_too() -> None:
    output = Output("text")
    for _ in range(3):
        fail(output, "/x")
    output.handler.flush_repeats()
    first, again = output.lines()
    assert first.endswith("the handler of /x failed")
    assert again.endswith("the handler of /x failed (repeated: 2 lines in the last minute were left out)")


def test_a_process_that_goes_on_has_its_former_output_again() -> None:
    root = logging.getLogger()
    former = root.handlers[:], root.level
    output = Output("text")
    with output.handler.installed("error"):
        root.warning("left out")
        root.error("the handler failed", extra=log_event("call.failed", repeating=True))
        root.error("the handler failed", extra=log_event("call.failed", repeating=True))
    root.error("elsewhere")
    assert [line.partition(": ")[2] for line in output.lines()] == [
        "the handler failed",
        "the handler failed (repeated: 1 lines in the last minute were left out)",
    ]
    assert (root.handlers, root.level) == former
