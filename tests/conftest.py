"""Rules for every test: a missing part skips on a developer's machine and fails in CI."""

from __future__ import annotations

import gc
import inspect
import os
from collections.abc import Generator
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, settings
from long_files import long_first

from danube.testing.clock import SimulatedClock

pytest_plugins = ["hangs", "storage_servers"]

_ALLOWED_IN_CI = "allowed in CI:"

# How long an example takes says more about the machine than about what is tested. With CI set, Hypothesis has loaded
# its profile "ci" by now, and the rest of that stays.
settings.register_profile("danube", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("danube")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        reason = str(call.excinfo.value) if call.excinfo else "skipped"
        if _ALLOWED_IN_CI not in reason:
            report.outcome = "failed"
            report.longrepr = f"skipped in CI, where every part must be there: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Treat modules that skip all of their tests like tests that are skipped."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and _ALLOWED_IN_CI not in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where every part must be there: {report.longrepr}"
    return report


def _run_virtually(main: Any, *, clock: Any, instruments: Any) -> Any:
    return trio.run(main, clock=clock or SimulatedClock(), instruments=instruments)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave extended and long tests to their own environments: ``-m extended`` and ``-m long`` choose them."""
    left = [name for name in ("extended", "long") if name not in (config.option.markexpr or "")]
    chosen = [item for item in items if all(item.get_closest_marker(name) is None for name in left)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    files = [item.nodeid.partition("::")[0] for item in chosen]
    items[:] = [chosen[at] for at in long_first(files, extended="extended" not in left)]
    for item in items:
        if _is_virtual(item):
            item.add_marker(pytest.mark.trio(run=_run_virtually), append=False)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave all that is loaded out of garbage collections, in the processes of ``-n``.

    A process collects all tests, and their half a million objects were looked at before each seeded world. Not without
    ``-n``: ``tests.mutation`` finds the functions that live by the collector.
    """
    if hasattr(session.config, "workerinput"):
        gc.collect()
        gc.freeze()


def _is_virtual(item: pytest.Item) -> bool:
    """Whether a test runs in virtual time; ``real`` takes single tests out of a module that does."""
    marks = [mark.name for mark in item.iter_markers() if mark.name in ("virtual", "real")]
    return marks[:1] == ["virtual"] and inspect.iscoroutinefunction(getattr(item, "obj", None))
