"""What a browser may do on behalf of another page: nothing. Pure.

A broker without access control trusts every program of its machine. A browser is such a program, and any page can make
it send requests: under a name of its own that resolves to 127.0.0.1 (DNS rebinding), or across sites. So a request must
name this server by an address, by ``localhost`` or by a configured name; and one that says where it comes from must
come from this server's own pages. Programs send no such headers, and are not affected.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping

from danube.http._messages import Response
from danube.http._problem import problem, shown

__all__ = ["check_caller", "host_name"]


def host_name(host: str) -> str:
    """Return the name or address in a header ``Host``, in lower case, without port and brackets; empty if invalid."""
    if host.startswith("["):
        name, closed, port = host[1:].partition("]")
        if not closed or (port and not _is_port(port)):
            return ""
        return name.lower()
    name, colon, port = host.partition(":")
    if colon and not (port.isascii() and port.isdigit()):
        return ""
    return name.lower().removesuffix(".")


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdigit()


def check_caller(method: str, headers: Mapping[str, str], allowed: Collection[str], scheme: str) -> Response | None:
    """Return why a request is refused; None: it is not.

    Args:
        method: of the request.
        headers: of the request.
        allowed: names by which this server may be called, beside addresses and ``localhost``; in lower case.
        scheme: of this server.
    """
    host = headers.get("host", "")
    name = host_name(host)
    if not _is_own(name, allowed):
        return problem(
            421,
            "misdirected",
            f"this broker is not called {shown(host)}; use its address or localhost, or add the name to"
            " http_allowed_hosts",
        )
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"{scheme}://{host}".lower():
        return problem(
            403, "cross-origin", f"requests from pages of {shown(origin)} are refused; only the broker's own may call"
        )
    site = headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none") and not (
        method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    ):
        return problem(
            403, "cross-origin", "requests from pages of other sites are refused; only the broker's own may call"
        )
    return None


def _is_own(name: str, allowed: Collection[str]) -> bool:
    if name == "localhost" or name in allowed:
        return bool(name)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True  # a page cannot give an address a name of its own
