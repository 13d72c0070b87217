"""Limits of authentication and access control, in the style of :mod:`danube.model.limits`. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["YEAR_S", "SecurityLimits"]

YEAR_S: Final = 366 * 24 * 3600.0


class SecurityLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one broker. All are hard: excess is refused."""

    # Credentials
    max_token_bytes: int = 8 * 1024
    """Longest token."""
    max_token_life_s: float = YEAR_S
    """Longest time from now to the expiry of any token."""
    token_leeway_s: float = 30.0
    """Tolerated difference of clocks when the times in a token are checked."""
    max_token_groups: int = 256
    """Groups in one token; a token with more is refused."""
    max_token_permissions: int = 64
    """Entries of ``may`` in one token."""
    max_certificate_names: int = 64
    """Names in one client certificate."""

    # Keys of OIDC issuers
    max_jwks_bytes: int = 256 * 1024
    """Largest JWKS document."""
    max_jwks_keys: int = 100
    """Keys of one JWKS document."""
    jwks_refresh_s: float = 600.0
    """Interval of reading a JWKS document."""
    jwks_unknown_key_s: float = 30.0
    """Shortest pause between two attempts to read it because a token names an unknown key, or because one failed."""
    jwks_timeout_s: float = 10.0
    """Longest time for reading a JWKS document, with the discovery document before it."""
    max_oidc_issuers: int = 32
    """OIDC issuers of one broker's configuration."""
    jwks_stale_s: float = 24 * 3600.0
    """How long the keys of a document are used after it was last read; then tokens of its issuer are refused."""

    # Verified credentials
    verified_entries: int = 10_000
    """Verified credentials that are remembered until they expire; the least recently used ones are dropped."""
    verified_s: float = 60.0
    """After this long a remembered credential is verified again."""
    security_fresh_s: float = 3.0
    """A broker that has not reached the metadata for this long accepts only credentials that it has verified before."""
    security_stale_s: float = 60.0
    """A broker that has not reached the metadata for this long no longer uses the rights that it knows: it ends streams
    and refuses calls."""

    # Failed proofs
    failed_proofs_burst: int = 10
    """Failed proofs of one address (IPv6: of one /64) that are answered at once."""
    failed_proofs_per_s: float = 1.0
    """Rate at which an address gets further attempts."""
    failed_proofs_principal_burst: int = 20
    """Wrong passwords of one principal, from all addresses."""
    failed_proofs_principal_per_s: float = 1 / 60
    """Rate at which a principal gets further attempts."""
    failed_proofs_all_per_s: float = 200.0
    """Failed proofs in a second of all addresses from which none has succeeded before."""
    throttled_addresses: int = 10_000
    """Addresses and principals with failed proofs that are remembered, and addresses with successful ones; beyond it
    the earliest ones are forgotten."""
    refused_proof_pause_s: float = 1.0
    """Pause before a proof that is not looked at is refused."""

    refused_proofs_burst: int = 1_000
    """Calls of one address that may be refused for their credentials, looked at or not, at once. Beyond it each such
    call ends its connection, and an address from which no proof has succeeded gets no new ones."""
    refused_proofs_per_s: float = 50.0
    """Rate at which an address may cause further ones."""

    # Audit
    audit_events_per_s: float = 1_000.0
    """Events that a broker enters in the audit log; more are counted."""
    audit_waiting: int = 10_000
    """Events that wait to be entered; more are counted as lost."""
    audit_repeated: int = 10_000
    """Different refusals of which repetitions are counted at a time; beyond it the earliest are entered sooner."""

    # Streams
    first_message_s: float = 30.0
    """How long a stream may wait for its first message, which is judged; then it ends."""

    # Records
    max_roles: int = 1_000
    """Roles of a cluster, without those that are built in."""
    max_bindings: int = 100_000
    """Bindings of a cluster."""
    max_binding_roles: int = 16
    """Roles of one binding."""
    max_api_keys: int = 100_000
    """API keys of a cluster."""
    max_issuers: int = 1_000
    """Signing keys of a cluster, of its brokers and of teams."""
    max_ceiling_grants: int = 64
    """Grants in the ceiling of one signing key or API key."""
    max_revocations: int = 100_000
    """Revoked tokens that have not expired."""
    max_principals: int = 100_000
    """Principals with a record."""
    max_description_chars: int = 512
    """Longest description of a record."""
