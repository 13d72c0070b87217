"""The keys of configured OIDC issuers: read in the background, kept while an issuer is away, refused when stale.

::

    document read ──▶ keys used ──▶ each jwks_refresh_s, or soon after an unknown key id ──▶ read again
                          │ fails: again each jwks_unknown_key_s; keys stay
                          ▼ jwks_stale_s after the last success
                       keys dropped: tokens of the issuer are refused, its streams end
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import trio

from danube.model.addresses import is_loopback
from danube.model.errors import DanubeError, InvalidArgumentError
from danube.model.log_events import log_event
from danube.model.security_api import IssuerKeys
from danube.security.claims import OidcClaims, Profile, Trusted
from danube.security.flaws import BadProofError
from danube.security.jwks import JwksRefresh, parse_jwks
from danube.security.jws import parse_json
from danube.security.keys import Key
from danube.security.limits import SecurityLimits

__all__ = ["Fetch", "OidcIssuer", "OidcIssuers"]

_log = logging.getLogger("danube.broker")

Fetch = Callable[[str, str, int], Awaitable[bytes]]
"""Returns the document at a URL; the others are the file of authorities and the most bytes."""
START_WAIT_S: Final = 2.0
"""How long the start of a broker waits for the first answers of issuers."""
_DISCOVERY: Final = "/.well-known/openid-configuration"


class OidcIssuer(NamedTuple):
    """A configured issuer."""

    name: str
    """In the configuration and the log."""
    issuer: str
    """The required ``iss``."""
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]
    jwks: str
    """URL of its keys; empty: the discovery document of the issuer names it."""
    ca: str
    claims: OidcClaims
    longest_life_s: float


class OidcIssuers:
    """Keeps the keys of all issuers.

    Args:
        issuers: those configured.
        limits: of access control.
        fetch: returns documents; raises DanubeError.
        use: receives the keys of all issuers after each change, by key id.
    """

    def __init__(
        self,
        issuers: Sequence[OidcIssuer],
        limits: SecurityLimits,
        fetch: Fetch,
        use: Callable[[list[tuple[str | None, Trusted]]], None],
    ) -> None:
        self._use = use
        self._followed = {each.issuer: _Followed(each, limits, fetch, self._changed) for each in issuers}

    @property
    def failures(self) -> int:
        """How many attempts to read keys have failed."""
        return sum(each.failures for each in self._followed.values())

    def _changed(self) -> None:
        self._use([pair for each in self._followed.values() for pair in each.trusted()])

    def unknown_key(self, issuer: str) -> None:
        """A token names a key that its issuer (``iss``) did not have; its document is read again soon."""
        found = self._followed.get(issuer)
        if found is not None:
            found.unknown_key()

    async def reload(self) -> list[IssuerKeys]:
        """Read the keys of all issuers now. May be cancelled; the reading goes on."""
        found: list[IssuerKeys] = []

        async def read(each: _Followed) -> None:
            found.append(await each.reload())

        async with trio.open_nursery() as nursery:
            for each in self._followed.values():
                nursery.start_soon(read, each)
        return sorted(found, key=lambda each: each.name)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the keys until cancelled; started after the first attempts, or ``START_WAIT_S``."""
        async with trio.open_nursery() as nursery:
            for each in self._followed.values():
                nursery.start_soon(each.run)
            with trio.move_on_after(START_WAIT_S):
                for each in self._followed.values():
                    await each.attempted(1)
            task_status.started()


