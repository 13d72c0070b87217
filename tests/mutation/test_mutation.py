"""The mutation tester: its mutants and exceptions, sampling, planting, running and judging."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from .__main__ import main
from .judged import Judged
from .operators import mutants_of
from .patching import Loaded, NotPlanted
from .recording import CoverageMap, record
from .report import Summary, table
from .sampling import choose, draw, shares
from .sources import Mutant, Source
from .targets import ELSEWHERE, PACKAGES, ROOT, TESTS, package_of, sources_of

pytest_plugins = ["pytester"]


def source_of(directory: Path, text: str, name: str = "product") -> Source:
    path = directory / f"{name}.py"
    path.write_text(text)
    return Source(name, path)


def mistakes(directory: Path, body: str) -> list[tuple[str, str]]:
    """The mistakes in one line of a function: (operator, what the line becomes)."""
    source = source_of(directory, f"def f(a, b, c, x):\n    x()\n    {body}\n")
    found = [mutant for mutant in mutants_of(source) if mutant.start[0] > 2]
    return [(mutant.operator, source.mutated(mutant).splitlines()[2].strip()) for mutant in found]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a = b < c", [("boundary", "a = b <= c")]),
        ("a = b == c", [("comparison", "a = b != c")]),
        ("a = b is None", [("comparison", "a = b is not None")]),
        ("a = b <= x < c", [("boundary", "a = b < x < c"), ("boundary", "a = b <= x <= c")]),
        ("a = b[1:]", [("boundary", "a = b[2:]"), ("boundary", "a = b[0:]")]),
        ("a = True", [("constant", "a = False")]),
        ("a = 0.5", [("constant", "a = 2.0")]),
        (
            "a = b and c",
            [
                ("connective", "a = ((b) or (c))"),
                ("condition dropped", "a = ((c))"),
                ("condition dropped", "a = ((b))"),
            ],
        ),
        ("a = not b", [("sign", "a = (b)")]),
        ("a = -b", [("sign", "a = (b)")]),
        ("a = b // c", [("arithmetic", "a = (b * c)")]),
        ("a = min(b, c)", [("min and max", "a = max(b, c)")]),
        ("a = x(b, c)", [("arguments swapped", "a = x(c, b)")]),
        ("a = x(b, 'c')", []),
        ("a = b if x else c", [("condition negated", "a = b if not (x) else c")]),
        ("a = [b for b in c if x]", [("condition negated", "a = [b for b in c if not (x)]")]),
        ("x(a)", [("call removed", "pass")]),
        ("a.b = c", [("statement removed", "pass")]),
        ("a += c", [("statement removed", "pass")]),
        ("del a[b]", [("statement removed", "pass")]),
        ("raise ValueError(f'{a + 1}')", [("raise removed", "pass")]),
        ("return a", [("return value", "return None")]),
        ("return None", []),
        ("if a: return", [("guard removed", "pass"), ("condition negated", "if not (a): return")]),
        (
            "if a < b: raise x",
            [
                ("boundary", "if a <= b: raise x"),
                ("condition negated", "if not (a < b): raise x"),
                ("guard removed", "pass"),
                ("raise removed", "if a < b: pass"),
            ],
        ),
        ("while a: break", [("condition negated", "while not (a): break"), ("loop", "while a: continue")]),
    ],
)
def test_each_mistake(tmp_path: Path, line: str, expected: list[tuple[str, str]]) -> None:
    assert sorted(mistakes(tmp_path, line)) == sorted(expected)


def test_a_function_may_end_early_and_an_await_may_be_forgotten(tmp_path: Path) -> None:
    source = source_of(tmp_path, 'async def f(a):\n    """Text."""\n    await a()\n    await a.b()\n')
    found = [(mutant.operator, source.mutated(mutant).splitlines()[2:]) for mutant in mutants_of(source)]
    assert found == [
        ("early return", ["    return", "    await a.b()"]),
        ("call removed", ["    pass", "    await a.b()"]),
        ("call removed", ["    await a()", "    pass"]),
    ]


def test_a_limit_that_is_taken_at_the_start_is_another_one(tmp_path: Path) -> None:
    source = source_of(tmp_path, "MOST = 16 * 1024\nSHORT = 1\nNAME = 'x'\ndef f(a=7, *, b=2, c=None): ...\n")
    assert [mutant.operator for mutant in mutants_of(source)] == ["constant", "constant", "default", "default"]
    texts = [source.mutated(mutant) for mutant in mutants_of(source)]
    assert ["(2 * (16 * 1024))" in texts[0], "SHORT = (1 + 1)" in texts[1]] == [True, True]
    assert ["a=(2 * (7))" in texts[2], "b=(2 + 1)" in texts[3]] == [True, True]


def test_equivalent_mutants_are_left_out(tmp_path: Path) -> None:
    source = source_of(
        tmp_path,
        '''
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    LIMIT = 5

class Shape(Protocol):
    def area(self) -> int:
        return 1 + 2

class Thing:
    """Text with 1 < 2."""

    size: int = 5

    def __repr__(self):
        return "a" if self.size < 3 else "b"

    @limited(3)
    def act(self, x: "list[1]") -> "dict[2]":
        """Text."""
        assert x < 3
        _log.warning("x is %d", 5 + x)
        f"{x + 1}"
        cast("int", 3)
        warnings.warn("5", stacklevel=2)

async def turn():
    await trio.lowlevel.checkpoint()
''',
    )
    found = [mutant for mutant in mutants_of(source) if mutant.operator != "early return"]
    assert found == [], [source.diff(mutant) for mutant in found]


def test_a_mistake_that_compiles_to_the_same_is_none(tmp_path: Path) -> None:
    source = source_of(tmp_path, "def f(a):\n    if a:\n        return 1\n    return 1 * 1\n")
    at = (4, 11), (4, 16)
    same = Mutant("product", "f", "arithmetic", *at, "(1 // 1)", (4, 4))
    other = Mutant("product", "f", "arithmetic", *at, "(1 - 1)", (4, 4))
    broken = Mutant("product", "f", "arithmetic", *at, "1 +", (4, 4))
    assert [source.changes(mutant) for mutant in (same, other, broken)] == [False, True, False]


def test_lines_with_other_letters_are_cut_where_they_should(tmp_path: Path) -> None:
    source = source_of(tmp_path, "def f(a):\n    b = 'größer', a < 1\n")
    texts = [source.mutated(mutant) for mutant in mutants_of(source)]
    assert "    b = 'größer', a <= 1\n" in "".join(texts)


def test_the_draw_is_fair_and_repeats_itself(tmp_path: Path) -> None:
    assert shares({"a": 100, "b": 50, "c": 1}, 30) == {"a": 19, "b": 10, "c": 1}
    assert shares({"a": 3, "b": 2}, 100) == {"a": 3, "b": 2}
    assert shares({"a": 9, "b": 1, "c": 1}, 2) == {"a": 1, "b": 0, "c": 1}
    source = source_of(tmp_path, "def f(a):\n    return [a < 1, a < 2, a < 3, a < 4, a < 5]\n")
    some = list(mutants_of(source))
    first = draw({"product": some}, 4, seed=1)
    assert draw({"other": some[:2], "product": some}, 5, seed=1)[1:] == first
    assert len(set(first)) == 4
    assert draw({"product": some}, 4, seed=2) != first
    assert draw({"product": some}, None, seed=2) == some


def test_every_package_is_there() -> None:
    for name, patterns in PACKAGES.items():
        assert all(list(ROOT.glob(pattern)) for pattern in patterns), name
        assert {package_of(source.name) for source in sources_of([name])} == {name}
    assert all((ROOT / name).exists() for name in (*TESTS, *ELSEWHERE))


def test_tests_are_chosen_by_line_and_the_fastest_come_first() -> None:
    def seen(duration: float, *lines: int) -> dict[str, object]:
        return {"duration_s": duration, "lines": {"p.py": list(lines)}}

    known = CoverageMap([{"slow": seen(3, 1, 2), "fast": seen(0.1, 2, 3)}, {"long": seen(50, 2, 9)}])
    assert known.tests("p.py", (2, 2), 60) == ["fast", "slow", "long"]
    assert known.tests("p.py", (2, 2), 5) == ["fast", "slow"]
    assert known.tests("p.py", (8, 9), 5) == ["long"], "one at least, whatever it takes"
    assert known.tests("p.py", (1, 1), 5) == ["slow"]
    assert known.tests("p.py", (0, 0), 60) == ["fast", "slow", "long"]
    assert known.tests("q.py", (1, 9), 60) == known.tests("p.py", (4, 8), 60) == []


def test_the_lines_that_tests_run_are_recorded_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = ["tests/log/test_log_actions.py", "tests/wire/test_tls_peers.py"]
    known = record(files, tmp_path, 2)
    assert known.tests("danube/log/recovery.py", (0, 0), 60)
    assert {test.partition("::")[0] for test in known.durations} == {files[0]}, (
        "the other has no test that CI runs here"
    )
    assert sorted(capfd.readouterr().err.splitlines()) == [f"recorded {name}" for name in files]
    again = record(files, tmp_path, 2)
    assert again.durations == known.durations
    assert capfd.readouterr().err == ""


def test_a_package_is_tried_by_its_own_tests_first() -> None:
    durations = {"tests/log/a": 0.1, "tests/wire/b": 0.2, "tests/log/c": 3.0, "tests/wire/d": 9.0, "tests/log/e": 50.0}
    assert choose(list(durations), durations, "tests/log/", 60) == [
        "tests/log/a",
        "tests/log/c",
        "tests/log/e",
        "tests/wire/b",
    ]
    assert choose(["tests/log/e"], durations, "tests/log/", 6) == ["tests/log/e"]
    assert choose(list(durations), durations, "tests/wire/", 9.2) == ["tests/wire/b", "tests/wire/d"]


PRODUCT = """
import functools

