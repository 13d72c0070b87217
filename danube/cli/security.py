"""``danube security``: who may do what, and why."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from danube.cli._audit import Entry, audit_line, read_audit
from danube.cli._client import run_with_client, to_plain
from danube.cli._context import Context, ContextOption, UrlOption, changing_contexts
from danube.cli._durations import parse_duration
from danube.cli._moments import moment, split_words
from danube.cli._output import Output, OutputOption, print_json, show_rows
from danube.model.errors import FailedPreconditionError
from danube.model.security_api import ReloadedSecurity

__all__ = ["security_app"]

security_app = typer.Typer(no_args_is_help=True, help="Show who may do what, and why.")


@security_app.command("init")
def init(
    host: Annotated[
        list[str],
        typer.Option(metavar="HOST", help="Name or address of the broker; repeat for more."),
    ],
    broker: Annotated[
        str | None, typer.Option(metavar="NAME", help="b2 and so on: write a bundle for another broker of the cluster.")
    ] = None,
    cluster: Annotated[str, typer.Option(metavar="NAME", help="Name of the cluster.")] = "danube",
    directory: Annotated[
        str, typer.Option(metavar="DIRECTORY", help="Where certificates and secrets are written.")
    ] = "danube-security",
    data_dir: Annotated[
        str, typer.Option(metavar="DIRECTORY", help="The data directory, which gets the signing key.")
    ] = "danube-data",
    config: Annotated[str, typer.Option("-c", "--config", metavar="FILE", help="The configuration.")] = "danube.toml",
    expires: Annotated[str, typer.Option(metavar="TIME", help="Life of the administrator's token.")] = "365d",
) -> None:
    """Write what a broker needs for access control and TLS: certificates, a signing key, a configuration.

    Also a token of the first administrator, user:admin, and the context 'admin', which uses it. Run this before the
    broker is started, on its machine; no broker is asked.
    """
    from danube.cli._security_files import add_broker, address_of, begin

    if broker is not None:
        bundle = add_broker(Path(directory), cluster, broker, host)
        print(f"wrote {bundle.directory}: copy it to the machine of {broker}, and start the broker there:")
        print(f"  danube serve --config danube.toml --listen 0.0.0.0:6650 --join {shlex.quote(bundle.joins)}")
        return
    made = begin(Path(directory), Path(data_dir), Path(config), cluster, host, parse_duration(expires))
    with changing_contexts() as stored:
        stored.contexts["admin"] = Context(
            f"danube+tls://{address_of(host[0])}",
            f"administrator of {cluster}",
            ca=str(made.ca),
            token_file=str(made.token),
        )
        stored.current = "admin"
    print(f"wrote {made.config}, the authority {made.ca} and the token {made.token}; the context is 'admin'")
    print(f"next: danube serve --config {shlex.quote(config)} --listen 0.0.0.0:6650")


@security_app.command("explain")
def explain(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="user:NAME or service:NAME.")],
    permission: Annotated[str, typer.Argument(metavar="PERMISSION", help="Lookup, Produce, Consume, ManageTopic ...")],
    resource: Annotated[
        str, typer.Argument(metavar="RESOURCE", help="/ns/topic, /ns/topic#subscription, namespace:NAME or cluster.")
    ],
    group: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A group of the subject; repeat for more.")
    ] = None,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say whether a principal has a permission on a resource, and which grant gives it, or why none does."""
    found = run_with_client(
        lambda client: client.security.explain(subject, permission, resource, groups=split_words(group)), url, context
    )
    if output is Output.JSON:
        print_json(to_plain(found))
    else:
        print(f"{'allowed' if found.allowed else 'denied'}: {found.reason}")


@security_app.command("whoami")
def whoami(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show who you are for the broker, how that was proven, and what you may do."""
    found = run_with_client(lambda client: client.security.who_am_i(), url, context)
    if output is Output.JSON:
        print_json(to_plain(found))
        return
    if not found.secured:
        print(f"{found.subject}: the broker has no access control, so every caller may do everything")
        return
    until = f" until {moment(found.expires_us)}" if found.expires_us else ""
    print(f"{found.subject}, proven by {found.proof}{until}")
    for grant in found.grants:
        print(f"  {grant.scope}: {', '.join(grant.permissions)}")
    if found.more:
        print("  and more")
    if not found.grants:
        print("  it may do nothing; an administrator grants roles with: danube grant ROLE to SUBJECT on SCOPE")


@security_app.command("reload")
def reload(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """Have a broker read its certificates and the keys of OIDC issuers again, and say what it uses now.

    It looks for new certificates each 5 s by itself, and for new keys each 10 min. Fails if something cannot be used.
    """
    found = run_with_client(lambda client: client.security.reload(), url, context)
    problems = [each for each in (found.certificate_problem, *(each.problem for each in found.issuers)) if each]
    if output is Output.JSON:
        print_json(to_plain(found))
    else:
        for line in _reloaded_lines(found):
            print(line)
    if problems:
        raise FailedPreconditionError("; ".join(f"what was used before stays: {each}" for each in problems))


def _reloaded_lines(found: ReloadedSecurity) -> list[str]:
    lines = ["the broker has no certificate: its ports have no TLS"]
    if found.certificate_names:
        names = ", ".join(name.partition(":")[2] for name in found.certificate_names)
        lines = [f"new connections use the certificate of {names}, until {moment(found.certificate_expires_us)}"]
    return lines + [
        f"OIDC issuer {each.name}: {each.keys} {'key' if each.keys == 1 else 'keys'}" for each in found.issuers
    ]


@security_app.command("bindings")
def list_bindings(
    subject: Annotated[str, typer.Option(metavar="SUBJECT", help="Only those of this subject.")] = "",
    on: Annotated[str, typer.Option("--on", metavar="SCOPE", help="Only those with exactly this scope.")] = "",
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the bindings: which subject has which roles within which scope."""
    rows = [
        to_plain(row) for row in run_with_client(lambda client: client.security.bindings(subject, on), url, context)
    ]
    show_rows(rows, ["id", "subject", "roles", "scope", "created_by"], output)


@security_app.command("audit")
def audit(
    since: Annotated[str, typer.Option(metavar="TIME", help="How far back, such as 1h or 7d.")] = "1d",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the audit log: who changed, opened or was denied what, and which credentials were refused.

    The brokers write it to topics of their own, /system/audit-b1 and so on; other tools can consume these.
    """
    since_us = max(0, round((time.time() - parse_duration(since)) * 1e6))

    def show(entry: Entry) -> None:
        print(msgspec.json.encode(entry).decode() if output is Output.JSON else audit_line(entry), flush=True)

    run_with_client(lambda client: read_audit(client, since_us, show, follow=follow), url, context)
