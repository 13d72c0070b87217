"""The rules of sessions of browsers: how long they last, whose they are, and which cookie is theirs."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.model.errors import LimitExceededError
from danube.web.session_table import (
    RANDOM_BYTES,
    Begun,
    SessionLimits,
    SessionTable,
    cookie_name,
    cookie_of,
    set_cookie,
)

LIMITS = SessionLimits(
    http_max_sessions=4, http_max_sessions_per_caller=2, http_session_idle_s=100.0, http_session_life_s=1000.0
)
ID = "x" * 43


def begin(table: SessionTable, subject: str, now_s: float, left_s: float = 1e9) -> Begun:
    return table.begin(subject, f"Bearer of {subject}", random.randbytes(RANDOM_BYTES), now_s, left_s)


def test_a_session_ends_when_it_is_not_used_or_old_or_its_credential_ends() -> None:
    table = SessionTable(LIMITS)
    idle, used, short = begin(table, "a", 0), begin(table, "b", 0), begin(table, "c", 0, left_s=150)
    for now_s in range(50, 1000, 50):
        assert table.use(used.id, now_s) is used.session
        assert (table.use(short.id, now_s) is short.session) == (now_s < 150)
    assert table.use(used.id, 1000) is None, "however much it is used"
    assert table.use(idle.id, 1000) is None
    assert len(table) == 3
    assert table.holds(idle.session)
    assert set(table.sweep(1000)) == {idle.session, used.session, short.session}
    assert not table.holds(idle.session)
    assert len(table) == 0


def test_use_extends_the_time_of_a_session_and_silence_does_not() -> None:
    table = SessionTable(LIMITS)
    one = begin(table, "a", 0)
    assert table.use(one.id, 99) is one.session
    assert table.use(one.id, 198) is one.session
    assert table.use(one.id, 298) is None


def test_a_caller_has_few_sessions_and_keeps_those_it_uses() -> None:
    table = SessionTable(LIMITS)
    first, second = begin(table, "a", 0), begin(table, "a", 1)
    table.use(first.id, 2)
    third = begin(table, "a", 3)
    assert third.ended == [second.session]
    assert table.use(first.id, 4) is first.session
    assert table.use(second.id, 4) is None


def test_sessions_that_have_ended_make_room_and_others_are_refused() -> None:
    table = SessionTable(LIMITS)
    for subject in "abcd":
        begin(table, subject, 0)
    with pytest.raises(LimitExceededError, match="http_max_sessions is 4"):
        begin(table, "e", 50)
    assert len(table) == 4
    assert begin(table, "e", 100).ended, "all others have ended"
    assert len(table) == 1


def test_an_id_is_not_kept_and_the_credential_is_not_shown() -> None:
    table = SessionTable(LIMITS)
    begun = begin(table, "a", 0)
    kept = repr([vars(table), {name: getattr(begun.session, name) for name in begun.session.__slots__}])
    assert begun.id not in kept
    assert "Bearer" not in kept
    assert begun.session.authorization.reveal() == "Bearer of a"
    assert len(begun.id) == len(begun.session.csrf) == 43
    assert begun.id != begun.session.csrf


def test_only_the_csrf_token_itself_is_accepted() -> None:
    session = begin(SessionTable(LIMITS), "a", 0).session
    assert session.accepts(session.csrf)
    for wrong in (None, "", "x", session.csrf[:-1], session.csrf + "=", session.csrf.swapcase(), "\u00e9"):
        assert not session.accepts(wrong)


@pytest.mark.parametrize(
    ("host", "secure", "name"),
    [
        ("localhost:8650", False, "danube-session-8650"),
        ("127.0.0.1", False, "danube-session"),
        ("[::1]", False, "danube-session"),
        ("[::1]:8650", True, "__Host-danube-session-8650"),
        ("broker.example.org", True, "__Host-danube-session"),
        ("x:1; Domain=example.org", True, "__Host-danube-session"),
        ("x:123456", True, "__Host-danube-session"),
        ("x:\u0661", True, "__Host-danube-session"),
    ],
)
def test_the_cookie_is_named_by_port_and_tls(host: str, secure: bool, name: str) -> None:
    assert cookie_name(host, secure=secure) == name
    _, header = set_cookie(host, ID, secure=secure)
    assert header == f"{name}={ID}; Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")
    assert set_cookie(host, None, secure=secure)[1].startswith(f"{name}=; Max-Age=0;")


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"cookie": f"danube-session={ID}"}, True),
        ({"cookie": f"a=b;danube-session={ID} ; c"}, True),
        ({"cookie": f"a=b, danube-session={ID}"}, True),
        ({"cookie": f"danube-session={ID}", "sec-fetch-site": "same-origin"}, True),
        ({"cookie": f"danube-session={ID}", "sec-fetch-site": "none"}, True),
        ({"cookie": f"danube-session={ID}", "sec-fetch-site": "same-site"}, False),
        ({"cookie": f"danube-session={ID}", "sec-fetch-site": "cross-site"}, False),
        ({"cookie": f"danube-session={ID}; danube-session={ID}"}, False),
        ({"cookie": f"Danube-Session={ID}"}, False),
        ({"cookie": f"danube-session={ID}x"}, False),
        ({"cookie": f"danube-session-1={ID}"}, False),
        ({"cookie": "a=b;" * 60 + f"danube-session={ID}"}, False),
        ({"cookie": ""}, False),
        ({}, False),
    ],
)
def test_which_cookie_counts(headers: dict[str, str], found: bool) -> None:
    assert (cookie_of({"host": "localhost", **headers}, secure=False) == ID) is found
    assert cookie_of({"host": "localhost", **headers}, secure=True) is None


@given(st.dictionaries(st.sampled_from(["cookie", "host", "sec-fetch-site", "x"]), st.text()))
def test_no_header_breaks_it(headers: dict[str, Any]) -> None:
    assert cookie_of(headers, secure=False) is None
