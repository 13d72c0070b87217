"""A hang fails within seconds and is located, be it a task, a loop, a thread, a process or a teardown."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

HERE = Path(__file__).parent.parent


def run(pytester: pytest.Pytester, tests: str) -> tuple[pytest.RunResult, str]:
    """Run tests in a process of their own, with half a second for each phase; return also all that was printed."""
    pytester.makeini(
        "[pytest]\ntrio_mode = true\ntest_timeout_s = 0.5\nfilterwarnings = error\n"
        f"addopts = -p hangs -p no:cacheprovider\npythonpath = {HERE}"
    )
    pytester.makepyfile(tests)
    result = pytester.runpytest_subprocess("--strict-config", "--strict-markers", "-rA", timeout=50)
    return result, f"{result.stdout}\n{result.stderr}"


def test_a_hang_is_a_failure_that_says_where(pytester: pytest.Pytester) -> None:
    """Under a clock that jumps, too, where time never passes for a world in which everything waits."""
    result, said = run(
        pytester,
        """
        import subprocess
        import threading
        import time
        from contextlib import suppress

        import pytest
        import trio
        from hypothesis import given, strategies

        async def wait_for_what_never_comes():
            await trio.Event().wait()

        async def test_tasks(autojump_clock):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_what_never_comes)
                nursery.start_soon(trio.to_thread.run_sync, lambda: None)

        @given(strategies.integers())
        def test_spin(number):
            with suppress(Exception):
                while True:
                    number += 1

        async def test_a_spinning_task(autojump_clock):
            while True:
                await trio.lowlevel.checkpoint()

        def test_thread():
            thread = threading.Thread(target=time.sleep, args=(8,), daemon=True)
            thread.start()
            thread.join()

        def test_process():
            subprocess.run(["sleep", "30"])

        @pytest.fixture
        def stuck():
            yield
            threading.Event().wait()

        def test_fails(stuck):
            assert False, "the reason why it hangs later"

        @pytest.mark.timeout(2)
        def test_slow_and_honest():
            time.sleep(0.6)

        @pytest.mark.timeout(0.1)
        def test_must_be_fast():
            time.sleep(0.3)

        async def test_the_next_one():
            await trio.sleep(0)
        """,
    )
    result.assert_outcomes(failed=7, passed=2, errors=1)
    assert "in wait_for_what_never_comes: await trio.Event().wait()" in said
    for name in ("tasks", "spin", "a_spinning_task", "thread", "process"):
        assert f"::test_{name} has taken 0.5 s; mark it timeout(SECONDS) if it may" in said
    assert "number += 1" in said or "while True" in said
    assert "the reason why it hangs later" in said
    assert "::test_fails has taken 0.5 s" in said
    assert "HangError: the teardown of" in said
    assert "::test_must_be_fast has taken 0.1 s" in said
    assert "PASSED test_a_hang_is_a_failure_that_says_where.py::test_the_next_one" in said, "what hung left something"


def test_a_hang_that_no_signal_interrupts_ends_the_process(pytester: pytest.Pytester) -> None:
    result, said = run(
        pytester,
        """
        import hangs, signal

        hangs.GRACE_S = 0.3

        def test_blocked():
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            while True:
                pass
        """,
    )
    assert result.ret == 1
    assert "Timeout (0:00:00.8" in said
    assert "in test_blocked" in said
