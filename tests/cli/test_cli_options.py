"""Whatever options a command is given: a documented exit code, and an error is one line.

The commands and their options are those of the program; one that is added is covered by that. They talk to a broker on
a simulated machine, so that waiting takes no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
import trio
import typer
import typer.testing
from broker.broker_harness import VirtualMachine, small_config
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import danube
import danube.broker.run
import danube.client
import danube.storage_server
from danube.cli._root import EXIT_CODES
from danube.cli.app import app
from danube.client import Environment
from danube.model.errors import ConnectionLostError
from danube.testing.clock import SimulatedClock

HOSTILE = [
    "",
    " ",
    "-",
    "--",
    "-1",
    "0",
    "1",
    "2",
    "1e999",
    "1e308",
    "nan",
    "inf",
    "-inf",
    "0x10",
    "1_0",
    "9" * 18,
    "9" * 19,
    "9" * 400,
    "-" + "9" * 30,
    "0.1",
    "5s",
    "9" * 30 + "d",
    "1MiB",
    "9" * 30 + "TiB",
    "none",
    "earliest",
    "latest",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59.999999-23:59",
    "1969-12-31T23:59:59Z",
    "2026-01-31",
    "/default/t",
    "/default/p-part-0",
    "/default/none",
    "/default/t/",
    "default",
    "s",
    "a=b",
    "=",
    "publish_rate=nan/s",
    "publish_rate=1e400/s,1MiB/s",
    "message_ttl=" + "9" * 30 + "w",
    "retention=7d," + "9" * 30 + "GiB",
    "max-producers=0",
    "\u00fc",
    "u\u0308",
    "\u200b",
    "\udcff",
    "[bold]x[/bold]",
    "%s {0} {x}",
    "x" * 5000,
    "/",
    ".",
    "missing/file",
    "odd.bin",
    "odd.toml",
    "127.0.0.1:0",
    "127.0.0.1:99999",
    "[::1]:x",
    "danube://127.0.0.1:6650",
    "danube://nowhere:1",
    "danube://",
    "http://x",
    "disk://",
    "memory://x",
    "s3://",
]
VALID = {
    "batch": ["1"],
    "bucket": ["memory://b"],
    "changes": ["publish_rate=100/s"],
    "data_dir": ["data"],
    "file": ["lines.txt"],
    "host": ["127.0.0.1"],
    "message": ["hello"],
    "name": ["default"],
    "names": ["publish_rate"],
    "namespace": ["default"],
    "partitions": ["2"],
    "payload": ["x"],
    "permission": ["Consume"],
    "permissions": ["Lookup"],
    "position": ["earliest", "0"],
    "producer": ["job"],
    "resource": ["/default/t"],
    "subject": ["service:api"],
    "subscription": ["s"],
    "target": ["broker", "default", "/default/t"],
    "topic": ["/default/t", "/default/p", "/default/new"],
    "url": ["danube://127.0.0.1:6650"],
}
"""What a parameter is given when it is not its turn; an option that is not here is left out then."""
FORCED = {
    ("doctor",): ["--data-dir=data"],
    ("produce",): ["--message=m"],  # not the standard input of the test
    ("bench", "consume"): ["--count=20"],
    ("bench", "publish"): ["--count=20"],
    ("bench", "latency"): ["--rate=100", "--duration=0.1"],
}
LONGEST_S = 300.0
"""Virtual seconds that a command has; then it is interrupted."""


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


ROOT = typer.main.get_command(app)
COMMANDS = dict(commands(ROOT))


@st.composite
def arguments(draw: st.DrawFn, words: tuple[str, ...], command: Any) -> list[str]:
    """Return a command line that is valid, but for a few of its words."""
    names = [each.name for each in command.params]
    odd = draw(st.sets(st.sampled_from(names), max_size=3)) if names else set()
    options, positional = [*FORCED.get(words, [])], []
    for parameter in command.params:
        spoilt = parameter.name in odd
        if parameter.param_type_name == "argument":
            value = draw(st.sampled_from(HOSTILE) if spoilt else st.sampled_from(VALID.get(parameter.name, ["x"])))
            positional.append(value)
        elif spoilt and parameter.is_flag:
            options.append(draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts])))
        elif spoilt:
            known = [*VALID.get(parameter.name, []), *map(str, getattr(parameter.bare_type, "__members__", ()))]
            value = draw(st.sampled_from(HOSTILE) | st.sampled_from(known or HOSTILE) | st.text(max_size=4))
            option = draw(st.sampled_from(parameter.opts))
            options += [option, value] if option[:2] != "--" or draw(st.booleans()) else [f"{option}={value}"]
        elif parameter.required:
            options += [parameter.opts[0], draw(st.sampled_from(VALID[parameter.name]))]
    found = [*words, *options, *(["--"] if draw(st.booleans()) else []), *positional]
    return [word.replace("\x00", "") for word in found]


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    found: list[Any] = []

    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategy)
    def gather(example: Any) -> None:
        found.append(example)

    gather()
    return found


class World:
    """A simulated machine with a broker, which lives as long as a command runs."""

    def __init__(self, directory: Path) -> None:
        self.config = small_config(directory, listen=["127.0.0.1:6650"])
        self.clock = SimulatedClock()
        self.machine: VirtualMachine | None = None
        self.real_run = trio.run
        self.real_connect = danube.client.connect

    def connect(self, url: str, **options: Any) -> Any:
        machine = self.machine
        assert machine is not None
        environment = Environment(connect=machine.connect, clock_us=machine.wall_clock_us)
        return self.real_connect(url, environment=environment, **options)

    def run(self, main: Callable[..., Any], *arguments: Any) -> Any:
        if arguments:  # a command that works on files, and needs no broker
            return self.real_run(main, *arguments)
        return self.real_run(self._live, main, clock=self.clock)

    async def _live(self, main: Callable[[], Any]) -> Any:
        self.clock._timers.clear()  # of the command before
        self.machine = machine = self.machine or VirtualMachine(self.config)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(machine.run)
            while machine.node.life is None:
                await trio.lowlevel.checkpoint()
            await machine.node.ready.wait()
            broker = machine.node.life.broker
            try:
                with trio.move_on_after(LONGEST_S):
                    return await main()
                raise KeyboardInterrupt
            finally:
                broker.drain()


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to work in; commands that run a server only read their options."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "lines.txt").write_bytes(b"one\ntwo\n")
    (work / "odd.bin").write_bytes(b"\xff\xfe\x00" * 100)
    (work / "odd.toml").write_bytes(b"limits = [1\n\xff")
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(work / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("DANUBE_URL", raising=False)
    monkeypatch.setattr(typer.testing, "_get_command", lambda _: ROOT)  # building it takes longer than running it
    monkeypatch.setattr(import_module("danube.broker.doctor"), "_SYNC_ROUNDS", 1)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # the doctor looks at the clock twice
    monkeypatch.setattr(danube.broker.run, "run_broker", lambda *_, **__: 0)
    monkeypatch.setattr(import_module("danube.cli._try").Trial, "run", no_brokers)
    monkeypatch.setattr(danube.storage_server, "run_storage_server", lambda *_, **__: None)
    return work


async def no_brokers(_: Any) -> int:
    """Stands for the brokers of ``cluster try``: real processes know nothing of virtual time."""
    await trio.lowlevel.checkpoint()
    return 0


async def at_once(function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
    """Stands for a thread: virtual time does not wait for real ones, and a command would have taken too long."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)


