"""Who may use a storage server: tokens, certificates, both, and the names that count."""

from __future__ import annotations

import pytest

from danube.model.errors import ConfigurationError, PeerBlockedError, StorageDeniedError
from danube.model.tls import ClientAuth, PeerCertificate
from danube.storage_server import Admission
from danube.storage_server._admission import check_client_name

NOW_S = 1_800_000_000.0


def certificate(*names: tuple[str, str], expires_at_s: float = NOW_S + 1) -> PeerCertificate:
    return PeerCertificate(b"der", names, expires_at_s, False)


BROKER = certificate(("DNS", "b1.example.org"), ("URI", "danube://shop/broker/b1"))
OTHER = certificate(("URI", "danube://other/broker/b1"))
RIGHT, WRONG, NONE = "Bearer s3cret", "Bearer s3cre", ""
LISTED = ["danube://shop/broker/*"]


def admits(admission: Admission, authorization: str, found: PeerCertificate | None) -> bool:
    try:
        admission.check(authorization, found, NOW_S)
    except StorageDeniedError:
        return False
    return True


@pytest.mark.parametrize(
    ("token", "client_auth", "accepted"),
    [
        (None, "none", {(sent, each) for sent in (RIGHT, WRONG, NONE) for each in (BROKER, OTHER, None)}),
        ("s3cret", "none", {(RIGHT, each) for each in (BROKER, OTHER, None)}),
        ("s3cret", "optional", {(RIGHT, BROKER), (RIGHT, OTHER), (RIGHT, None), (NONE, BROKER)}),
        (None, "required", {(RIGHT, BROKER), (WRONG, BROKER), (NONE, BROKER)}),
        ("s3cret", "required", {(RIGHT, BROKER)}),
    ],
)
def test_what_a_caller_needs(
    token: str | None, client_auth: ClientAuth, accepted: set[tuple[str, PeerCertificate | None]]
) -> None:
    admission = Admission(token, client_auth, LISTED if client_auth != "none" else [])
    for sent in (RIGHT, WRONG, NONE):
        for found in (BROKER, OTHER, None):
            assert admits(admission, sent, found) is ((sent, found) in accepted), (sent, found)
    assert admission.requires_proof is (token is not None or client_auth == "required")


def test_without_a_list_each_certificate_of_the_authority_counts() -> None:
    admission = Admission(None, "required")
    assert admits(admission, NONE, BROKER)
    assert admits(admission, NONE, OTHER)
    assert admits(admission, NONE, certificate())
    assert not admits(admission, NONE, None)


@pytest.mark.parametrize(
    ("listed", "names", "is_accepted"),
    [
        ("danube://shop/broker/b1", [("URI", "danube://shop/broker/b1")], True),
        ("danube://shop/broker/b1", [("URI", "danube://shop/broker/b11")], False),
        ("danube://shop/broker/*", [("URI", "danube://shop/broker/b11")], True),
        ("danube://shop/broker/*", [("URI", "danube://shop/broker/")], False),
        ("danube://shop/broker/*", [("URI", "danube://shop/broker/x/../../service/y")], False),
        ("danube://shop/broker/*", [("URI", "danube://shop/service/b1")], False),
        ("danube://shop/broker/*", [("URI", "danube://shop2/broker/b1")], False),
        ("danube://shop/broker/*", [("DNS", "danube://shop/broker/b1")], True),
        ("spiffe://example.org/ns/*", [("URI", "spiffe://example.org/ns/a"), ("URI", "x://y/z")], True),
        ("Spark.Example.org", [("DNS", "spark.example.ORG")], True),
        ("spark.example.org", [("DNS", "x.spark.example.org"), ("IP Address", "spark.example.org")], False),
        ("spark.example.org", [("email", "spark.example.org")], False),
    ],
)
def test_names(listed: str, names: list[tuple[str, str]], is_accepted: bool) -> None:
    assert admits(Admission(None, "required", ["x.example.org", listed]), NONE, certificate(*names)) is is_accepted


@pytest.mark.parametrize(
    "name", ["", "*", "*.example.org", "danube://*", "danube://shop/*/b1", "danube://shop/b*", "a b", "://x", "-a"]
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no name of clients"):
        check_client_name(name)


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(ConfigurationError, match="which are not asked for"):
        Admission("s3cret", "none", LISTED)
    with pytest.raises(ConfigurationError, match="callers without one need a token"):
        Admission(None, "optional", LISTED)


def test_a_refusal_names_what_was_shown() -> None:
    admission = Admission(None, "required", LISTED)
    many = certificate(*(("DNS", f"h{number}") for number in range(9)))
    for found, named in ((OTHER, "danube://other/broker/b1; add"), (many, "h0, h1, h2, h3, h4 and 4 more")):
        with pytest.raises(StorageDeniedError, match=named):
            admission.check(NONE, found, NOW_S)
    with pytest.raises(StorageDeniedError, match="certificates for no name"):
        admission.check(NONE, certificate(("IP Address", "10.0.0.1")), NOW_S)


def test_a_certificate_that_has_ended_closes_its_connection() -> None:
    admission = Admission(None, "required", LISTED)
    ended = certificate(*BROKER.names, expires_at_s=NOW_S)
    with pytest.raises(PeerBlockedError, match="has ended; connect with a renewed one"):
        admission.check(NONE, ended, NOW_S)
