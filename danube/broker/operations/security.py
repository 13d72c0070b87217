"""Operations on access control: roles, bindings, principals, API keys, keys that sign tokens, tokens.

The rules are those of :class:`~danube.security.book.SecurityBook`: each change is judged for the principal that asks
for it, on the records as they are, and then written in one transaction. All changes, of all brokers, rewrite the key
:data:`CHANGES`, and each is conditional on it: no other change happens between judgement and writing, so two
administrators cannot remove each other at the same time. A change that comes second is judged again.

When a call returns, this broker knows the change; others learn of it by watching the metadata.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import trio

from danube.broker.security.caller import current_caller
from danube.broker.security.oidc import OidcIssuers
from danube.broker.security.replica import CHANGES
from danube.metadata import Condition, Delete, MetadataStore, Put
from danube.model import api, security_api
from danube.model.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    MetadataConflictError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from danube.security.book import Change, SecurityBook
from danube.security.claims import Identity, parse_may
from danube.security.flaws import NO_PROOF
from danube.security.keys import EDDSA, SigningKey
from danube.security.limits import SecurityLimits
from danube.security.listing import Listing, Steps, ceiling_of, explain, who_i_am
from danube.security.permissions import Permission
from danube.security.proofs import exchange, mint
from danube.security.records import PREFIX, encode_record
from danube.security.roles import Binding, Principal, PrincipalType
from danube.security.scopes import CLUSTER, parse_scope, scope_of
from danube.wire.tls import ServerTls

__all__ = [
    "ANONYMOUS",
    "CHANGES",
    "EXCHANGED_LIFE_S",
    "LoadedRecords",
    "Records",
    "SecurityOperations",
    "write_changes",
]

ANONYMOUS: Final = Principal(PrincipalType.USER, "anonymous")
"""Everyone, at a broker without access control: such a broker can be reached from its own machine only."""
EXCHANGED_LIFE_S: Final = 4 * 3600
"""Life of a token that upstream's Java client gets for its API key; it asks for another one each 60 minutes."""
_TRIES: Final = 20
"""Attempts of one change, while others come first."""
_REACH_S: Final = 5.0
"""How long a change that is written waits until this broker knows it."""
_HASH_BYTES: Final = 32
_KEY_ID: Final = re.compile(r"[0-9A-Za-z]{12}")
_SWEPT: Final = 50
"""Most expired records that one change removes."""
_TOKEN_ID_BYTES: Final = 16
_SESSION_OUTCOMES: Final = {"begins": "begun", "ends": "ended"}

T = TypeVar("T")
Decide = Callable[[SecurityBook], list[Change]]


class Records(Protocol):
    """The records of access control, as a broker knows them."""

    async def at(self, revision: int) -> SecurityBook:
        """Return the records with all changes up to a revision of the metadata; wait until they are known."""
        ...


class LoadedRecords:
    """Reads all records for each call, at a broker that does not enforce them: then :data:`ANONYMOUS` may do all.

    Args:
        store: the metadata.
        cluster: name of the cluster.
        limits: of access control.
    """

    def __init__(self, store: MetadataStore, cluster: str, limits: SecurityLimits) -> None:
        self._store = store
        self._cluster = cluster
        self._limits = limits

    async def at(self, revision: int) -> SecurityBook:
        """Return the records as they are now.

        Raises:
            UnavailableError: the metadata do not answer.
        """
        items, _ = await self._store.list(PREFIX)
        book = SecurityBook(self._cluster, self._limits)
        book.load((item.key, item.value) for item in items)
        # An id that no binding can have; it is no record, so that lists do not show it.
        book.rights.set_binding("(anonymous)", Binding("(anonymous)", str(ANONYMOUS), ("admin",), scope_of(CLUSTER)))
        return book


