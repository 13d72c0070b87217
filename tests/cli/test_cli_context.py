"""Named contexts, the order in which an address is found, and how errors leave the process."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from danube.cli import _context
from danube.cli._context import Context, Contexts, changing_contexts, load_contexts, resolve_url, save_contexts
from danube.cli.app import app
from danube.model.errors import ConfigurationError, NotFoundError

runner = CliRunner()


@pytest.fixture(autouse=True)
def config_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("DANUBE_URL", raising=False)
    _context.set_defaults(None, None)
    return tmp_path


def danube(*arguments, code=0):
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result


def test_add_use_list_remove():
    danube("context", "add", "local", "danube://127.0.0.1:1", "--description", 'my "own"')
    danube("context", "add", "far", "danube://10.0.0.7")
    rows = json.loads(danube("context", "list", "-o", "json").stdout)
    assert [(row["name"], row["current"]) for row in rows] == [("far", False), ("local", True)]
    assert rows[1]["description"] == 'my "own"'
    danube("context", "use", "far")
    assert resolve_url(None, None) == "danube://10.0.0.7"
    danube("context", "remove", "far")
    assert resolve_url(None, None) == _context.DEFAULT_URL
    assert danube("context", "list", "-o", "raw").stdout == 'local\tno\tdanube://127.0.0.1:1\tmy "own"\n'


def test_wrong_names_are_one_line_with_a_remedy():
    danube("context", "add", "local", "danube://127.0.0.1:1")
    result = danube("context", "use", "locl", code=66)
    assert result.stderr == "error: there is no context 'locl'; did you mean 'local'?\n"
    assert "--replace" in danube("context", "add", "local", "danube://h", code=73).stderr
    danube("context", "add", "local", "danube://h", "--replace")
    assert load_contexts().contexts["local"].url == "danube://h"


def test_the_address_comes_from_the_nearest_source(monkeypatch):
    save_contexts(Contexts("here", {"here": Context("danube://here"), "there": Context("danube://there")}))
    assert resolve_url(None, None) == "danube://here"
    monkeypatch.setenv("DANUBE_URL", "danube://environment")
    assert resolve_url(None, None) == "danube://environment"
    _context.set_defaults(None, "there")
    assert resolve_url(None, None) == "danube://there"
    _context.set_defaults("danube://root", None)
    assert resolve_url(None, None) == "danube://root"
    assert resolve_url(None, "there") == "danube://there"
    assert resolve_url("danube://own", "there") == "danube://own"


def test_a_damaged_file_is_an_error_that_names_it(config_home):
    path = config_home / "danube" / "contexts.toml"
    path.parent.mkdir()
    for text in ("current = ", "currant = 'x'", "x = " + "[" * 5000):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=r"contexts\.toml"):
            load_contexts()
    path.write_text("current = 'gone'\n")
    with pytest.raises(NotFoundError, match="gone"):
        resolve_url(None, None)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(_TEXT, st.builds(Context, _TEXT, _TEXT), max_size=4), _TEXT)
def test_saved_contexts_are_loaded(contexts, current):
    stored = Contexts(current, contexts)
    save_contexts(stored)
    assert load_contexts() == stored


def test_no_broker_is_exit_code_69_without_a_traceback():
    result = danube("topics", "list", "--url", "danube://127.0.0.1:1", code=69)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "127.0.0.1:1" in result.stderr


def test_a_wrong_address_is_exit_code_65():
    assert "danube://" in danube("--url", "http://x", "info", code=65).stderr


def test_debug_raises():
    result = runner.invoke(app, ["--debug", "--url", "http://x", "info"])
    assert isinstance(result.exception, ConfigurationError)


def test_wrong_usage_is_exit_code_2():
    danube("topics", "lst", code=2)
    danube("topics", "create", code=2)


def test_version_and_help():
    assert danube("--version").stdout.startswith("danube ")
    assert json.loads(danube("version", "-o", "json").stdout)["python"].startswith("3.")
    shown = danube("--help").stdout
    assert "serve" in shown
    assert "Exit codes" in shown


def test_doctor(tmp_path):
    result = runner.invoke(app, ["doctor", "--data-dir", str(tmp_path / "data"), "-o", "json"])
    checks = json.loads(result.stdout)
    assert {"check", "ok", "detail", "remedy"} == set(checks[0])
    assert result.exit_code == (0 if all(check["ok"] for check in checks) else 1)
    broken = tmp_path / "file"
    broken.write_text("")
    danube("doctor", "--data-dir", str(broken), code=1)


def test_serve_refuses_a_wrong_setting(tmp_path):
    file = tmp_path / "danube.toml"
    file.write_text("durabilty = 'disk'\n")
    assert "did you mean 'durability'" in danube("serve", "--config", str(file), code=65).stderr
    assert "is not a size" in danube("serve", "--journal-limit", "lots", code=65).stderr


def test_contexts_that_are_added_at_the_same_time_are_all_there():
    began = threading.Barrier(12)

    def add(number):
        began.wait(10)
        with changing_contexts() as stored:
            before = len(stored.contexts)
            time.sleep(0.002)  # others would read what this one is about to replace
            stored.contexts[f"c{number}"] = Context("danube://h")
        assert before < 12

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(add, range(12)))
    assert sorted(load_contexts().contexts) == sorted(f"c{number}" for number in range(12))


def test_a_change_that_fails_leaves_the_contexts_as_they_are():
    danube("context", "add", "local", "danube://127.0.0.1:1")
    danube("context", "add", "local", "danube://h", code=73)
    danube("context", "remove", "nothing", code=66)
    assert list(load_contexts().contexts) == ["local"]


def test_a_context_is_text(config_home):
    for arguments in (
        ("a\udcff", "danube://h"),
        ("a", "danube://\udcff"),
        ("a", "danube://h", "--description", "\udcff"),
    ):
        assert "is not text" in danube("context", "add", *arguments, code=65).stderr
    assert not (config_home / "danube" / "contexts.toml").exists()
