"""Configuration: defaults, a TOML file, options on top, and errors that name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from danube.broker import BrokerConfig, load_config, parse_size
from danube.model import Retention
from danube.model.addresses import parse_address
from danube.model.errors import ConfigurationError
from danube.model.limits import GIB, MIB


def test_nothing_configured_gives_the_defaults() -> None:
    config = load_config()
    assert config == BrokerConfig()
    assert (config.listen, config.data_directory, config.durability) == (("127.0.0.1:6650",), "./danube-data", "disk")
    assert config.auto_create_topics
    assert config.journal_file_bytes == 64 * MIB
    assert config.limits.journal_max_bytes == 4 * GIB


def test_a_file_sets_and_options_win(tmp_path: Path) -> None:
    path = tmp_path / "danube.toml"
    path.write_text(
        """
        listen = ["127.0.0.1:7000", "[::1]:7000"]
        durability = "os"
        auto_create_topics = false
        journal_file_size = "32MiB"
        [limits]
        cache_bytes = 1000
        max_topics = 15
        [subscription_policy]
        ack_timeout_s = 1.5
        poison = "drop"
        [policies]
        retention = { max_age_s = 10 }
        """
    )
    config = load_config(str(path), {"durability": "none", "log_level": None, "limits": {"cache_bytes": 2000}})
    assert config.listen == ("127.0.0.1:7000", "[::1]:7000")
    assert config.durability == "none"
    assert not config.auto_create_topics
    assert config.journal_file_bytes == 32 * MIB
    assert (config.limits.cache_bytes, config.limits.max_topics) == (2000, 15)
    assert (config.subscription_policy.ack_timeout_s, config.subscription_policy.poison) == (1.5, "drop")
    assert config.policies.retention == Retention(max_age_s=10)
    assert config.log_level == "info"


@pytest.mark.parametrize(
    ("text", "url", "options"),
    [
        ("", "embedded://", {}),
        ("metadata = 'memory'", "memory://", {}),
        ("metadata = 'embedded:///a/b'", "embedded:///a/b", {}),
        ("[metadata]\nurl = 'memory'", "memory://", {}),
        (
            "[metadata]\nurl = 'etcd://h:1,i:2/p'\noptions = { username = 'u', tls = true }",
            "etcd://h:1,i:2/p",
            {"username": "u", "tls": True},
        ),
    ],
)
def test_the_metadata_engine_is_a_name_a_url_or_a_table(
    tmp_path: Path, text: str, url: str, options: dict[str, Any]
) -> None:
    (tmp_path / "danube.toml").write_text(text)
    engine = load_config(str(tmp_path / "danube.toml")).metadata_engine
    assert (engine.url, engine.options) == (url, options)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data_dir = 'x'", "unknown setting 'data_dir'; did you mean 'data_directory'?"),
        ("[limits]\njournal_max = 1", "[limits]: unknown setting 'journal_max'; did you mean 'journal_max_bytes'?"),
        ("zzz = 1", "unknown setting 'zzz'; known are listen,"),
        ("durability = 'paper'", "durability"),
        ("auto_create_topics = 'yes'", "auto_create_topics"),
        ("listen = []", "at least one address"),
        ("listen = ['127.0.0.1:99999']", "127.0.0.1:99999"),
        ("admin_listen = ['127.0.0.1:99998']", "'127.0.0.1:99998' is not host:port, for example 127.0.0.1:50051"),
        ("listen = '127.0.0.1:1'", "listen"),
        ("journal_file_size = '1MiB'", "journal_file_size = 1048576 must exceed limits.max_batch_bytes"),
        ("journal_file_size = 'big'", "'big' is not a size"),
        ("limits = 3", "[limits] must be a table"),
        ("metadata = 3", "metadata"),
        ("[metadata]\noption = {}", "[metadata]: unknown setting 'option'; did you mean 'options'?"),
        ("[metadata]\noptions = {}", "url"),
        ("[limits]\nmax_lease_s = 0", "limits.max_lease_s = 0.0 must be greater than 0"),
        ("[limits]\nmax_lease_s = nan", "limits.max_lease_s = nan must be greater than 0 and finite"),
        ("[limits]\nmax_lease_s = inf", "limits.max_lease_s = inf must be greater than 0 and finite"),
        ("[limits]\nmax_lease_s = 1e300", "limits.max_lease_s = 1e+300 must be at most 1000000000"),
        (f"[limits]\nmax_topics = {2**70}", "max_topics"),
        (f"[limits]\nmax_topics = {2**60}", f"limits.max_topics = {2**60} must be at most {2**53}"),
        ("[limits]\nmax_header_bytes = 4294967296", "limits.max_header_bytes = 4294967296 must be at most 2147483647"),
        ("[limits]\njournal_warn_ratio = 1.5", "limits.journal_warn_ratio = 1.5 must be at most 1"),
        ("drain_timeout_s = nan", "drain_timeout_s = nan must be from 0"),
        ("cluster = '..'", "cluster name '..' is not valid"),
        ("[limits]\nmax_topics = 'many'", "max_topics"),
        ("[limits]\nmax_message_bytes = 12582912", "max_batch_bytes must be larger"),
        ("[limits]\njournal_max_bytes = 1000", "at least two journal files"),
        ("log_level = 'loud'", "log_level 'loud'"),
        ("sync_delay_ms = -1.0", "sync_delay_ms"),
        ("drain_timeout_s = -1.0", "drain_timeout_s"),
        ("this is not toml", "not valid TOML"),
        ("x = " + "[" * 5000, "not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "danube.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_config(str(path))
    assert said in caught.value.message
    assert "danube.toml: " in caught.value.message or "danube.toml' " in caught.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        load_config(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"binary\.toml"):
        load_config(str(tmp_path / "binary.toml"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5", 5), (5, 5), ("64MiB", 64 * MIB), ("64M", 64 * MIB), ("1.5 gb", 3 * GIB // 2), ("2k", 2048), (" 1 B ", 1)],
)
def test_sizes(text: int | str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("localhost", ("localhost", 6650)),
        ("[::1]:80", ("::1", 80)),
        ("[::1]", ("::1", 6650)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
    ],
)
def test_addresses(text: str, expected: Any) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", [":1", "host:port", "host:-1", "host:65536", ""])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(ConfigurationError, match="host:port"):
        parse_address(text)
