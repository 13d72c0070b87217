"""Valid and invalid keys, and the parts of a URL that may be shown."""

from __future__ import annotations

import pytest

from danube.model.errors import ConfigurationError, InvalidArgumentError
from danube.storage import LEGAL_CHARACTERS, validate_key, validate_prefix
from danube.storage._url import parse_url


@pytest.mark.parametrize(
    "key", ["a", "a/b", "segments/7f3a/0000-12.seg", LEGAL_CHARACTERS, "a..b", "/".join(["x" * 100] * 5), "x" * 200]
)
def test_keys(key):
    assert validate_key(key) == key
    for length in range(len(key) + 1):
        assert validate_prefix(key[:length]) == key[:length]


@pytest.mark.parametrize(
    "key",
    ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", ".a", "a.", "a/.b", "a b", "a\n", "é", "a\\b", "a*", "a?", "a#b",
     "a%41", "~", "x" * 201, "/".join(["x" * 100] * 6)],
)  # fmt: skip
def test_invalid_storage_keys(key):
    with pytest.raises(InvalidArgumentError, match=r"storage key .* is not valid"):
        validate_key(key)


@pytest.mark.parametrize("prefix", ["/", "/a", "a//", "a b", "*", "x" * 513, "a\n"])
def test_invalid_storage_prefixes(prefix):
    with pytest.raises(InvalidArgumentError, match="storage prefix"):
        validate_prefix(prefix)


def test_a_url_in_parts():
    parts = parse_url("s3://bucket/some%20prefix?region=eu-west-1&secret_key=x%26y")
    assert parts.scheme == "s3"
    assert (parts.location, parts.path) == ("bucket", "/some prefix")
    assert parts.options == {"region": "eu-west-1", "secret_key": "x&y"}
    assert parse_url("gs://b").scheme == "gcs"
    assert {parse_url(f"{alias}://b").scheme for alias in ("az", "abfs", "azure")} == {"azure"}
    assert parse_url("fsspec+memory:///a").scheme == "fsspec+memory"


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("memory://", "memory://"),
        ("disk:///a%20b", "disk:///a%20b"),
        ("redis://me:geheim@host:6379/p", "redis://host:6379/p"),
        ("redis://me:ge@heim@host:6379", "redis://host:6379"),
        ("s3://b/p?region=eu&key=geheim&secret=geheim&session_token=geheim", "s3://b/p?region=eu"),
        ("az://c?connection_string=geheim&account_key=geheim&sas_token=geheim", "az://c"),
        ("s3://b?endpoint_url=http://me:geheim@host:1/x", "s3://b?endpoint_url=http://host:1/x"),
        ("remote://h?password=geheim", "remote://h"),
    ],
)
def test_secrets_are_not_shown(url, public):
    assert parse_url(url).public == public


@pytest.mark.parametrize("url", ["", "disk", "://geheim", "/geheim", "a b://geheim", "s3://geheim[", "s3://b?a=geheim&a=b",
                                 "s3://b#geheim"])  # fmt: skip
def test_wrong_urls_are_refused_without_showing_them(url):
    with pytest.raises(ConfigurationError, match="storage URL") as caught:
        parse_url(url)
    assert "geheim" not in str(caught.value)