@pytest.fixture
def world(tmp_path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A broker with a few topics, for all commands."""
    made = World(tmp_path / "broker")
    monkeypatch.setattr(trio, "run", made.run)
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    monkeypatch.setattr(danube, "connect", made.connect, raising=False)
    for topic in (["/default/t"], ["/default/p", "--partitions", "2"]):
        assert invoke(["topics", "create", *topic]).exit_code == 0
    assert invoke(["produce", "/default/t", "-m", "a", "-m", "b"]).exit_code == 0
    assert invoke(["consume", "/default/t", "-s", "s", "-n", "1", "--start", "earliest"]).exit_code == 0
    return made


def invoke(words: list[str]) -> Result:
    return CliRunner().invoke(app, words, env={"DANUBE_URL": "danube://127.0.0.1:6650"})


DOCUMENTED = {0, 1, 2, 65, 66, 69, 73, 74, 75, 76, 77, 78, 130}


def judge(words: list[str]) -> None:
    done = invoke(words)
    shown = f"{[word[:60] for word in words]}: exit code {done.exit_code}, {done.stderr[-2000:]!r}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(f"{shown} {done.exception!r}") from done.exception
    assert "Traceback" not in done.stderr, shown
    if words[0] == "check" and done.exit_code == 3:  # the code of monitoring plugins for a check that is wrong itself
        assert done.stdout.startswith("DANUBE UNKNOWN - "), shown
        return
    assert done.exit_code in DOCUMENTED, shown
    if done.exit_code not in (0, 1, 2, 130):
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, shown
        assert done.stderr.splitlines()[-1] == errors[0], shown
        assert len(errors[0]) > len("error: ") + 5, shown


def test_the_exit_codes_are_the_documented_ones() -> None:
    assert all(f" {code} " in EXIT_CODES.replace("\n", " ") for code in DOCUMENTED)


def line_with(words: tuple[str, ...], command: Any, parameter: Any, value: str) -> list[str]:
    """Return a command line that is valid, but for one word."""
    options, positional = [*FORCED.get(words, [])], []
    for each in command.params:
        if each.param_type_name == "argument":
            positional.append(value if each is parameter else VALID.get(each.name, ["x"])[0])
        elif each is parameter and not each.is_flag:
            options.append(f"{each.opts[0]}={value}" if each.opts[0][:2] == "--" else f"{each.opts[0]}{value}")
        elif each.required:
            options += [each.opts[0], VALID[each.name][0]]
    return [*words, *options, "--", *positional]


STEPS = [
    17,
    pytest.param(5, marks=[pytest.mark.extended, pytest.mark.timeout(900)]),
    pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
]
"""Every so many of the values; a prime, so that parameters get different ones."""


@pytest.mark.parametrize("step", STEPS)
def test_every_option_with_every_value_where_no_broker_is(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    def run(*_: Any, **__: Any) -> Any:
        raise ConnectionLostError("there is no broker in this test")

    monkeypatch.setattr(trio, "run", run)
    known = [(words, command, parameter) for words, command in COMMANDS.items() for parameter in command.params]
    for place, value in islice(product(known, HOSTILE), None, None, step):
        judge(line_with(*place, value))


FEW = [
    1,
    pytest.param(8, marks=[pytest.mark.extended, pytest.mark.timeout(1800)]),
    pytest.param(25, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
]
"""Examples of each command."""


@pytest.mark.parametrize("count", FEW)
def test_every_option_of_every_command_and_a_broker(world: World, count: int) -> None:
    for words, command in COMMANDS.items():
        for line in drawn(arguments(words, command), count):
            judge(line)
    assert invoke(["info"]).exit_code == 0
