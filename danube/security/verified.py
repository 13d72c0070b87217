"""A cache of verified credentials. Pure; the times are passed in.

Verifying a signature takes about 100 us, and a look-up here a few. The keys are hashes, so the cache contains no
credentials. An identity is used for ``verified_s``, then the credential is verified again. The entry stays until then
as long as the credential is valid: it tells a credential that was good from a stranger's, whose attempts are limited.
It ends when the credential expires, is refused or revoked; refused credentials are never cached.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from danube.security.claims import Identity
from danube.security.limits import SecurityLimits

__all__ = ["VerifiedCache"]


class _Entry(NamedTuple):
    identity: Identity
    until: float


class VerifiedCache:
    """Identities by credential, the most recently used ones."""

    def __init__(self, limits: SecurityLimits) -> None:
        self._most = limits.verified_entries
        self._keep_s = limits.verified_s
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._by_id: dict[str, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, credential: str, now: float, wall_s: float) -> Identity | None:
        """Return the identity that a credential was verified to prove; None if it must be verified.

        Args:
            credential: a token or API key.
            now: a clock that never steps back, in seconds.
            wall_s: Unix time in seconds, by which credentials expire.
        """
        key = _hash(credential)
        entry = self._entries.get(key)
        if entry is None:
            return None
        if wall_s >= entry.identity.expires_at_s:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.identity if now < entry.until else None

    def knows(self, credential: str) -> bool:
        """Whether a credential was verified before, and not refused, revoked or found expired since."""
        return _hash(credential) in self._entries

    def forget(self, credential: str) -> None:
        """A credential was verified again, and refused."""
        self._drop(_hash(credential))

    def put(self, credential: str, identity: Identity, now: float) -> None:
        """Remember a credential that was verified just now."""
        key = _hash(credential)
        self._drop(key)
        if len(self._entries) >= self._most:
            self._drop(next(iter(self._entries)))
        self._entries[key] = _Entry(identity, now + self._keep_s)
        self._by_id.setdefault(identity.id, set()).add(key)

    def revoke(self, proof_id: str) -> None:
        """Forget the credentials with an id: a revoked token, or a removed or changed API key."""
        for key in list(self._by_id.get(proof_id, ())):
            self._drop(key)

    def drop_if(self, matches: Callable[[Identity], bool]) -> None:
        """Forget the credentials of matching identities, for example those of a removed issuer."""
        for key, entry in list(self._entries.items()):
            if matches(entry.identity):
                self._drop(key)

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        same = self._by_id[entry.identity.id]
        same.discard(key)
        if not same:
            del self._by_id[entry.identity.id]


def _hash(credential: str) -> bytes:
    return hashlib.sha256(credential.encode("utf-8", "surrogateescape")).digest()
