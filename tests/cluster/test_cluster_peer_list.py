"""``--peers``: what a list means, which entry a broker is, and what is refused."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from danube.cluster.peer_list import MOST_PEERS, find_self, parse_peers
from danube.model.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:6650,b,c:6651", ["a:6650", "b:6650", "c:6651"]),
        (" a , b ", ["a:6650", "b:6650"]),
        ("127.0.0.1:6650-6652", ["127.0.0.1:6650", "127.0.0.1:6651", "127.0.0.1:6652"]),
        ("a:6650-6650", ["a:6650"]),
        ("a:65534-65535,b:1-1", ["a:65534", "a:65535", "b:1"]),
        ("[fd00::7],[fd00::8]:7000-7001", ["[fd00::7]:6650", "[fd00::8]:7000", "[fd00::8]:7001"]),
        ("my-host,other-host:1", ["my-host:6650", "other-host:1"]),
        ("alone", ["alone:6650"]),
    ],
)
def test_a_list_gives_addresses_with_ports_in_order(text: str, addresses: list[str]) -> None:
    assert list(parse_peers(text)) == addresses


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "'' is not an address"),
        ("a,,b", "'' is not an address"),
        ("a:", "'a:' is not an address"),
        ("a:70000", "'a:70000' is not an address"),
        ("a:6652-6650", "'a:6652-6650' is not a range of ports"),
        ("a:0-5", "'a:0-5' is not a range of ports"),
        ("a:1-65535", "lists 65535 brokers"),
        ("a:x-5", "'a:x-5' is not an address"),
        ("a:5-x", "'a:5-x' is not an address"),
        ("a:1-000002", "'a:1-000002' is not an address"),
        ("a:٣-٤", "'a:٣-٤' is not an address"),
        ("a:65535-65536", "'a:65535-65536' is not a range of ports"),
        ("a,b,a:6650", "lists a:6650 twice"),
        ("a:6650-6652,a:6651", "lists a:6651 twice"),
        (f"a:1-{MOST_PEERS},b", f"lists {MOST_PEERS + 1} brokers"),
    ],
)
def test_an_invalid_list_is_refused_with_the_entry(text: str, part: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_peers(text)
    assert part in str(caught.value)
    assert "--peers" in str(caught.value)


def test_the_largest_list_is_accepted() -> None:
    assert len(parse_peers(f"a:1-{MOST_PEERS}")) == MOST_PEERS


PEERS = ("a:6650", "b:6650", "c:6651")


@pytest.mark.parametrize(
    ("listen", "own"),
    [
        (["a:6650"], "a:6650"),
        (["127.0.0.1:9", "c:6651"], "c:6651"),
        (["10.0.0.2:6650"], "b:6650"),
        (["127.0.0.1:9", "10.0.0.2:6650"], "b:6650"),
        (["10.0.0.9:6650", "10.0.0.2:6650"], "b:6650"),
        (["0.0.0.0:6650"], "b:6650"),
        (["[::]:6650"], "b:6650"),
    ],
)
def test_a_broker_finds_its_entry_by_its_addresses(listen: list[str], own: str) -> None:
    assert find_self(PEERS, listen, None, lambda host: {"10.0.0.2"} if host == "b" else ()) == own


def test_an_entry_with_another_port_is_another_broker() -> None:
    peers = parse_peers("127.0.0.1:6650-6652")
    assert find_self(peers, ["127.0.0.1:6651"], None, lambda _: {"127.0.0.1"}) == "127.0.0.1:6651"


def test_the_advertised_address_is_the_entry_without_a_look_at_this_machine() -> None:
    def never(host: str) -> Collection[str]:
        raise AssertionError(host)

    assert find_self(PEERS, ["0.0.0.0:1"], "b", never) == "b:6650"


@pytest.mark.parametrize(
    ("listen", "advertise", "part"),
    [
        (["d:6650"], None, "none of a:6650, b:6650, c:6651 is an address of this broker, which listens on d:6650"),
        (["10.0.0.2:6651"], None, "none of"),
        (["a:6650", "c:6651"], None, "a:6650 and c:6651 are both addresses of this broker"),
        (["a:6650"], "d:6650", "--advertise d:6650 is not in --peers (a:6650, b:6650, c:6651)"),
    ],
)
def test_no_or_two_entries_are_refused_with_what_to_do(listen: list[str], advertise: str | None, part: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_self(PEERS, listen, advertise, lambda host: {"10.0.0.2"} if host == "b" else ())
    assert part in str(caught.value)
    assert "--advertise" in str(caught.value)
