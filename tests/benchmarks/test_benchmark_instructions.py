"""The programs whose instructions are counted do the same in every run, and Valgrind counts the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import instructions
from benchmarks.counting import callgrind
from benchmarks.counting.programs import PROGRAMS, run_program
from benchmarks.instructions import FILE, SCHEMA, Count, Part, Result
from benchmarks.scenarios import ALL_SCENARIOS

TREE = Path(instructions.__file__).resolve().parents[1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_checks_and_counts_what_it_did(name: str) -> None:
    program = PROGRAMS[name]
    began: list[int] = []
    ended: list[int] = []
    count = max(20, program.messages // 200)
    counted = run_program(program, (count, 2 * count), lambda: began.append(len(ended)), ended.append)
    assert [one.messages for one in counted] == [count, 2 * count]
    assert began == ended == [0, 1]
    small, large = counted
    assert large.network_bytes - small.network_bytes > 100 * count
    assert large.writes >= small.writes > 0


@pytest.mark.parametrize("name", ["s3", "s5"])
def test_a_program_does_the_same_in_every_run(name: str) -> None:
    first, second = (run_program(PROGRAMS[name], (20, 40)) for _ in range(2))
    assert first == second


def test_programs_are_named_like_the_scenarios_that_they_imitate() -> None:
    assert set(PROGRAMS) <= {*ALL_SCENARIOS, "s1e"}, "s1e is only counted, beside s1"


def test_one_message_at_a_time_is_one_write_for_each() -> None:
    small, large = run_program(PROGRAMS["u1"], (10, 30))
    assert (small.writes, small.syncs) == (10, 10)
    assert (large.writes, large.syncs) == (30, 30)


def _part(messages: int, instructions: int) -> Part:
    return Part(messages, instructions, writes=messages, syncs=messages, network_bytes=100, virtual_s=1.0)


def _result(commit: str, per_message: int, *names: str) -> Result:
    counts = [
        Count(name, "title", "calls", _part(10, 7_000 + 10 * per_message), _part(20, 7_000 + 20 * per_message))
        for name in names
    ]
    return Result(SCHEMA, commit, "3.11", "valgrind-3", 1.0, counts)


def test_the_cost_of_the_start_is_not_counted() -> None:
    count = _result("a", 1_000, "s3").counts[0]
    assert count.instructions == 1_000
    assert count.per_message(lambda part: part.writes) == 1
    assert count.per_message(lambda part: part.network_bytes) == 0


def test_tables_show_figures_and_ratios() -> None:
    before, after = _result("old", 1_000_000, "s1", "s3"), _result("new", 1_020_000, "s3", "u1")
    assert "| **1,020,000** | 1.00 | 0.00 | 10 and 20 messages |" in instructions.render(after)
    rows = instructions.compare(before, after).splitlines()
    assert rows[0] == "| instructions per message | old | new | ratio | writes |"
    assert rows[2:] == ["| s3 | 1,000,000 | 1,020,000 | **1.0200** | 1.00 |"]


def test_results_are_read_again_and_others_refused(tmp_path: Path) -> None:
    result = _result("a", 1_000, "s3")
    result.save(tmp_path)
    assert instructions.load(tmp_path) == instructions.load(tmp_path / FILE) == result
    (tmp_path / FILE).write_text('{"schema": 1}')
    with pytest.raises(ValueError, match="not a result"):
        instructions.load(tmp_path)
    Result(SCHEMA + 1, "a", "", "", 1.0, []).save(tmp_path)
    with pytest.raises(ValueError, match="count again"):
        instructions.load(tmp_path)


def test_requests_do_nothing_outside_valgrind() -> None:
    requests = callgrind.Requests()
    requests.start()
    requests.stop("part")
    assert not requests.answered


def test_counts_are_read_by_name(tmp_path: Path) -> None:
    for number, (trigger, total) in enumerate([("Client Request: 0", 12), ("Client Request: 1", 34), ("Program", 0)]):
        text = f"version: 1\ndesc: Trigger: {trigger}\nsummary: {total}\n\nfn=(1) main\n\ntotals: {total}\n"
        (tmp_path / f"out.{number}").write_text(text)
    assert callgrind.read_counts(tmp_path / "out") == {"0": 12, "1": 34}


def test_without_valgrind_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert instructions.main(["s3", "-o", str(tmp_path / "results")]) == 2
    assert "instructions are counted on Linux" in (said := capsys.readouterr().err) or "apt-get install" in said
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("words", [["s9"], ["--tree", "/nowhere"], ["--compare", "/nowhere"]])
def test_wrong_usage_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        instructions.main(words)
    assert words[-1] in capsys.readouterr().err
