"""Access control of one broker: the gate and what proves credentials, its signing key, and its audit log.

A broker with security off does not import this module, nor anything that only this needs.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio

from danube.broker.audit_log import AuditLog
from danube.broker.operations.security import SecurityOperations
from danube.broker.operations.security_start import begin_security
from danube.broker.security.auditing import Audit
from danube.broker.security.gate import Gate, Links
from danube.broker.security.numbers import NumberedObjects
from danube.broker.security.oidc import OidcIssuer, OidcIssuers
from danube.model import Durability, Rate, Retention, TopicPolicies
from danube.model.errors import NotOwnerError
from danube.model.log_events import log_event
from danube.security.audit import AuditKind
from danube.security.certificates import CertificateRules
from danube.security.claims import OidcClaims
from danube.security.guard import Guard
from danube.security.proofs import upstream_key
from danube.security.roles import PrincipalType

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.faces import Face
    from danube.broker.runtime.config import OidcConfig
    from danube.broker.runtime.runtime import Runtime
    from danube.broker.topic.topic import Topic
    from danube.metadata import MetadataStore
    from danube.security.keys import SigningKey
    from danube.wire.tls import ServerTls

__all__ = ["AccessControl"]

_log = logging.getLogger("danube.broker")


class _Refused(NamedTuple):
    """A call that a face has refused; a :class:`danube.broker.security.auditing.Origin`."""

    peer: str
    path: str


class AccessControl:
    """Access control of one broker.

    Args:
        runtime: of the broker.
        faces: whose producers and consumers requests name by numbers.
        secret: of the cluster; None: there are no links to other brokers.

    Attributes:
        gate: through which all calls pass; it lets none pass before :meth:`start`.
        numbers: objects that requests name by numbers.
        oidc: the issuers of OIDC; None: none are configured.
    """

    def __init__(self, runtime: Runtime, faces: Sequence[Face], secret: bytes | None) -> None:
        self._runtime = runtime
        config = self._config = runtime.config
        security = config.security
        self.numbers = NumberedObjects(faces)
        guard = Guard(config.cluster, security.all_limits, trio.current_time())
        self.oidc = self._follow_issuers(guard)
        names = CertificateRules(config.cluster, security.spiffe_domain, security.dns_names)
        links = Links.NONE
        if secret is not None:
            links = Links.CERTIFICATE if config.tls is not None and config.tls.certifies_brokers else Links.SECRET
        audit = Audit(security.all_limits, runtime.clock_us)
        self.gate = Gate(guard, self.numbers, lambda: runtime.clock_us() / 1e6, names, links, audit)
        self._signing: SigningKey | None = None
        self._audit_log: AuditLog | None = None

    def _follow_issuers(self, guard: Guard) -> OidcIssuers | None:
        """Let the guard trust the configured issuers, whose keys may change."""
        security = self._config.security
        upstream = (
            [(None, upstream_key(security.upstream.issuer, security.upstream.secret))]
            if security.upstream is not None
            else []
        )
        issuers = tuple(each.issuer for each in security.oidc)
        guard.configure(upstream, issuers)
        if not security.oidc:
            return None
        followed = OidcIssuers(
            [_issuer(each) for each in security.oidc],
            security.all_limits,
            self._runtime.seams.fetch,
            lambda trusted: guard.configure([*upstream, *trusted], issuers),
        )
        guard.on_unknown_key = followed.unknown_key
        return followed

    async def start(self, nursery: trio.Nursery, store: MetadataStore, directory: Directory) -> None:
        """Load the records, register the key of this broker and the first administrator, and keep the audit log.

        Args:
            nursery: runs the tasks; the gate must follow the metadata by now.
            store: the metadata.
            directory: the topics of this broker.
        """
        await nursery.start(self.gate.run)
        if self.oidc is not None:
            await nursery.start(self.oidc.run)
        config, runtime = self._config, self._runtime
        self._signing = await begin_security(
            store,
            self.gate.replica,
            config.cluster,
            Path(config.data_directory),
            config.security.administrator,
            runtime.clock_us,
            runtime.seams.random_bytes,
        )
        self._audit_log = AuditLog(self.gate.audit, directory.broker, runtime.clock_us)
        nursery.start_soon(self._audit_log.run, partial(self._audit_topic, directory))

    async def close(self) -> None:
        """Write what the audit log has still to write."""
        if self._audit_log is not None:
            await self._audit_log.close()

    def operations(self, store: MetadataStore, tls: ServerTls | None) -> SecurityOperations:
        """Return the operations on access control.

        Args:
            store: the metadata.
            tls: of the ports.
        """
        return SecurityOperations(
            store,
            self.gate.replica,
            self._config.cluster,
            self._runtime.clock_us,
            self._runtime.seams.random_bytes,
            self._config.security.all_limits,
            self._signing,
            tls,
            self.oidc,
        )

    def denials(self) -> tuple[int, int]:
        """Return how many calls were denied, and how many credentials were refused."""
        counts = self.gate.audit.counts
        return counts[AuditKind.DENIED], counts[AuditKind.REFUSED]

    def note_refused(self, peer: str, path: str, reason: str) -> None:
        """Enter in the audit log that a face has refused a call of an address, on a path, for a reason."""
        self.gate.audit.refused(_Refused(peer, path), reason)

    async def _audit_topic(self, directory: Directory, first: str) -> Topic:
        """Return the topic of this broker's audit log; create it if it does not exist.

        A topic that cannot be the log, because it was created before access control was switched on, or because
        another broker has it now, is left alone: the log has another name then.

        Args:
            directory: the topics of this broker.
            first: its name, if possible.
        """
        name = first
        for number in itertools.count(2):
            record = directory.catalogue.find(name)
            if record is None:
                # A rate of the broker's policies must not hold up the log.
                policies = TopicPolicies(
                    retention=Retention(max_age_s=self._config.security.audit_retention_s), publish_rate=Rate()
                )
                await directory.create(name, Durability.DISK, 0, policies=policies, here=True)
                record = directory.catalogue.find(name)
            level = directory.level(record) if record is not None and not record.partitions else None
            if level is not None and level.keeps and not level.forgets_unsynced:
                try:
                    return await directory.search(name)
                except NotOwnerError as error:
                    _log.warning(
                        "the audit log cannot be continued: %s", error, extra=log_event("audit.delayed", topic=name)
                    )
            name = f"{first}-{number}"
        raise AssertionError("unreachable")


def _issuer(config: OidcConfig) -> OidcIssuer:
    return OidcIssuer(
        config.name,
        config.issuer,
        config.audiences,
        config.algorithms,
        config.jwks,
        config.ca,
        OidcClaims(f"{config.name}/", config.name_claim, config.groups_claim, PrincipalType(config.principals)),
        config.longest_life_s,
    )
