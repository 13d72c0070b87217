"""``danube plugins`` lists installed plugins, known packages, and options."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import msgspec
import pytest
from typer.testing import CliRunner

from danube import __version__
from danube.cli.app import app
from danube.metadata import _plugins as metadata_plugins
from danube.storage import StoragePlugin
from danube.storage import _plugins as storage_plugins


def danube(*arguments, code=0):
    result = CliRunner().invoke(app, ["plugins", *arguments])
    assert result.exit_code == code, result.output
    return result


class CommonConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    timeout_s: float = 3.0
    """Seconds for
    one call."""


class ToyConfig(CommonConfig, kw_only=True, forbid_unknown_fields=True):
    bucket: str
    """Where."""
    secret_key: str | None = None
    """Do not tell."""
    tags: list[str] = []
    undocumented: int = 5


@pytest.fixture(autouse=True)
def only_a_toy(monkeypatch):
    """Whatever is installed on this machine: the built-in plugins, a toy and a broken one."""

    class Plugin(StoragePlugin):
        name, summary, config = "toy", "a toy", ToyConfig

        def open(self, config, surroundings):
            raise NotImplementedError

    module = ModuleType("toy_backend")
    module.Plugin = Plugin
    monkeypatch.setitem(sys.modules, "toy_backend", module)
    entries = [EntryPoint("toy", "toy_backend:Plugin", "danube.storage"),
               EntryPoint("broken", "not_there:Plugin", "danube.storage")]  # fmt: skip
    monkeypatch.setattr(storage_plugins, "entry_points", lambda group: entries)
    monkeypatch.setattr(metadata_plugins, "entry_points", lambda group: [])


def test_the_list():
    rows = {(row["kind"], row["scheme"]): row for row in json.loads(danube("-o", "json").stdout)}
    assert rows["storage", "disk"] == {
        "kind": "storage",
        "scheme": "disk",
        "installed": True,
        "built_in": True,
        "package": "danube-broker",
        "version": __version__,
        "summary": "files in a directory of this machine",
        "install": None,
    }
    assert rows["metadata", "embedded"]["installed"]
    assert rows["storage", "toy"]["summary"] == "a toy"
    assert not rows["storage", "toy"]["built_in"]
    assert "cannot be loaded: No module named 'not_there'" in rows["storage", "broken"]["summary"]
    assert rows["storage", "s3"]["installed"] is False
    assert rows["storage", "s3"]["install"] == "pip install danube-storage-s3"
    assert rows["storage", "s3+obstore"]["install"] == "pip install 'danube-storage-s3[obstore]'"
    assert rows["metadata", "etcd"]["install"] == "pip install danube-metadata-etcd"
    assert {scheme for kind, scheme in rows if kind == "metadata"} == {
        "memory",
        "embedded",
        "etcd",
        "raftos",
        "zookeeper",
    }
    assert {scheme for kind, scheme in rows if kind == "storage"} == {
        "memory", "disk", "fsspec", "toy", "broken", "s3", "s3+obstore", "gcs", "azure", "redis", "rediss", "remote",
    }  # fmt: skip


def test_the_table_has_the_pip_line():
    lines = danube().stdout.splitlines()
    assert lines[0].split() == ["kind", "scheme", "package", "version", "summary"]
    (line,) = [line for line in lines if line.startswith("storage") and " gcs " in line]
    assert line.endswith("not installed: pip install danube-storage-gcs")


def test_options_with_defaults_and_descriptions():
    rows = json.loads(danube("--options", "toy", "-o", "json").stdout)
    assert [list(row.values())[1:] for row in rows] == [
        ["timeout_s", "float", 3.0, False, "Seconds for one call."],
        ["bucket", "str", "(required)", False, "Where."],
        ["secret_key", "str | None", None, True, "Do not tell."],
        ["tags", "list[str]", "[]", False, ""],
        ["undocumented", "int", 5, False, ""],
    ]
    rows = json.loads(danube("--options", "memory", "-o", "json").stdout)
    assert {(row["kind"], row["option"]) for row in rows} == {
        ("storage", "durable"),
        ("storage", "latency_ms"),
        ("storage", "max_object_bytes"),
        ("storage", "shared"),
    }
    assert all(row["description"] for row in rows)
    assert "filesystem_options" in danube("--options", "fsspec+sftp").stdout


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("s3", "error: there is no storage backend for 's3'.*pip install danube-storage-s3"),
        ("gs", "pip install danube-storage-gcs"),
        ("etcd", "error: the metadata engine 'etcd' is not installed; to add it: pip install danube-metadata-etcd"),
        ("broken", "error: the storage plugin 'broken' .* cannot be loaded"),
    ],
)
def test_options_of_what_is_not_there(scheme, message):
    assert re.search(message, danube("--options", scheme, code=65).stderr)
