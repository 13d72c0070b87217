"""Why credentials were refused: for logs and audits, never for the caller. Pure.

Wrong credentials are final for clients (UNAUTHENTICATED). Those that were not looked at may be good, because strangers
at the same address, or all over, have sent too many wrong ones: their refusal passes (UNAVAILABLE). It tells a guesser
nothing: it depends on the address and on time only.
"""

from __future__ import annotations

from enum import Enum

from danube.model.errors import CallRefusedError, UnauthenticatedError

__all__ = ["NO_PROOF", "BadProofError", "Flaw", "UncheckedProofError"]

NO_PROOF = "no valid credentials; send a token, an API key or a client certificate of this cluster"
"""The text of every UNAUTHENTICATED: it never says what is wrong with credentials."""


_UNCHECKED = (
    "the credentials were not checked, because too many wrong ones came from this address or from all together; try"
    " again in some seconds"
)


class Flaw(Enum):
    """What is wrong with credentials."""

    MISSING = "there are none"
    PLAIN_TEXT = "sent without TLS from another machine"
    MALFORMED = "malformed"
    TOO_LARGE = "too large"
    UNKNOWN_KEY = "unknown issuer or key"
    ALGORITHM = "not the algorithm of the key"
    SIGNATURE = "wrong signature"
    CLAIMS = "a claim is missing, superfluous or invalid"
    AUDIENCE = "for another cluster"
    EXPIRED = "expired"
    NOT_YET = "not valid yet"
    TOO_LONG = "valid for longer than its issuer or this cluster allows"
    REVOKED = "revoked"
    SECRET = "wrong secret"
    NAME = "no valid name of a principal"


class BadProofError(UnauthenticatedError):
    """Credentials were refused. The message is the same for all flaws."""

    def __init__(self, flaw: Flaw, issuer: str = "") -> None:
        super().__init__(NO_PROOF)
        self.flaw = flaw
        """For logs and audits only."""
        self.issuer = issuer
        """The issuer whose key a token names, if there is no such key: an OIDC issuer may have published it since."""


class UncheckedProofError(CallRefusedError):
    """Credentials were not looked at, because too many wrong ones came before them. Try again later."""

    def __init__(self, message: str = _UNCHECKED) -> None:
        super().__init__(message)