async def _in_turns(steps: Steps[T]) -> T:
    """Return what a generator returns; other tasks run whenever it yields."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            found: T = ended.value
            return found
        await trio.lowlevel.checkpoint()


async def write_changes(store: MetadataStore, records: Records, decide: Decide) -> tuple[SecurityBook, int]:
    """Make a change of the records: judge it, and write it if no other change came first, else judge it again.

    Args:
        store: the metadata.
        records: the records.
        decide: judges the change, and returns it; an empty list changes nothing.

    Returns:
        The records with the change, and the revision.

    Raises:
        UnavailableError: the metadata do not answer, so that the change may have been made; or others always came
            first, and nothing was changed.
        DanubeError: what ``decide`` raises; nothing was changed.
    """
    for _ in range(_TRIES):
        known = await store.get(CHANGES)
        revision = known.mod_revision if known is not None else 0
        book = await records.at(revision)
        changes = decide(book)
        if not changes:
            return book, revision
        operations: list[Put | Delete] = [Put(CHANGES, b"")]
        for key, record in changes:
            operations.append(Delete(key) if record is None else Put(key, encode_record(record)))
        try:
            result = await store.transact([Condition(CHANGES, revision)], operations)
        except MetadataConflictError:
            continue
        with trio.move_on_after(_REACH_S):
            book = await records.at(result.revision)
        return book, result.revision
    raise UnavailableError(f"the records of access control changed {_TRIES} times meanwhile; try again")


class SecurityOperations:
    """Operations on access control; see the module. ``by`` is the principal that asks, in each of them.

    Args:
        store: the metadata.
        records: the records; of a broker that does not enforce them, :class:`LoadedRecords`.
        cluster: name of the cluster.
        clock_us: the wall clock.
        random_bytes: returns so many unpredictable bytes.
        limits: of access control.
        signing: the broker's own key for tokens, which is registered as one of the cluster's; None: it makes none.
        tls: the certificate of the broker; None: it has none.
        oidc: the keys of the OIDC issuers; None: none are configured.
    """

    def __init__(
        self,
        store: MetadataStore,
        records: Records,
        cluster: str,
        clock_us: Callable[[], int],
        random_bytes: Callable[[int], bytes],
        limits: SecurityLimits,
        signing: SigningKey | None = None,
        tls: ServerTls | None = None,
        oidc: OidcIssuers | None = None,
    ) -> None:
        self._store = store
        self._records = records
        self._cluster = cluster
        self._clock_us = clock_us
        self._random_bytes = random_bytes
        self._limits = limits
        self._signing = signing
        self._tls = tls
        self._oidc = oidc

    async def _change(self, decide: Decide) -> SecurityBook:
        return (await write_changes(self._store, self._records, decide))[0]

    async def _book(self) -> SecurityBook:
        """Return the records with all changes that were answered before the call."""
        known = await self._store.get(CHANGES)
        return await self._records.at(known.mod_revision if known is not None else 0)

    async def _listing(self, by: Principal) -> Listing:
        return Listing(await self._book(), by)

    # --- Roles

    async def list_roles(self, by: Principal, _request: object = None) -> security_api.RoleList:
        """Return all roles."""
        return security_api.RoleList((await self._listing(by)).roles())

    async def put_role(self, by: Principal, request: security_api.PutRole) -> api.Done:
        """Add or replace a role; raises what :meth:`~danube.security.book.SecurityBook.put_role` does."""
        now_us = self._clock_us()
        await self._change(
            lambda book: book.put_role(by, request.name, request.permissions, request.description, now_us=now_us)
        )
        return api.Done()

    async def drop_role(self, by: Principal, request: security_api.DropRole) -> api.Done:
        """Remove a role; raises what :meth:`~danube.security.book.SecurityBook.drop_role` does."""
        await self._change(lambda book: book.drop_role(by, request.name))
        return api.Done()

    # --- Bindings

    async def list_bindings(self, by: Principal, request: security_api.ListBindings) -> security_api.BindingList:
        """Return a page of bindings."""
        return await _in_turns((await self._listing(by)).bindings(request.subject, request.scope, request.after))

    async def show_binding(self, by: Principal, binding_id: str) -> security_api.BindingRow:
        """Return a binding.

        Raises:
            NotFoundError: there is none of this id that the caller may see.
        """
        found = (await self._listing(by)).binding(binding_id)
        if found is None:
            raise NotFoundError(f"there is no binding {binding_id!r}")
        return found

    async def put_binding(self, by: Principal, request: security_api.PutBinding) -> security_api.BindingList:
        """Add or replace a binding; raises what :meth:`~danube.security.book.SecurityBook.put_binding` does."""
        now_us = self._clock_us()
        chosen = ""

        def decide(book: SecurityBook) -> list[Change]:
            nonlocal chosen
            chosen, roles = request.id, list(request.roles)
            if not chosen:
                place = parse_scope(request.scope)
                same = (
                    each
                    for each in book.rights.bindings.values()
                    if (each.subject, each.scope) == (request.subject, place) and not each.id.startswith("(")
                )
                existing = next(same, None)
                if existing is not None:
                    chosen, roles = existing.id, [*existing.roles, *roles]
                else:
                    chosen = book.free_binding_id()
            return book.put_binding(by, chosen, request.subject, roles, request.scope, now_us=now_us)

        book = await self._change(decide)
        row = Listing(book, by).binding(chosen)
        return security_api.BindingList([row] if row is not None else [])

    async def drop_binding(self, by: Principal, request: security_api.DropBinding) -> security_api.BindingList:
        """Remove a binding, or roles from those of a subject within a scope.

        With an id it is one transaction. Otherwise each binding is changed in its turn, so that the last administrator
        stays.

        Raises:
            NotFoundError: there is no such binding.
            InvalidArgumentError: neither an id, nor a subject and a scope, or both.
            PermissionDeniedError, FailedPreconditionError: see
                :meth:`~danube.security.book.SecurityBook.drop_binding`.
        """
        if bool(request.id) == bool(request.subject and request.scope):
            raise InvalidArgumentError("name the id of a binding, or a subject and a scope")
        if request.id:
            await self._change(
                lambda book: (
                    book.narrow_binding(by, request.id, request.roles)
                    if request.roles
                    else book.drop_binding(by, request.id)
                )
            )
            return security_api.BindingList([])
        place, roles, changed = parse_scope(request.scope), set(request.roles), True
        found = False

        def decide(book: SecurityBook) -> list[Change]:
            nonlocal changed
            for each in book.rights.bindings.values():
                if (each.subject, each.scope) != (request.subject, place) or each.id.startswith("("):
                    continue
                if not roles:
                    return book.drop_binding(by, each.id)
                if roles & set(each.roles):
                    return book.narrow_binding(by, each.id, roles)
            changed = False
            return []

        while changed:
            book = await self._change(decide)
            found = found or changed
        if not found:
            if not book.rights.manages(by, place):
                raise PermissionDeniedError(f"{by} lacks ManageSecurity within {place}")
            what = f"no binding grants {', '.join(sorted(roles)) or 'a role'} to {request.subject} within {place}"
            raise NotFoundError(f"{what}; `danube security bindings` shows those that exist")
        return await _in_turns(Listing(book, by).bindings(request.subject, request.scope))

    # --- Principals

    async def list_principals(self, by: Principal, request: security_api.ListPrincipals) -> security_api.PrincipalList:
        """Return a page of the principals with a binding, an API key or a suspension."""
        return await _in_turns((await self._listing(by)).principals(request.after))

    async def suspend_principal(self, by: Principal, request: security_api.SuspendPrincipal) -> api.Done:
        """Suspend a principal; raises what :meth:`~danube.security.book.SecurityBook.suspend` does."""
        now_us = self._clock_us()
        await self._change(lambda book: book.suspend(by, request.subject, request.description, now_us=now_us))
        return api.Done()

    async def resume_principal(self, by: Principal, request: security_api.ResumePrincipal) -> api.Done:
        """End a suspension; raises what :meth:`~danube.security.book.SecurityBook.resume` does."""
        await self._change(lambda book: book.resume(by, request.subject))
        return api.Done()

    async def show_quota(
        self, by: Principal, request: security_api.ShowPrincipalQuota
    ) -> security_api.PrincipalQuotaReport:
        """Return the quota of a principal."""
        quota = (await self._book()).quota_of(by, request.subject)
        return security_api.PrincipalQuotaReport(request.subject, quota)

    async def change_quota(
        self, by: Principal, request: security_api.ChangePrincipalQuota
    ) -> security_api.PrincipalQuotaReport:
        """Change the quota of a principal; raises what :meth:`~danube.security.book.SecurityBook.change_quota` does."""
        now_us = self._clock_us()
        book = await self._change(lambda book: book.change_quota(by, request.subject, request.changes, now_us=now_us))
        return security_api.PrincipalQuotaReport(request.subject, book.quota_of(by, request.subject))

    # --- API keys

    async def list_keys(self, by: Principal, request: security_api.ListKeys) -> security_api.KeyList:
        """Return a page of API keys, without secrets."""
        return await _in_turns((await self._listing(by)).keys(request.subject, request.after))

    async def add_key(self, by: Principal, request: security_api.AddKey) -> api.Done:
        """Add an API key; raises what :meth:`~danube.security.book.SecurityBook.add_api_key` does."""
        now_us = self._clock_us()
        if len(request.hash) != _HASH_BYTES or not _KEY_ID.fullmatch(request.id):
            raise InvalidArgumentError("the id and the hash are not those of an API key that Danube has made")
        await self._change(
            lambda book: book.add_api_key(
                by,
                request.id,
                request.hash,
                request.subject,
                ceiling_of(book, request.ceiling),
                expires_us=request.expires_us,
                description=request.description,
                now_us=now_us,
            )
        )
        return api.Done()

    async def drop_key(self, by: Principal, request: security_api.DropKey) -> api.Done:
        """Remove an API key; raises what :meth:`~danube.security.book.SecurityBook.drop_api_key` does."""
        await self._change(lambda book: book.drop_api_key(by, request.id))
        return api.Done()

    # --- Keys that sign tokens

    async def list_issuers(self, by: Principal, _request: object = None) -> security_api.IssuerList:
        """Return the keys that sign tokens."""
        return await _in_turns((await self._listing(by)).issuers())

    async def add_issuer(self, by: Principal, request: security_api.AddIssuer) -> api.Done:
        """Accept a team's key; raises what :meth:`~danube.security.book.SecurityBook.add_issuer` does."""
        now_us = self._clock_us()
        await self._change(
            lambda book: book.add_issuer(
                by,
                request.name,
                request.public,
                ceiling_of(book, request.ceiling),
                longest_life_s=request.longest_life_s,
                description=request.description,
                now_us=now_us,
            )
        )
        return api.Done()

    async def drop_issuer(self, by: Principal, request: security_api.DropIssuer) -> api.Done:
        """Accept no more tokens of a key; raises what :meth:`~danube.security.book.SecurityBook.drop_issuer` does."""
        await self._change(lambda book: book.drop_issuer(by, request.kid))
        return api.Done()

    # --- Tokens

    def _key(self) -> SigningKey:
        if self._signing is None:
            raise FailedPreconditionError(
                "this broker signs no tokens, because its access control is off; `danube security init` makes what it"
                " needs"
            )
        return self._signing

    async def issue_token(self, by: Principal, request: security_api.IssueToken) -> security_api.IssuedToken:
        """Return a token of the cluster.

        Raises:
            FailedPreconditionError: this broker has no key.
            InvalidArgumentError: an invalid subject, permission or life.
            PermissionDeniedError: see :meth:`~danube.security.book.SecurityBook.check_may_issue`.
        """
        key = self._key()
        may = parse_may(request.may) if request.may is not None else None
        book = await self._book()
        book.check_may_issue(by, request.subject, may, request.life_s)
        if book.keyring.get(self._cluster, key.kid, EDDSA) is None:
            raise FailedPreconditionError(
                "the key of this broker was removed from the cluster; restart the broker, which makes another one"
            )
        now_s = self._clock_us() // 1_000_000
        token_id, expires_at_s = self._random_id(), now_s + max(1, round(request.life_s))
        token = mint(
            key,
            issuer=self._cluster,
            cluster=self._cluster,
            subject=request.subject,
            token_id=token_id,
            issued_at_s=now_s,
            expires_at_s=expires_at_s,
            may=request.may,
        )
        return security_api.IssuedToken(token, token_id, expires_at_s * 1_000_000)

    def exchange_key(self, identity: Identity) -> str:
        """Return a token for the holder of an API key; see :func:`~danube.security.proofs.exchange`.

        Raises:
            FailedPreconditionError: this broker has no key.
            UnauthenticatedError: the identity was proven by other credentials.
        """
        key = self._key()
        if identity.kind != "api-key":
            raise UnauthenticatedError(NO_PROOF)
        return exchange(
            identity,
            key,
            cluster=self._cluster,
            random_id=self._random_id(),
            now_s=self._clock_us() // 1_000_000,
            life_s=EXCHANGED_LIFE_S,
        )

    async def revoke_token(self, by: Principal, request: security_api.RevokeToken) -> api.Done:
        """Accept a token no more; raises what :meth:`~danube.security.book.SecurityBook.revoke` does."""
        now_us = self._clock_us()
        # No accepted token lives longer, so a revocation is never kept longer, whatever the request says.
        latest_us = now_us + round(self._limits.max_token_life_s * 1e6)
        expires_us = min(request.expires_us, latest_us) if request.expires_us > 0 else latest_us

        def decide(book: SecurityBook) -> list[Change]:
            changes = book.revoke(by, request.id, expires_us, request.reason, now_us=now_us)
            named = {change.key for change in changes}
            # What has expired makes room here; no task is needed for it.
            return changes + [each for each in book.expired(now_us) if each.key not in named][:_SWEPT]

        await self._change(decide)
        return api.Done()

    async def list_revoked(self, by: Principal, request: security_api.ListRevoked) -> security_api.RevokedList:
        """Return a page of the revoked tokens."""
        return await _in_turns((await self._listing(by)).revoked(request.after))

    # --- Explanations

    async def explain(self, by: Principal, request: security_api.ExplainAccess) -> security_api.ExplainedAccess:
        """Return whether a principal has a permission on a resource, and why.

        Raises:
            PermissionDeniedError: the caller lacks ManageSecurity on the resource.
            InvalidArgumentError: an unknown subject, permission or resource.
        """
        book = await self._book()
        resource, _, explained = explain(book, request)
        book.rights.require(by, Permission.MANAGE_SECURITY, resource)
        return explained

    # --- Files and documents

    async def reload(self, _by: Principal, _request: object = None) -> security_api.ReloadedSecurity:
        """Read the broker's certificates, and the keys of OIDC issuers, again; return what is used now."""
        answer = security_api.ReloadedSecurity([], 0, "", [])
        if self._tls is not None:
            await self._tls.reload_in_thread(force=True)
            answer.certificate_names = [f"{kind}:{name}" for kind, name in self._tls.names]
            answer.certificate_expires_us = round(self._tls.expires_at_s * 1e6)
            answer.certificate_problem = self._tls.failure
        if self._oidc is not None:
            answer.issuers = await self._oidc.reload()
        return answer

    # --- The caller itself

    async def who_am_i(self, by: Principal, request: security_api.WhoAmI) -> security_api.WhoIAm:
        """Return who the caller is, and what it may do by the records as this broker knows them.

        Raises:
            InvalidArgumentError: an unknown word about its session.
        """
        await trio.lowlevel.checkpoint()
        if request.session not in ("", *_SESSION_OUTCOMES):
            raise InvalidArgumentError(f"session {ascii(request.session)[:40]} is unknown; use begins or ends")
        caller = current_caller()
        if caller is None:
            return who_i_am(str(by), "", 0.0, None)
        found = who_i_am(str(by), caller.proof, caller.proof_ends_s, (await self._records.at(0)).rights.effective(by))
        if request.session:
            caller.note_session(_SESSION_OUTCOMES[request.session])
        return found

    def _random_id(self) -> str:
        return self._random_bytes(_TOKEN_ID_BYTES).hex()
