"""Pages of the records of access control: who sees what, and at which cost."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from danube.model import security_api
from danube.security import listing
from danube.security.book import SecurityBook
from danube.security.evaluate import Rights
from danube.security.limits import SecurityLimits
from danube.security.listing import ROWS_PER_TURN, Listing, Steps
from danube.security.permissions import Permission
from danube.security.records import BINDINGS, KEYS, ApiKeyRecord, BindingRecord, encode_record
from danube.security.roles import Binding, Grant, Principal, PrincipalType
from danube.security.scopes import Scope, parse_scope

T = TypeVar("T")
SCOPES = [
    parse_scope(text)
    for text in (
        "cluster",
        "namespace:shop",
        "namespace:bills",
        "topic:/sh*",
        "topic:/shop/or*",
        "topic:/shop/orders",
        "subscription:/shop/orders#b*",
        "subscription:/shop/orders#billing",
        "schema:/shop/orders-value",
        "schema:*",
    )
]


def user(name: str, *ceilings: tuple[Grant, ...]) -> Principal:
    return Principal(PrincipalType.USER, name, (), ceilings)


def book_of(bindings: dict[str, tuple[str, str, str]]) -> SecurityBook:
    book = SecurityBook("danube", SecurityLimits())
    for name, (subject, role, scope) in bindings.items():
        book.apply(BINDINGS + name, encode_record(BindingRecord(subject=subject, roles=(role,), scope=scope)))
    return book


def run(steps: Steps[T]) -> tuple[T, int]:
    """Return what a list returns, and in how many turns."""
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value, turns
        turns += 1


@pytest.mark.parametrize("seed", range(30))
def test_the_fast_answer_is_that_of_manages(seed: int) -> None:
    rest = random.Random(seed)
    rights = Rights()
    for number in range(3):
        role = rest.choice(["admin", "namespace-admin", "producer"])
        rights.set_binding(f"b{number}", Binding(f"b{number}", "user:ada", (role,), rest.choice(SCOPES)))
    if rest.random() < 0.1:
        rights.set_suspended("user:ada", True)

    def grant() -> Grant:
        permissions = rest.choice([Permission.MANAGE_SECURITY | Permission.PRODUCE, Permission.PRODUCE])
        return Grant(permissions, rest.choice(SCOPES))

    ada = user("ada", *((grant(), grant(), grant()) for _ in range(rest.choice([0, 0, 1, 2]))))
    fast = rights.manager(ada)
    assert [fast(scope) for scope in SCOPES] == [rights.manages(ada, scope) for scope in SCOPES]


def test_pages_have_what_the_caller_may_see_and_no_scope_is_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 50
    monkeypatch.setattr(security_api, "PAGE_ROWS", rows)
    many = rows + 30
    bindings = {f"b-{number}": ("service:api", "producer", f"topic:/shop/t{number}") for number in range(many)}
    bindings |= {f"o-{number}": ("service:other", "producer", f"topic:/bills/t{number}") for number in range(many)}
    bindings |= {"lead": ("user:lead", "namespace-admin", "namespace:shop"), "root": ("user:root", "admin", "cluster")}
    book = book_of(bindings)
    parsed: list[str] = []

    def parse(text: str) -> Scope:
        parsed.append(text)
        return parse_scope(text)

    monkeypatch.setattr(listing, "parse_scope", parse)

    def pages(by: str, subject: str = "", scope: str = "") -> list[str]:
        found: list[str] = []
        while True:
            page, _ = run(Listing(book, user(by)).bindings(subject, scope, found[-1] if found else ""))
            assert len(page.bindings) == rows if page.more else len(page.bindings) <= rows
            found += [row.id for row in page.bindings]
            if not page.more:
                return found

    shop = sorted(name for name in bindings if name.startswith("b-"))
    assert pages("root") == sorted(bindings)
    assert pages("lead") == [*shop, "lead"]
    assert pages("ada") == []
    assert pages("root", "service:api") == pages("lead", "service:api") == shop
    assert pages("lead", "service:other") == pages("root", "service:unknown") == []
    assert parsed == []
    assert pages("lead", "", "/shop/t7") == pages("lead", "service:api", "topic:/shop/t7") == ["b-7"]
    assert len(parsed) == 2
    assert Listing(book, user("lead")).binding("o-1") is None
    subjects, _ = run(Listing(book, user("lead")).principals())
    assert [row.subject for row in subjects.principals] == ["service:api", "user:lead"]


class Counted(dict[str, Any]):
    """Records that count how many of them are looked at."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)


def test_lists_give_way_to_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    many = 5 * ROWS_PER_TURN
    bindings = {f"b-{number}": (f"service:s{number}", "producer", "topic:/shop/t") for number in range(many)}
    book = book_of(bindings | {"root": ("user:root", "admin", "cluster")})
    book.apply(f"{KEYS}{'k' * 12}", encode_record(ApiKeyRecord(subject="service:s1", hash=b"h" * 32)))
    records, rights = Counted(book.records), Counted(book.rights.bindings)
    monkeypatch.setattr(book, "records", records)
    monkeypatch.setattr(book.rights, "_bindings", rights)

    def looks_by_turn(steps: Steps[Any]) -> list[int]:
        seen = [0, *(max(records.looks, rights.looks) for _ in steps)]
        return [after - before for before, after in pairwise(seen)]

    shown = Listing(book, user("root"))
    for steps in (shown.principals, shown.keys, shown.issuers, shown.revoked, shown.bindings):
        records.looks = rights.looks = 0
        looks = looks_by_turn(steps())
        assert max(looks) <= ROWS_PER_TURN
        assert len(looks) > 5


def test_records_may_change_while_they_are_listed() -> None:
    many = 2 * ROWS_PER_TURN
    book = book_of({f"b-{number:05}": (f"service:s{number:05}", "producer", "topic:/shop/t") for number in range(many)})
    admin = BindingRecord(subject="user:root", roles=("admin",), scope="cluster")
    book.apply(f"{BINDINGS}root", encode_record(admin))
    listed, subjects = Listing(book, user("root")).bindings(), Listing(book, user("root")).principals()
    next(listed)
    next(subjects)
    book.apply(f"{BINDINGS}b-{many - 1:05}", None)
    book.apply(f"{BINDINGS}c", encode_record(admin))
    assert len(run(listed)[0].bindings) == len(run(subjects)[0].principals) == many  # without one, and with root