LIMIT = 5

def below(a, most=7):
    return a < most

def traced(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

class Thing:
    @traced
    def double(self, a):
        return a * 2

    @staticmethod
    def scaled(a, *, by=4):
        return a * by

def within(a):
    def inner(b):
        return b <= LIMIT
    return inner(a)
"""


@pytest.fixture
def product(tmp_path: Path) -> Iterator[tuple[Source, ModuleType]]:
    source = source_of(tmp_path, PRODUCT, "planted_product")
    module = ModuleType(source.name)
    module.__file__ = str(source.path)
    sys.modules[source.name] = module
    exec(source.code, module.__dict__)
    yield source, module
    del sys.modules[source.name]


def plant(source: Source, line: str, text: str) -> None:
    """Make the mistake that turns a line into another."""
    for mutant in mutants_of(source):
        if source.identity(mutant)[2:] == (line, text):
            Loaded().plant(source, mutant)
            return
    raise AssertionError(f"no operator makes {text!r} of {line!r}")


def test_functions_that_are_loaded_are_changed_wherever_they_are(product: tuple[Source, ModuleType]) -> None:
    source, module = product
    below, double, inner = module.below, module.Thing().double, module.within
    assert (below(7), double(3), inner(5)) == (False, 6, True)
    plant(source, "return a < most", "return a <= most")
    assert below(7)
    plant(source, "return a * 2", "return (a // 2)")
    assert double(3) == 1, "behind its decorator"
    plant(source, "return b <= LIMIT", "return b < LIMIT")
    assert not inner(5), "a function inside a function"
    assert not below(8)


def test_numbers_that_are_taken_at_the_start_are_changed_too(product: tuple[Source, ModuleType]) -> None:
    source, module = product
    neighbour = ModuleType("neighbour")
    neighbour.LIMIT = module.LIMIT  # type: ignore[attr-defined]
    sys.modules["neighbour"] = neighbour
    try:
        plant(source, "LIMIT = 5", "LIMIT = (2 * (5))")
        assert (module.LIMIT, neighbour.LIMIT) == (10, 10)  # type: ignore[attr-defined]
        assert module.within(9)
    finally:
        del sys.modules["neighbour"]
    plant(source, "def below(a, most=7):", "def below(a, most=(2 * (7))):")
    assert module.below(13)
    plant(source, "def scaled(a, *, by=4):", "def scaled(a, *, by=(2 * (4))):")
    assert module.Thing.scaled(1) == 8


def test_mutants_that_cannot_be_planted_are_reported(product: tuple[Source, ModuleType], tmp_path: Path) -> None:
    source = source_of(tmp_path, "def gone(a):\n    return a < 1\n", "never_loaded")
    with pytest.raises(NotPlanted):
        plant(source, "return a < 1", "return a <= 1")


def test_a_survivor_is_known_by_its_text_not_by_its_place(tmp_path: Path) -> None:
    before = source_of(tmp_path, "def f(a):\n    return a < 1\n")
    after = source_of(tmp_path, "# more\n\n\ndef f(a):\n    if a:\n        return a < 1\n", "moved")
    listed = tmp_path / "list.toml"
    listed.write_text(
        "[[equivalent]]\nmodule = 'product'\nfunction = 'f'\nreason = 'x'\n"
        "gone = 'return a < 1'\ncome = 'return a <= 1'\n"
    )
    judged = Judged(listed)
    after.name = "product"
    for source in (before, after):
        reasons = [judged.reason(source, m) for m in mutants_of(source) if m.operator == "boundary"]
        assert "x" in reasons
        assert judged.stale({"product": source}) == []
    assert len(judged.stale({})) == 1
    assert len(judged.stale({"product": source_of(tmp_path, "")})) == 1


def test_every_entry_of_the_list_has_its_reason() -> None:
    judged = Judged()
    assert len(judged) > 0
    assert all(len(reason) > 10 for reason in judged._reasons.values())
    modules = {source.name for source in sources_of(PACKAGES)}
    assert {module for module, *_ in judged._reasons} <= modules


def test_the_table_counts_what_was_tried() -> None:
    outcomes = [("danube.log.index", "killed"), ("danube.log.index", "hung"), ("danube.log.journal", "survived"),
                ("danube.wire.connection", "equivalent"), ("danube.wire.connection", "unreached")]  # fmt: skip
    text = "\n".join(table(outcomes))
    assert [line.split()[0] for line in text.splitlines()] == ["package", "log", "wire", "all"]
    summary = Summary(outcome for _, outcome in outcomes)
    assert (summary.tried, summary.noticed, summary.ratio) == (4, 2, 0.5)
    assert Summary([]).ratio == 1.0


RUNNER = """
import json, sys
from pathlib import Path
import pytest
from tests.mutation import session
from tests.mutation.operators import mutants_of
from tests.mutation.recording import CoverageMap
from tests.mutation.sources import Source

session._FIRST_S = 1.5
source = Source("small_product", Path("small_product.py").resolve())
names = ["test_small.py::test_f", "test_small.py::test_count"]
known = CoverageMap([{name: {"duration_s": 0.01, "lines": {}} for name in names}])
mutants = [m for m in mutants_of(source) if m.function == "f" or m.operator == "statement removed"]
tasks = [session.Task(source, mutant, names) for mutant in mutants]
tasks += [session.Task(None, None, names), session.Task(source, tasks[0].mutant, [])]
told = []
def tell(verdict):
    text = source.identity(verdict.task.mutant)[3] if verdict.task.mutant else "nothing"
    told.append([text, verdict.outcome, verdict.by])
pytest.main(["-q", "-s", "-p", "no:cacheprovider", "test_small.py"], plugins=[session.Session(tasks, known, 2, tell)])
print("TOLD", json.dumps(told))
"""


def test_mistakes_are_tried_in_children(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is noticed, one that hangs, one that nothing notices, and none at all; with two at a time."""
    pytester.makepyfile(
        small_product="""
            def f(a):
                return a < 5

            def count(a):
                while a:
                    a -= 1
                return a
        """,
        test_small="""
            import small_product

            def test_f():
                assert small_product.f(3)

            def test_count():
                assert small_product.count(3) == 0
        """,
        runner=RUNNER,
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = pytester.runpython("runner.py")
    (line,) = [line for line in result.outlines if line.startswith("TOLD ")]
    told = {(text, outcome) for text, outcome, _ in json.loads(line[5:])}
    assert {("return a <= 5", "survived"), ("return a < 6", "survived"), ("return None", "killed")} <= told
    assert ("pass", "hung") in told, "a loop without its step never ends"
    assert {("nothing", "survived")} <= told
    assert "unreached" in {outcome for _, outcome in told}


@pytest.mark.long
def test_every_mistake_there_is_makes_sense() -> None:
    """Each compiles, changes something, is known by its text, and keeps to its own function."""
    count = nothing = 0
    for source in sources_of(PACKAGES):
        for mutant in mutants_of(source):
            count += 1
            compile(source.mutated(mutant), str(source.path), "exec", dont_inherit=True)
            nothing += not source.changes(mutant)
            module, _, gone, come = source.identity(mutant)
            assert module == source.name
            assert gone
            assert come
    assert count > 10_000
    assert nothing < count / 50


def test_tests_that_cannot_be_recorded_end_the_run_with_their_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = subprocess.CompletedProcess[str]([], 3, stdout="INTERNALERROR> no such fixture")
    monkeypatch.setattr("tests.mutation.recording.subprocess.run", lambda *_arguments, **_options: ended)
    tests = str(Path(__file__).relative_to(ROOT))
    monkeypatch.setattr("sys.argv", ["mutation", "--seed", "1", "--cache", str(tmp_path), "--tests", tests])
    assert main() == 1
    told = capsys.readouterr().err
    assert f"no mistake was tried: {tests} could not be recorded; pytest ended with 3" in told
    assert "no such fixture" in told
