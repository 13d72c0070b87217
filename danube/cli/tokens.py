"""``danube tokens``: creates and revokes tokens."""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import parse_duration
from danube.cli._moments import moment
from danube.cli._output import Output, OutputOption, show_rows
from danube.model.errors import InvalidArgumentError
from danube.model.security_api import IssuedToken

__all__ = ["tokens_app"]

tokens_app = typer.Typer(no_args_is_help=True, help="Create and revoke tokens.")


@tokens_app.command("create")
def create_token(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="The principal: user:NAME or service:NAME.")],
    expires: Annotated[str, typer.Option(metavar="TIME", help="How long it lasts, up to 366d.")] = "90d",
    may: Annotated[
        list[str] | None,
        typer.Option(metavar="PERMISSION:SCOPE", help="It may do only this, such as Produce:/shop/orders; repeat."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Sign with a team's private key, without asking a broker.")
    ] = None,
    issuer: Annotated[str, typer.Option(metavar="NAME", help="With --key: the team's name.")] = "",
    cluster: Annotated[str, typer.Option(metavar="NAME", help="With --key: the cluster's name.")] = "danube",
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Create a token, and print it: it is shown this once, and stored nowhere.

    The broker signs it, or with --key a team's own key, which `danube issuers add` has registered.
    """
    life_s = parse_duration(expires)
    if key is not None:
        new = _sign(Path(key), issuer, cluster, subject, life_s, may)
    elif issuer:
        raise InvalidArgumentError("--issuer is for tokens that are signed with --key")
    else:
        new = run_with_client(
            lambda client: client.security.issue_token(subject, life_s=life_s, may=may or None), url, context
        )
    print(new.token)
    print(f"token {new.id} for {subject}, expires {moment(new.expires_us)}", file=sys.stderr)


def _sign(key: Path, issuer: str, cluster: str, subject: str, life_s: float, may: list[str] | None) -> IssuedToken:
    """Return a token that is signed with a private key in a file."""
    from danube.security.claims import parse_may
    from danube.security.keys import signing_key_of_pem
    from danube.security.listing import principal_of
    from danube.security.proofs import mint

    if not issuer:
        raise InvalidArgumentError("--key needs --issuer, the name under which the team's key is registered")
    principal_of(subject)
    parse_may(may or [])
    now_s, token_id = int(time.time()), secrets.token_hex(16)
    expires_s = now_s + max(1, round(life_s))
    token = mint(
        signing_key_of_pem(key.read_text("ascii", "replace")),
        issuer=issuer,
        cluster=cluster,
        subject=subject,
        token_id=token_id,
        issued_at_s=now_s,
        expires_at_s=expires_s,
        may=may or None,
    )
    return IssuedToken(token, token_id, expires_s * 1_000_000)


@tokens_app.command("revoke")
def revoke_token(
    token: Annotated[
        str,
        typer.Argument(metavar="ID", help="Of the token, as `tokens create` printed it; - reads a token from stdin."),
    ],
    reason: Annotated[str, typer.Option(help="Why, for lists.")] = "",
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Accept a token no more, on any broker; streams that were opened with it end within a second."""
    token_id, expires_us = _read_token(sys.stdin.read().strip()) if token == "-" else (token, 0)
    run_with_client(
        lambda client: client.security.revoke_token(token_id, expires_us=expires_us, reason=reason), url, context
    )
    print(f"revoked {token_id}")


def _read_token(text: str) -> tuple[str, int]:
    """Return the id of a token, and when it expires; its signature is not verified, because it grants nothing here."""
    from danube.security.flaws import BadProofError
    from danube.security.jws import parse_token
    from danube.security.limits import SecurityLimits

    try:
        claims = parse_token(text, SecurityLimits().max_token_bytes).claims
    except BadProofError as error:
        raise InvalidArgumentError("standard input has no token") from error
    token_id, expires_s = claims.get("jti"), claims.get("exp")
    if not isinstance(token_id, str) or not isinstance(expires_s, int | float):
        raise InvalidArgumentError("the token has no id (jti), so it can be revoked by removing its key only")
    return token_id, int(expires_s * 1_000_000)


@tokens_app.command("list")
def list_revoked(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the revoked tokens that have not expired. Other tokens are stored nowhere."""
    found = run_with_client(lambda client: client.security.revoked_tokens(), url, context)
    if output is Output.JSON:
        show_rows([to_plain(row) for row in found], [], output)
        return
    rows = [
        {
            "id": row.id,
            "revoked": moment(row.created_us, "-"),
            "by": row.created_by,
            "expires": moment(row.expires_us),
            "reason": row.reason,
        }
        for row in found
    ]
    show_rows(rows, ["id", "revoked", "by", "expires", "reason"], output)
