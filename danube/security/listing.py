"""What callers may see of the records of access control, as rows of the API. Pure.

A caller sees a binding, an API key or a key that signs tokens if it has ManageSecurity within its scope (within all
scopes of its ceiling; on the cluster, if it has none). Roles are seen by everybody who manages anything.

A list visits up to 100,000 records, so it is a generator, which yields after each :data:`ROWS_PER_TURN` of them and
returns the page: other work runs in between. Records that change meanwhile are in the page as they are when visited.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from heapq import nsmallest
from typing import Final, TypeAlias, TypeVar

from danube.model import security_api as api
from danube.model.errors import InvalidArgumentError
from danube.security.book import SecurityBook
from danube.security.evaluate import Effective
from danube.security.permissions import Permission, parse_permissions
from danube.security.records import (
    BINDINGS,
    ISSUERS,
    KEYS,
    PRINCIPALS,
    REVOKED,
    ROLES,
    ApiKeyRecord,
    BindingRecord,
    GrantRecord,
    IssuerRecord,
    PrincipalRecord,
    RevocationRecord,
    RoleRecord,
    subject_of_key,
)
from danube.security.roles import Binding, Grant, Principal, PrincipalType, parse_subject
from danube.security.scopes import CLUSTER, Resource, parse_scope, scope_of

__all__ = [
    "ROWS_PER_TURN",
    "Listing",
    "Steps",
    "ceiling_of",
    "explain",
    "parse_resource",
    "principal_of",
    "who_i_am",
]

_ON_CLUSTER: Final = scope_of(CLUSTER)

ROWS_PER_TURN: Final = 500
"""Records that a list visits before other work may run: a few milliseconds."""

R = TypeVar("R")
Steps: TypeAlias = Generator[None, None, R]


class Listing:
    """The records that one caller may see.

    Args:
        book: the records.
        by: the caller.
    """

    def __init__(self, book: SecurityBook, by: Principal) -> None:
        self._book = book
        self._manages = book.rights.manager(by)
        self._manages_all = self._manages(_ON_CLUSTER)

    def _sees_ceiling(self, ceiling: Sequence[GrantRecord] | None) -> bool:
        return self._manages_all or (ceiling is not None and all(self._manages(each.grant.scope) for each in ceiling))

    def _sees_binding(self, name: str, binding: Binding) -> bool:
        # With security off there is a binding that is no record.
        return (self._manages_all or self._manages(binding.scope)) and BINDINGS + name in self._book.records

    def roles(self) -> list[api.RoleRow]:
        """Return all roles, the built-in ones first."""
        found = []
        for role in self._book.rights.roles.values():
            record = self._book.records.get(ROLES + role.name)
            made = (record.created_us, record.created_by) if isinstance(record, RoleRecord) else (0, "")
            found.append(
                api.RoleRow(role.name, list(role.permissions.titles), role.description, role.is_built_in, *made)
            )
        return sorted(found, key=lambda row: (not row.built_in, row.name if not row.built_in else ""))

    def bindings(self, subject: str = "", scope: str = "", after: str = "") -> Steps[api.BindingList]:
        """Return a page of the bindings of a subject, with a scope."""
        where = parse_scope(scope) if scope else None
        rights = self._book.rights

        def row_of(name: str) -> Binding | None:
            binding = rights.bindings.get(name)
            if binding is None or binding.subject != (subject or binding.subject):
                return None
            matches = where is None or binding.scope == where
            return binding if matches and self._sees_binding(name, binding) else None

        found, more = yield from _page(rights.bindings_of(subject) if subject else rights.bindings, row_of, after)
        rows = [row for name, _ in found if (row := self.binding(name)) is not None]
        return api.BindingList(rows, more)

    def binding(self, binding_id: str) -> api.BindingRow | None:
        """Return a binding; None if there is none, or the caller may not see it."""
        record, binding = self._book.records.get(BINDINGS + binding_id), self._book.rights.bindings.get(binding_id)
        if not isinstance(record, BindingRecord) or binding is None or not self._sees_binding(binding_id, binding):
            return None
        return _binding(binding_id, record)

    def principals(self, after: str = "") -> Steps[api.PrincipalList]:
        """Return a page of the subjects with a binding, an API key or a suspension."""
        rights = self._book.rights
        bound: Counter[str] = Counter()
        for names in _turns(rights.bindings):
            found = ((name, each) for name in names if (each := rights.bindings.get(name)) is not None)
            bound.update(each.subject for name, each in found if self._sees_binding(name, each))
            yield
        keyed: Counter[str] = Counter()
        noted: dict[str, PrincipalRecord] = {}
        for keys in _turns(self._book.records):
            for key in keys:
                record = self._book.records.get(key)
                if isinstance(record, ApiKeyRecord) and key.startswith(KEYS) and self._sees_key(record):
                    keyed[record.subject] += 1
                elif isinstance(record, PrincipalRecord) and key.startswith(PRINCIPALS) and self._manages_all:
                    noted[subject_of_key(key)] = record
            yield
        suspended = rights.suspended
        subjects = {*bound, *keyed, *noted, *(suspended if self._manages_all else ())}
        rows, more = yield from _page(subjects, lambda subject: subject, after)
        return api.PrincipalList(
            [
                api.PrincipalRow(
                    subject,
                    subject in suspended,
                    noted[subject].description if subject in noted else "",
                    bound[subject],
                    keyed[subject],
                )
                for subject, _ in rows
            ],
            more,
        )

    def keys(self, subject: str = "", after: str = "") -> Steps[api.KeyList]:
        """Return a page of the API keys of a subject."""
        rows, more = yield from self._page_of(
            KEYS, ApiKeyRecord, after, lambda each: (not subject or each.subject == subject) and self._sees_key(each)
        )
        return api.KeyList([self.key_row(name, each) for name, each in rows], more)

    def _sees_key(self, record: ApiKeyRecord) -> bool:
        return self._sees_ceiling(record.ceiling)

    @staticmethod
    def key_row(key_id: str, record: ApiKeyRecord) -> api.KeyRow:
        """Return the row of an API key."""
        return api.KeyRow(
            key_id,
            record.subject,
            _shown(record.ceiling),
            record.expires_us,
            record.description,
            record.created_us,
            record.created_by,
        )

    def issuers(self) -> Steps[api.IssuerList]:
        """Return the keys that sign tokens, those of the cluster and of teams."""
        found = []
        for keys in _turns(self._book.records):
            for key in keys:
                record = self._book.records.get(key)
                if key.startswith(ISSUERS) and isinstance(record, IssuerRecord) and self._sees_ceiling(record.ceiling):
                    found.append(_issuer(key.removeprefix(ISSUERS), record))
            yield
        return api.IssuerList(sorted(found, key=lambda row: (row.name, row.kid)))

    def revoked(self, after: str = "") -> Steps[api.RevokedList]:
        """Return a page of the revoked tokens."""
        rows, more = yield from self._page_of(REVOKED, RevocationRecord, after)
        return api.RevokedList(
            [
                api.RevokedRow(name, each.expires_us, each.reason, each.created_us, each.created_by)
                for name, each in rows
            ],
            more,
        )

    def _page_of(
        self, prefix: str, kind: type[R], after: str, matches: Callable[[R], bool] = lambda record: True
    ) -> Steps[tuple[list[tuple[str, R]], bool]]:
        """Return a page of the records below a prefix, by the rests of their keys."""

        def row_of(key: str) -> R | None:
            record = self._book.records.get(key)
            found = key.startswith(prefix) and isinstance(record, kind) and matches(record)
            return record if found and isinstance(record, kind) else None

        rows, more = yield from _page(self._book.records, row_of, prefix + after)
        return [(key.removeprefix(prefix), row) for key, row in rows], more


def _turns(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield names in groups of :data:`ROWS_PER_TURN`; they may change meanwhile, so that some are gone."""
    every = list(names)
    for begin in range(0, len(every), ROWS_PER_TURN):
        yield every[begin : begin + ROWS_PER_TURN]


