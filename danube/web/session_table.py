"""Sessions of browsers: a cookie that stands for a credential. Pure; the time and random bytes are passed in.

A session keeps the credential of its caller, and each call is judged by that credential: a revoked one, an expired one
and a lost right count at once, and a session never has rights of its own. The browser has a random id
instead, in a cookie that no script can read, and a random CSRF token, which the page sends in a header with each call
that is no GET. Of the id only the hash is kept.

::

    login ──▶ new id, new CSRF token ──▶ used, each time within idle_s ──▶ ended by a logout, by life_s, by its
                                                                           credential, or by a newer login
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from danube.model.errors import LimitExceededError
from danube.model.secret import Secret

__all__ = [
    "CONSOLE_HEADER",
    "COOKIE",
    "CSRF_HEADER",
    "RANDOM_BYTES",
    "Begun",
    "Session",
    "SessionLimits",
    "SessionTable",
    "cookie_name",
    "cookie_of",
    "set_cookie",
]

COOKIE: Final = "danube-session"
"""Name of the cookie, with the port of the server behind it: browsers do not tell the ports of a host apart."""
CSRF_HEADER: Final = "danube-csrf"
"""The header, in lower case, in which a page proves that it has read the CSRF token of its session."""
CONSOLE_HEADER: Final = "danube-console"
"""The header, in lower case, by which the console says that it asks for a login itself."""
RANDOM_BYTES: Final = 64
"""Unpredictable bytes that a login needs: 256 bits for the id, 256 for the CSRF token."""
_ID_CHARS: Final = 43
_MOST_COOKIES: Final = 50
"""Cookies of one request that are looked at."""


class SessionLimits(NamedTuple):
    """Limits on sessions, which are limits of the broker."""

    http_max_sessions: int
    http_max_sessions_per_caller: int
    http_session_idle_s: float
    http_session_life_s: float


class Session:
    """One session.

    Attributes:
        key: hash of its id.
        subject: whose it is.
        authorization: the header that it stands for.
        csrf: its CSRF token.
        used_s: when it was used last, by the clock of the caller.
        ends_s: when it ends, however much it is used.
    """

    __slots__ = ("authorization", "csrf", "ends_s", "key", "subject", "used_s")

    def __init__(self, key: str, subject: str, authorization: Secret, csrf: str, now_s: float, ends_s: float) -> None:
        self.key = key
        self.subject = subject
        self.authorization = authorization
        self.csrf = csrf
        self.used_s = now_s
        self.ends_s = ends_s

    def accepts(self, csrf: str | None) -> bool:
        """Whether a text is its CSRF token."""
        return csrf is not None and hmac.compare_digest(csrf.encode(), self.csrf.encode())


class Begun(NamedTuple):
    """A login."""

    id: str
    """For the cookie."""
    session: Session
    ended: list[Session]
    """Sessions that have ended because of it."""


class SessionTable:
    """All sessions of one broker. Times are of a clock that never steps back, in seconds."""

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, subject: str, authorization: str, random: bytes, now_s: float, proof_ends_in_s: float) -> Begun:
        """Begin a session, with an id that no browser has had before.

        Args:
            subject: whose it is.
            authorization: the header that it stands for, just verified.
            random: :data:`RANDOM_BYTES` unpredictable bytes.
            now_s: the time.
            proof_ends_in_s: how long the credential is valid; the session ends with it at the latest.

        Raises:
            LimitExceededError: there are ``http_max_sessions``, all of them in use.
        """
        limits = self._limits
        ended = self.sweep(now_s)
        own = sorted(
            (each for each in self._sessions.values() if each.subject == subject), key=lambda each: each.used_s
        )
        surplus = own[: max(0, len(own) + 1 - limits.http_max_sessions_per_caller)]
        if len(self._sessions) - len(surplus) >= limits.http_max_sessions:
            raise LimitExceededError(
                f"{len(self._sessions)} browsers are logged in, and http_max_sessions is {limits.http_max_sessions};"
                " try again later, or send the token with each call"
            )
        for each in surplus:
            del self._sessions[each.key]
        session_id, csrf = _text(random[:32]), _text(random[32:RANDOM_BYTES])
        ends_s = now_s + min(limits.http_session_life_s, proof_ends_in_s)
        session = Session(_key(session_id), subject, Secret(authorization), csrf, now_s, ends_s)
        self._sessions[session.key] = session
        return Begun(session_id, session, ended + surplus)

    def use(self, session_id: str, now_s: float) -> Session | None:
        """Return a session that has not ended, and note that it is used; None: there is none with this id."""
        session = self._sessions.get(_key(session_id))
        if session is None or self._is_over(session, now_s):
            return None
        session.used_s = now_s
        return session

    def holds(self, session: Session) -> bool:
        """Whether a session was neither ended nor swept away."""
        return self._sessions.get(session.key) is session

    def end(self, session: Session) -> None:
        """End a session; one that has ended stays so."""
        self._sessions.pop(session.key, None)

    def sweep(self, now_s: float) -> list[Session]:
        """End the sessions whose time is over, and return them."""
        over = [each for each in self._sessions.values() if self._is_over(each, now_s)]
        for each in over:
            del self._sessions[each.key]
        return over

    def _is_over(self, session: Session, now_s: float) -> bool:
        return now_s >= session.ends_s or now_s - session.used_s >= self._limits.http_session_idle_s


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _key(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()


# --- Cookies


def cookie_name(host: str, *, secure: bool) -> str:
    """Return the name of the cookie.

    Over TLS it begins with ``__Host-``: browsers then accept it only with ``Secure`` and without ``Domain``, so no
    other host and no page without TLS can set it. Without TLS, which is possible on this machine only, browsers refuse
    that prefix.

    Args:
        host: header of the request, whose port is a part of the name.
        secure: whether the request came over TLS.
    """
    _, colon, port = host.rpartition(":")
    suffix = f"-{port}" if colon and port.isascii() and port.isdigit() and len(port) <= 5 else ""
    return f"{'__Host-' if secure else ''}{COOKIE}{suffix}"


def cookie_of(headers: Mapping[str, str], *, secure: bool) -> str | None:
    """Return the id of the session in the headers of a request; None if there is none, or another page sends it.

    A browser adds cookies also to what other pages of the same host make it send. What says so, is a caller without a
    session.
    """
    if headers.get("sec-fetch-site") not in (None, "same-origin", "none"):
        return None
    name = cookie_name(headers.get("host", ""), secure=secure)
    found = [value for key, value in _cookies(headers.get("cookie", "")) if key == name]
    # This server sets one cookie of this name: of two, another server of the same host has set one.
    return found[0] if len(found) == 1 and len(found[0]) == _ID_CHARS else None


def _cookies(header: str) -> Iterator[tuple[str, str]]:
    for pair in header.replace(",", ";").split(";", _MOST_COOKIES)[:_MOST_COOKIES]:
        name, equals, value = pair.strip().partition("=")
        if equals:
            yield name, value


def set_cookie(host: str, session_id: str | None, *, secure: bool) -> tuple[str, str]:
    """Return the header that gives a browser the id of a session, until it is closed; None: that takes it away."""
    name, end = cookie_name(host, secure=secure), "; Secure" if secure else ""
    value = f"{name}={session_id}" if session_id else f"{name}=; Max-Age=0"
    return "Set-Cookie", f"{value}; Path=/; HttpOnly; SameSite=Strict{end}"
