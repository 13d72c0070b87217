"""Everything that a broker asks about its callers: who they are, what they may, and when that ends. Pure.

The shell passes what it receives (headers, certificates, changes of the metadata, both clocks), and carries out what is
decided here: it refuses calls, ends streams, and pauses before it refuses throttled proofs.

::

    authorization ──▶ cached? ── yes ──▶ identity
                        │ no
                        ▼
                     throttled, and never verified? ── yes ──▶ UNAVAILABLE after refused_proof_pause_s
                        │ no
                        ▼
                     metadata reached within security_fresh_s? ── no ──▶ UNAVAILABLE
                        │ yes
                        ▼
                     valid? ── no ──▶ counted, UNAUTHENTICATED
                        │ yes
                        ▼
                     cached, identity
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from danube.model.errors import DanubeError, PeerBlockedError, UnavailableError
from danube.security.book import SecurityBook
from danube.security.claims import Identity, Trusted
from danube.security.endings import End, Freshness, Need, OpenStreams
from danube.security.flaws import BadProofError, UncheckedProofError
from danube.security.limits import SecurityLimits
from danube.security.proofs import Proofs, credential_of
from danube.security.records import ISSUERS, KEYS, REVOKED
from danube.security.resources import Book
from danube.security.rights import RULES
from danube.security.roles import PrincipalType
from danube.security.throttle import FailedProofs
from danube.security.verdicts import Verdict, judge, refusal_of
from danube.security.verified import VerifiedCache

__all__ = ["Guard"]


class Guard:
    """The guard of one broker.

    Args:
        cluster: name of the cluster.
        limits: of access control.
        now: the time in seconds, of a clock that never steps back; the metadata were read at this time.
    """

    def __init__(self, cluster: str, limits: SecurityLimits, now: float) -> None:
        self.limits = limits
        self.book = SecurityBook(cluster, limits)
        """The records; changed by :meth:`apply` only."""
        self.freshness = Freshness(limits, now)
        """How current they are; the shell confirms it."""
        self._proofs = Proofs(limits, self.book.keyring, self.book.api_keys, self.book.revoked)
        self.streams = OpenStreams(self.book.rights, self.freshness, self._proofs.accepts)
        """Open streams; the shell announces them."""
        self.on_unknown_key: Callable[[str], None] = lambda _issuer: None
        """Called with the issuer of a token that names a key which is not known."""
        self._verified = VerifiedCache(limits)
        self._failed = FailedProofs(limits)

    # --- Changes

    def apply(self, key: str, value: bytes | None) -> None:
        """Apply a change of a record of access control; None: it is gone."""
        self.book.apply(key, value)
        if key.startswith(REVOKED):
            self._verified.revoke(key.removeprefix(REVOKED))
            self.streams.proofs_changed()
        elif key.startswith((KEYS, ISSUERS)):
            self._keys_changed()

    def configure(self, trusted: Iterable[tuple[str | None, Trusted]], issuers: Iterable[str] = ()) -> None:
        """Replace the keys that are no records: of OIDC issuers, and the secret of upstream's tokens.

        Args:
            trusted: the keys by id.
            issuers: names that records of keys must not have, although no key of them is known now.
        """
        self.book.configure(trusted, issuers)
        self._keys_changed()

    def _keys_changed(self) -> None:
        self._proofs.keyring = self.book.keyring
        self._verified.drop_if(lambda identity: not self._proofs.accepts(identity))
        self.streams.proofs_changed()

    # --- Calls

    def identify(
        self,
        authorization: str | None,
        certificate: Identity | None,
        peer: str,
        now: float,
        wall_s: float,
        *,
        is_private: bool,
    ) -> Identity:
        """Return the identity of a caller.

        Args:
            authorization: value of the header of this name; None if there is none.
            certificate: the identity in the client certificate of the connection.
            peer: address of the caller.
            now: a clock that never steps back, in seconds.
            wall_s: Unix time in seconds.
            is_private: whether the connection is encrypted or comes from the same machine.

        Raises:
            BadProofError: there is no valid proof.
            UncheckedProofError: it was not looked at: the shell waits for ``refused_proof_pause_s`` before it answers.
            PeerBlockedError: the address has caused too many such refusals: the shell closes the connection.
            UnavailableError: the metadata are not reachable, so that nothing new can be proven.
        """
        try:
            if authorization is None or not is_private:
                found = self._proofs.identify(authorization, certificate, wall_s, is_private=is_private)
            else:
                found = self._of_credential(authorization, peer, now, wall_s)
        except (BadProofError, UncheckedProofError) as error:
            if self._failed.refused(peer, now):
                raise PeerBlockedError(
                    "too many calls with wrong credentials, or with none, came from this address; the connection is"
                    " closed, and new ones from there may be refused for some seconds"
                ) from error
            raise
        if self.freshness.is_stale(now) and found.principal.type is not PrincipalType.BROKER:
            raise _cut_off(
                f"security_stale_s = {self.limits.security_stale_s:g} s, so that known rights count no longer"
            )
        return found

    def _of_credential(self, authorization: str, peer: str, now: float, wall_s: float) -> Identity:
        try:
            credential = credential_of(authorization)
        except BadProofError:
            credential = ""
        found = self._verified.get(credential, now, wall_s)
        if found is not None:
            return found
        # A credential that was good before is no stranger's: those at the same address do not keep it out.
        if not self._verified.knows(credential) and not self._failed.may_look(peer, now):
            raise UncheckedProofError
        if not self.freshness.accepts_new_proofs(now):
            raise _cut_off(f"security_fresh_s = {self.limits.security_fresh_s:g} s, so that nothing new can be proven")
        try:
            found = self._proofs.verify(credential, wall_s)
        except BadProofError as error:
            if error.issuer:
                self.on_unknown_key(error.issuer)
            self._verified.forget(credential)
            self._failed.failed(peer, now)
            raise
        self._failed.succeeded(peer)
        self._verified.put(credential, found, now)
        return found

    def is_blocked(self, peer: str, now: float) -> bool:
        """Whether an address gets no connections now, because of wrong credentials that came from there."""
        return self._failed.is_blocked(peer, now)

    def judge(self, path: str, identity: Identity | None, request: Any, book: Book) -> Verdict:
        """Judge a call by the table of rights; see :func:`~danube.security.verdicts.judge`."""
        principal = None if identity is None else identity.principal
        return judge(RULES.get(path), principal, self.book.rights, request, book)

    def refusal(
        self, path: str, identity: Identity | None, verdict: Verdict, request: Any = None, book: Book | None = None
    ) -> DanubeError | None:
        """Return the error of a verdict; None if the call is allowed; see :mod:`~danube.security.verdicts`."""
        principal = None if identity is None else identity.principal
        return refusal_of(verdict, principal, RULES.get(path), request, book)

    def watch(self, stream: int, identity: Identity, needs: Iterable[Need]) -> None:
        """A stream was allowed just now: it ends with its proof and its rights. The shell announces its end, too."""
        self.streams.opened(stream, identity, needs)

    def check(self, now: float, wall_s: float) -> tuple[list[End], bool]:
        """Return streams that end now, and whether there is more to examine at once; call it every ``CHECK_S``."""
        return self.streams.check(now, wall_s)


def _cut_off(why: str) -> UnavailableError:
    return UnavailableError(f"this broker has not reached the metadata for {why}; connect to another broker")
