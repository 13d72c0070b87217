"""A test, or a module of tests, that is skipped because a part is missing fails in CI."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).parents[1] / "conftest.py"
TESTS = {
    "of_a_test": "import pytest\ndef test_part(): pytest.skip('ip is missing')\n",
    "of_a_module": "import pytest\npytest.importorskip('no_such_module')\ndef test_part(): pass\n",
    "of_a_module_by_hand": "import pytest\npytest.skip('it is missing', allow_module_level=True)\n",
    "of_a_fixture": "import pytest\n@pytest.fixture\ndef part(): pytest.skip('gone')\ndef test_part(part): pass\n",
    "by_a_mark": "import pytest\n@pytest.mark.skipif(True, reason='missing')\ndef test_part(): pass\n",
}
ALLOWED = "import pytest\npytest.skip('allowed in CI: not on this system', allow_module_level=True)\n"


def run(pytester: pytest.Pytester, text: str, ci: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST.read_text().replace('pytest_plugins = ["hangs", "storage_servers"]', ""))
    pytester.makepyfile(test_parts=text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CI", ci)
        return pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider")


@pytest.mark.parametrize("kind", TESTS)
def test_a_skip_fails_in_ci_only(pytester: pytest.Pytester, kind: str) -> None:
    in_ci = run(pytester, TESTS[kind], "true")
    assert in_ci.ret in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    in_ci.stdout.fnmatch_lines(["*skipped in CI, where every part must be there*"])
    elsewhere = run(pytester, TESTS[kind], "")
    assert elsewhere.ret in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def test_what_no_machine_of_ci_can_have_may_be_skipped(pytester: pytest.Pytester) -> None:
    assert run(pytester, ALLOWED, "true").ret == pytest.ExitCode.NO_TESTS_COLLECTED