def _page(
    names: Iterable[str], row_of: Callable[[str], R | None], after: str
) -> Steps[tuple[list[tuple[str, R]], bool]]:
    """Return the first rows after a name, in the order of the names, and whether there are more."""
    found: list[tuple[str, R]] = []
    for group in _turns(names):
        rows = ((name, row) for name in group if name > after and (row := row_of(name)) is not None)
        found = nsmallest(api.PAGE_ROWS + 1, [*found, *rows], key=lambda each: each[0])
        yield
    return found[: api.PAGE_ROWS], len(found) > api.PAGE_ROWS


def _issuer(kid: str, record: IssuerRecord) -> api.IssuerRow:
    return api.IssuerRow(
        kid,
        record.name,
        _shown(record.ceiling),
        record.longest_life_s,
        record.description,
        record.created_us,
        record.created_by,
    )


def _binding(binding_id: str, record: BindingRecord) -> api.BindingRow:
    return api.BindingRow(
        binding_id, record.subject, list(record.roles), record.scope, record.created_us, record.created_by
    )


def _shown(ceiling: Sequence[GrantRecord] | None) -> list[api.CeilingGrant] | None:
    return None if ceiling is None else [api.CeilingGrant(each.scope, list(each.permissions)) for each in ceiling]


def ceiling_of(book: SecurityBook, parts: Sequence[api.CeilingGrant] | None) -> tuple[Grant, ...] | None:
    """Return the ceiling that a request describes.

    Raises:
        InvalidArgumentError: an unknown permission, role or scope, or a part without permissions.
    """
    if parts is None:
        return None
    found = []
    for part in parts:
        permissions = parse_permissions(part.permissions)
        for name in part.roles:
            role = book.rights.roles.get(name)
            if role is None:
                raise InvalidArgumentError(f"there is no role {name!r}")
            permissions |= role.permissions
        if not permissions:
            raise InvalidArgumentError(f"the ceiling within {part.scope} has no permissions; name some, or a role")
        found.append(Grant(permissions, parse_scope(part.scope)))
    return tuple(found)