class _Followed:
    """One issuer."""

    def __init__(self, issuer: OidcIssuer, limits: SecurityLimits, fetch: Fetch, changed: Callable[[], None]) -> None:
        self._issuer = issuer
        self._limits = limits
        self._fetch = fetch
        self._changed = changed
        self._refresh = JwksRefresh(limits)
        self._keys: Mapping[tuple[str, str], Key] = {}
        self._problem = ""
        self._asked = False
        self._woken = trio.Event()
        self._begun = 0
        self._done = 0
        self._attempted = trio.Event()
        self.failures = 0

    def trusted(self) -> list[tuple[str | None, Trusted]]:
        """Return the keys, each with the tokens that it may sign."""
        given = self._issuer
        return [
            (
                kid,
                Trusted(
                    key,
                    given.issuer,
                    Profile.OIDC,
                    given.audiences,
                    longest_life_s=given.longest_life_s,
                    oidc=given.claims,
                ),
            )
            for (kid, _), key in self._keys.items()
        ]

    def unknown_key(self) -> None:
        self._refresh.unknown_key()
        self._wake()

    def _wake(self) -> None:
        self._woken.set()
        self._woken = trio.Event()

    async def reload(self) -> IssuerKeys:
        """Read the document in an attempt that begins after this."""
        self._asked = True
        self._wake()
        await self.attempted(self._begun + 1)
        return IssuerKeys(self._issuer.name, len(self._keys), self._problem)

    async def attempted(self, number: int) -> None:
        """Wait until so many attempts are over."""
        while self._done < number:
            await self._attempted.wait()

    async def run(self) -> None:
        refresh = self._refresh
        while True:
            now = trio.current_time()
            if self._keys and not refresh.is_usable(now):
                _log.error(
                    "the keys of OIDC issuer %s were read more than jwks_stale_s = %g s ago; its tokens are refused",
                    self._issuer.name,
                    self._limits.jwks_stale_s,
                    extra=log_event("oidc.keys_stale", issuer=self._issuer.name),
                )
                self._keys = {}
                self._changed()
            if self._asked or refresh.due_at <= now:
                await self._attempt()
                continue
            stale_at = refresh.stale_at if self._keys else math.inf
            with trio.move_on_at(min(refresh.due_at, stale_at)):
                await self._woken.wait()

    async def _attempt(self) -> None:
        self._asked = False
        self._begun += 1
        self._refresh.begin(trio.current_time())
        problem = f"no complete answer within jwks_timeout_s = {self._limits.jwks_timeout_s:g} s"
        try:
            with trio.move_on_after(self._limits.jwks_timeout_s):
                await self._read()
                problem = ""
        except DanubeError as error:
            problem = error.message
        if problem:
            self._refresh.failed()
            self.failures += 1
            if problem != self._problem:
                _log.error(
                    "the keys of OIDC issuer %s cannot be read, known ones stay: %s",
                    self._issuer.name,
                    problem,
                    extra=log_event("oidc.keys_unreadable", issuer=self._issuer.name),
                )
        else:
            self._refresh.succeeded(trio.current_time())
            if self._problem:
                _log.info("the keys of OIDC issuer %s were read again", self._issuer.name)
        self._problem = problem
        self._done = self._begun
        self._attempted.set()
        self._attempted = trio.Event()

    async def _read(self) -> None:
        given, most = self._issuer, self._limits.max_jwks_bytes
        url = given.jwks or _jwks_of(
            await self._fetch(given.issuer.rstrip("/") + _DISCOVERY, given.ca, most), given.issuer
        )
        found = parse_jwks(await self._fetch(url, given.ca, most), given.algorithms, self._limits)
        if _ids(found.keys) == _ids(self._keys):
            return
        for why in found.skipped:
            _log.info("OIDC issuer %s: %s", given.name, why)
        self._keys = found.keys
        self._changed()


def _is_local(url: str, issuer: str) -> bool:
    """Whether both are plain addresses of this machine."""
    try:
        both = [urlsplit(each) for each in (url, issuer)]
    except ValueError:
        return False
    return all(each.scheme == "http" and is_loopback(each.hostname or "") for each in both)


def _ids(keys: Mapping[tuple[str, str], Key]) -> dict[tuple[str, str], str]:
    return {name: key.kid for name, key in keys.items()}


def _jwks_of(document: bytes, issuer: str) -> str:
    """Return the URL of the keys in a discovery document.

    Raises:
        InvalidArgumentError: it is malformed, of another issuer, or names a URL less safe than the issuer's.
    """
    try:
        members = parse_json(document)
    except BadProofError as error:
        raise InvalidArgumentError("the discovery document is not a JSON object, or has duplicate members") from error
    if members.get("issuer") != issuer:
        raise InvalidArgumentError(
            f"the discovery document is of issuer {str(members.get('issuer'))[:255]!r}, and {issuer!r} is configured"
        )
    url = members.get("jwks_uri")
    # Nothing that a server says makes the broker read files, or plain text.
    if not isinstance(url, str) or not (url.startswith("https://") or _is_local(url, issuer)):
        raise InvalidArgumentError("the discovery document has no jwks_uri that begins with https://")
    return url