def parse_resource(text: str) -> Resource:
    """Parse a resource given as text; the notation is that of scopes, without a prefix.

    Raises:
        InvalidArgumentError: the text is not a resource.
    """
    scope = parse_scope(text)
    if scope.is_prefix:
        raise InvalidArgumentError(f"{text!r} is a prefix; name one resource")
    return Resource(scope.kind, scope.name)


def principal_of(subject: str, groups: Sequence[str] = ()) -> Principal:
    """Return the principal of a subject that can sign in.

    Raises:
        InvalidArgumentError: it is invalid, or a group.
    """
    kind, _, name = parse_subject(subject).partition(":")
    if kind == PrincipalType.GROUP.value:
        raise InvalidArgumentError(f"{subject} is a group; name a principal, user:NAME or service:NAME")
    return Principal(PrincipalType(kind), name, tuple(groups))


def explain(book: SecurityBook, request: api.ExplainAccess) -> tuple[Resource, Permission, api.ExplainedAccess]:
    """Return what a request asks about, and the decision with its reason.

    Raises:
        InvalidArgumentError: an unknown subject, permission or resource.
    """
    principal = principal_of(request.subject, request.groups)
    permission = parse_permissions([request.permission])
    resource = parse_resource(request.resource)
    decision = book.rights.explain(principal, permission, resource)
    return resource, permission, api.ExplainedAccess(decision.is_allowed, decision.reason)


def who_i_am(subject: str, proof: str, ends_s: float, held: Iterable[Effective] | None) -> api.WhoIAm:
    """Return who a caller is, and what it may do.

    Args:
        subject: the principal.
        proof: kind and id of its credential.
        ends_s: when that ends, by the wall clock; infinite: never.
        held: its permissions; None: there is no access control, so it may do everything.
    """
    if held is None:
        everything = [each.title for each in Permission if each is not Permission.BROKER_INTERNAL]
        return api.WhoIAm(subject, False, "", 0, [api.CeilingGrant(str(scope_of(CLUSTER)), everything)])
    found: dict[str, Permission] = {}
    for each in held:
        scope = str(each.scope)
        if scope not in found and len(found) == api.PAGE_ROWS:
            return _who(subject, proof, ends_s, found, more=True)
        found[scope] = found.get(scope, Permission(0)) | each.permissions
    return _who(subject, proof, ends_s, found, more=False)


def _who(subject: str, proof: str, ends_s: float, found: dict[str, Permission], *, more: bool) -> api.WhoIAm:
    grants = [api.CeilingGrant(scope, list(found[scope].titles)) for scope in sorted(found)]
    return api.WhoIAm(subject, True, proof, 0 if math.isinf(ends_s) else round(ends_s * 1e6), grants, more)
