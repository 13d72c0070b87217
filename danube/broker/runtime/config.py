"""The configuration of a broker: defaults, overridden by a TOML file, overridden by command-line options.

A file looks like this; every key is optional, and an unknown key is refused with the nearest known name::

    listen = ["127.0.0.1:6650"]
    admin_listen = ["127.0.0.1:50051"]  # [] for no admin port
    http_listen = ["127.0.0.1:8650"]    # [] for no HTTP API
    registry_listen = ["127.0.0.1:8081"]    # Confluent's REST of the schema registry; [] for none
    http_allowed_hosts = ["broker.example.org"]  # names by which browsers may call it, beside its addresses
    data_directory = "./danube-data"
    durability = "disk"                 # default for new topics: none, os, disk or remote
    auto_create_topics = true
    journal_file_size = "64MiB"
    metadata = "embedded"
    storage = "disk"                    # where sealed history goes: a backend's name or URL
    cluster = "danube"

    peers = "a,b,c"                     # the brokers that form a cluster; or join = "a", one of a cluster that exists
    advertise = "b:6650"                # where other brokers reach this one
    cluster_secret = "/etc/danube/secret"
    rack = "eu-west-1a"                 # what this broker shares with others that fail together with it

    log_level = "info"                  # debug, info, warning or error
    log_format = "text"                 # or json: one object a line

    insecure = false                    # true: listen where other machines can connect, without access control

    [metadata]                          # instead of metadata = ..., for an engine with options
    url = "etcd://10.0.0.1:2379,10.0.0.2:2379/danube"
    options = { username = "danube", password = "..." }

    [storages.cold]                     # further storages, which topics may name
    url = "s3://bucket/prefix"
    options = { region = "eu-west-1" }

    [security]                          # callers must prove who they are, and may do what roles and bindings grant
    enabled = true
    limits = { security_stale_s = 30 }  # danube/security/limits.py

    [[security.oidc]]                   # accept tokens of this issuer; repeat for more
    name = "login"                      # its principals are user:login/..., its groups group:login/...
    issuer = "https://login.example.org"
    audiences = ["danube"]
    groups_claim = "groups"

    [tls]                               # of both ports; the files are read again when they change
    cert = "/etc/danube/broker.pem"
    key = "/etc/danube/broker.key"
    client_ca = "/etc/danube/clients.pem"
    client_auth = "optional"            # or required, or none
    broker_ca = "/etc/danube/brokers.pem"  # of a cluster: signs the certificates of its brokers

    [balance]                           # of a cluster: the same on all brokers
    enabled = true                      # topics move by themselves to brokers with less load

    [limits]
    journal_max_bytes = 4294967296

    [policies]                          # of all topics; namespaces and topics may have their own
    message_ttl_s = 604800

    [subscription_policy]               # initial policy of new subscriptions
    max_redelivery_count = 10
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from danube.cluster.peer_list import parse_peers
from danube.model import Durability, Limits, SubscriptionPolicy, TopicPolicies
from danube.model.addresses import DEFAULT_PORT, is_loopback, parse_address, with_port
from danube.model.errors import (
    ClusterConfigurationError,
    ConfigurationError,
    InvalidArgumentError,
    InvalidNameError,
)
from danube.model.limits import MIB, check_limits
from danube.model.names import validate_identifier
from danube.model.policies import check_policy
from danube.model.tls import TlsConfig, check_tls

if TYPE_CHECKING:
    from danube.cluster.balance import Rules
    from danube.security.limits import SecurityLimits

__all__ = [
    "DEFAULT_ADMIN_PORT",
    "DEFAULT_HTTP_PORT",
    "DEFAULT_REGISTRY_PORT",
    "DEFAULT_STORAGE",
    "BalanceConfig",
    "BrokerConfig",
    "MetadataConfig",
    "OidcConfig",
    "SecurityConfig",
    "StorageConfig",
    "UpstreamTokens",
    "make_config",
    "parse_size",
]

DEFAULT_ADMIN_PORT: Final = 50051
DEFAULT_HTTP_PORT: Final = 8650
DEFAULT_REGISTRY_PORT: Final = 8081
DEFAULT_STORAGE: Final = "default"

_SIZE = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([kmgt]i?b?|b)?\s*", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class StorageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One storage: its URL, and the options of its backend."""

    url: str
    """``disk://``, ``s3://bucket/prefix`` ...; see ``danube plugins``."""
    options: dict[str, Any] = {}
    """Options of the backend. Options in the query of the URL take precedence."""
    max_concurrency: int | None = None
    """Lowers ``limits.storage_max_concurrency`` for this storage."""


class MetadataConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The metadata engine: its URL, and its options."""

    url: str
    """A plugin's name, or a URL: ``etcd://host:2379/prefix`` ...; see ``danube plugins``."""
    options: dict[str, Any] = {}
    """Options of the engine. Options in the query of the URL take precedence; secret ones must be here."""


class UpstreamTokens(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens that upstream's tools make: HS256, with a secret that all of them share. Off by default."""

    secret: str
    """At least 32 bytes; ``env:NAME`` or ``file:/path`` in a configuration file."""
    issuer: str = "danube-auth"
    """The ``iss`` of these tokens; others are refused."""


class OidcConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An OIDC issuer whose tokens are accepted, ``[[security.oidc]]``.

    Its principals are ``user:NAME/CLAIM``, and bindings grant roles to its groups as ``group:NAME/GROUP``: what people
    are called at one issuer never means those of another, nor the cluster's own.
    """

    name: str
    """In names of principals and groups, and in the log."""
    issuer: str
    """The ``iss`` of its tokens, to the letter. Without ``jwks`` its keys are found by
    ``ISSUER/.well-known/openid-configuration``."""
    audiences: tuple[str, ...]
    """One of these is required in ``aud``."""
    algorithms: tuple[Literal["RS256", "ES256", "EdDSA"], ...] = ("RS256",)
    """That its tokens may use."""
    jwks: str = ""
    """URL of its keys: ``https://``, ``file:///``, or ``http://`` on this machine."""
    ca: str = ""
    """PEM file with the authorities of its server's certificate; empty: those of the system."""
    name_claim: str = "sub"
    """The claim that names the caller."""
    groups_claim: str = ""
    """The claim with the list of the caller's groups; empty: groups are not used."""
    principals: Literal["user", "service"] = "user"
    """What its tokens are given to."""
    longest_life_s: float = 24 * 3600.0
    """Tokens that are valid for longer are refused."""


class SecurityConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Access control."""

    enabled: bool = False
    """Whether callers must prove who they are, and may do only what roles and bindings grant. The records are in the
    metadata: all brokers of a cluster have the same setting."""
    administrator: str = ""
    """Subject of the first administrator, ``user:NAME`` or ``service:NAME``: it is bound to the role admin when the
    broker finds a cluster without administrators. Later it has no effect."""
    spiffe_domain: str = ""
    """Trust domain whose SPIFFE ids in client certificates are principals, ``service:spiffe://DOMAIN/PATH``; empty:
    none are."""
    dns_names: bool = False
    """Whether the DNS name in a client certificate without another name is a principal, ``service:dns/NAME``."""
    audit_retention_s: float = 90 * 24 * 3600.0
    """How long the audit log is kept, in seconds; 0: for ever. It counts for logs that are created from now on."""
    oidc: tuple[OidcConfig, ...] = ()
    """Accepts tokens of these OIDC issuers."""
    upstream: UpstreamTokens | None = None
    """Accepts tokens of upstream's tools, ``[security.upstream]``; None: they are refused."""
    limits: dict[str, int | float] = {}
    """Limits that differ from the defaults of :class:`danube.security.limits.SecurityLimits`, by name."""

    @property
    def all_limits(self) -> SecurityLimits:
        """The limits.

        Raises:
            ConfigurationError: one is unknown, or has a value of the wrong kind.
        """
        from danube.security.limits import SecurityLimits  # not imported with security off

        _refuse_unknown(self.limits, SecurityLimits, "[security.limits]")
        try:
            return msgspec.convert(self.limits, SecurityLimits)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"[security.limits] {error}") from error


class BalanceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When topics move by themselves to brokers of the cluster with less load. That of the coordinator applies."""

    enabled: bool = True
    """Whether they do. Otherwise only ``danube cluster balance`` evens out the load."""
    interval_s: float = 20.0
    """How often the brokers are asked for their loads, 1 to 3,600: topics move once three rounds have found the same
    imbalance."""
    gain: float = 0.1
    """By which share the larger load of two brokers must become smaller, above 0 and below 1."""
    rest_s: float = 300.0
    """How long a topic stays where it has moved to, 0 to 86,400."""

    def __post_init__(self) -> None:
        if not 1 <= self.interval_s <= 3_600:
            raise ValueError(f"interval_s is {self.interval_s:g}; it must be from 1 to 3600 seconds")
        if not 0 < self.gain < 1:
            raise ValueError(f"gain is {self.gain:g}; it must be above 0 and below 1")
        if not 0 <= self.rest_s <= 86_400:
            raise ValueError(f"rest_s is {self.rest_s:g}; it must be from 0 to 86400 seconds")

    def rules(self) -> Rules:
        """Return the rules of the plans."""
        from danube.cluster.balance import Rules  # not imported by a broker alone

        return Rules(gain=self.gain, rest_s=self.rest_s)


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a broker."""

    listen: tuple[str, ...] = (f"127.0.0.1:{DEFAULT_PORT}",)
    """Addresses, ``host:port``. Port 0 takes a free one (the ready line shows it)."""
    admin_listen: tuple[str, ...] = (f"127.0.0.1:{DEFAULT_ADMIN_PORT}",)
    """Addresses of the admin port, in the form of :attr:`listen`. An empty list disables the admin port; a broker whose
    faces have no admin services has none either."""
    http_listen: tuple[str, ...] | None = None
    """Addresses of the HTTP API, in the form of :attr:`listen`; an empty list: there is none. None: the default,
    ``127.0.0.1:8650``, which is left out if another process has it. A broker whose faces serve no HTTP has none."""
    registry_listen: tuple[str, ...] | None = None
    """Addresses of Confluent's REST interface of the schema registry, in the form of :attr:`listen`; an empty list:
    there is none. None: the default, ``127.0.0.1:8081``, which is left out if another process has it, and where
    :attr:`http_listen` is an empty list."""
    http_allowed_hosts: tuple[str, ...] = ()
    """Names of hosts, without ports, by which the HTTP API may be called, beside ``localhost`` and its addresses. A
    page of another site can make a browser send requests here under a name of that site, and these are refused."""
    advertised_address: str = ""
    """Where official Danube clients are told to connect: ``host:port``, or a URL with ``http://`` or ``https://``. By
    default they are told to keep the address that they connected to."""
    client_url: str = ""
    """Where official Danube clients reach all brokers of a cluster: ``host:port``, or a URL, of a load balancer or a
    virtual address in front of them. Then they use nothing else, and whichever broker they reach relays their calls to
    the owner of the topic (proxy mode), so that they survive its death. Native clients do not need it."""
    data_directory: str = "./danube-data"
    """Directory of the journal and the metadata; created if missing. Used by one broker at a time."""
    durability: Durability = Durability.DISK
    """Durability of topics that are created without a durability of their own."""
    auto_create_topics: bool = True
    """Whether opening a producer creates its topic if that is missing."""
    journal_file_size: int | str = 64 * MIB
    """Size of one journal file: a number of bytes or a text such as ``64MiB``."""
    metadata: str | MetadataConfig = "embedded"
    """Metadata engine: a plugin's name, a URL, or a table with ``url`` and ``options``."""
    storage: str | StorageConfig = "disk"
    """Storage of sealed history, unless a topic names another storage: a backend's name, a URL, or a table."""
    storages: dict[str, StorageConfig] = {}
    """Additional storages by name."""
    cluster: str = "danube"
    """Name of the cluster: its folder in each storage. Brokers of different clusters may share a bucket."""
    peers: str = ""
    """The brokers that form the cluster, the same list on all of them: ``a,b:6651`` or ``127.0.0.1:6650-6652``. At
    their first start they wait for each other. Empty: the broker is alone, or joins."""
    join: str = ""
    """A broker of an existing cluster, ``host:port``, which this one is to join at its first start."""
    advertise: str = ""
    """``host:port`` at which other brokers, and their clients, reach this broker. By default the address in ``peers``
    that it listens on, or its first listen address."""
    cluster_secret: str = ""
    """File with the secret of the cluster, the same on all brokers. Without one, brokers link on one machine only."""
    rack: str = ""
    """Where this broker is: a rack, a room, an availability zone. Brokers with the same name are expected to fail
    together, so the partitions of a topic are spread over racks first. Empty: this broker fails alone."""
    balance: BalanceConfig = BalanceConfig()
    """Of a cluster: the same on all brokers."""
    insecure: bool = False
    """Whether the broker may listen on addresses that other machines can reach, although security is off: every client
    that reaches it may do everything. By default it listens on loopback addresses only then."""
    security: SecurityConfig = SecurityConfig()
    tls: TlsConfig | None = None
    """TLS of the client port and the admin port; None: they are plain ones."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_format: Literal["text", "json"] = "text"
    """Lines of text, or one JSON object a line; see ``docs/logs.md``."""
    drain_timeout_s: float = 10.0
    """How long the end of a publish stream, in a shutdown or otherwise, waits for its batches in flight."""
    sync_delay_ms: float = 0.0
    """Added to every fdatasync: lets benchmarks imitate slower disks."""
    limits: Limits = Limits()
    policies: TopicPolicies = TopicPolicies()
    """Policies for all topics. Values set by command or API for the broker, a namespace or a topic take precedence."""
    subscription_policy: SubscriptionPolicy = SubscriptionPolicy()
    """Policy of new subscriptions, unless their first consumer requests another one."""

    @property
    def http_addresses(self) -> tuple[str, ...]:
        """Addresses of the HTTP API, with their ports; the default one if none was configured."""
        given = (f"127.0.0.1:{DEFAULT_HTTP_PORT}",) if self.http_listen is None else self.http_listen
        return tuple(with_port(each, DEFAULT_HTTP_PORT) for each in given)

    @property
    def registry_addresses(self) -> tuple[str, ...]:
        """Addresses of the schema registry's REST interface, with their ports; the default, if none was configured."""
        default = () if self.http_listen == () else (f"127.0.0.1:{DEFAULT_REGISTRY_PORT}",)
        given = default if self.registry_listen is None else self.registry_listen
        return tuple(with_port(each, DEFAULT_REGISTRY_PORT) for each in given)

    @property
    def metadata_engine(self) -> MetadataConfig:
        """The metadata engine; its URL is complete."""
        found = self.metadata if isinstance(self.metadata, MetadataConfig) else MetadataConfig(url=self.metadata)
        return found if "://" in found.url else msgspec.structs.replace(found, url=f"{found.url}://")

    @property
    def all_storages(self) -> dict[str, StorageConfig]:
        """The storages by name; the default one, for topics that name none, is called ``default``."""
        default = self.storage
        if isinstance(default, str):
            default = StorageConfig(url=default if "://" in default else f"{default}://")
        return {DEFAULT_STORAGE: default} | self.storages

    @property
    def serves_tls(self) -> bool:
        """Whether the ports serve TLS only."""
        return self.tls is not None and not self.tls.plaintext

    @property
    def peer_addresses(self) -> tuple[str, ...]:
        """The brokers that form the cluster, each with its port; empty if the broker is alone, or joins."""
        return parse_peers(self.peers) if self.peers else ()

    @property
    def join_address(self) -> str:
        """The broker to join, with its port; empty if there is none."""
        return with_port(self.join, DEFAULT_PORT) if self.join else ""

    @property
    def has_neighbours(self) -> bool:
        """Whether it is started as one of several brokers."""
        return bool(self.peers or self.join)

    @property
    def metadata_scheme(self) -> str:
        """The name of the metadata engine."""
        return self.metadata_engine.url.partition(":")[0].lower()

    @property
    def journal_file_bytes(self) -> int:
        """The size of a journal file in bytes."""
        return parse_size(self.journal_file_size)

    @property
    def journal_files(self) -> int:
        """The most files that the limits of the journal allow, all of which are kept open; without stopped topics'."""
        size, limits = self.journal_file_bytes, self.limits
        return -(-(limits.journal_max_bytes + max(limits.journal_reserve_bytes, size)) // size)


def parse_size(value: int | str) -> int:
    """Turn ``67108864``, ``"64MiB"`` or ``"64M"`` into bytes (units are powers of 1024)."""
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(value)
    if not match:
        raise ConfigurationError(f"{value!r} is not a size; write a number of bytes or for example 64MiB")
    number, unit = match[1], _UNITS[(match[2] or "").lower()[:1]]
    return int(float(number) * unit) if "." in number else int(number) * unit


def _refuse_unknown(given: dict[str, Any], known: type[msgspec.Struct], where: str) -> None:
    for key in given:
        if key not in known.__struct_fields__:
            near = difflib.get_close_matches(key, known.__struct_fields__, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known.__struct_fields__)}"
            raise ConfigurationError(f"{where}: unknown setting {key!r}{hint}")


def _limit(name: str, value: Any, where: str) -> Any:
    """Return the value of a limit: sizes may be texts such as ``4GiB``, as elsewhere."""
    if not (isinstance(value, str) and name.endswith("_bytes")):
        return value
    try:
        return parse_size(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: [limits] {name}: {error}") from error


_MISMATCH: Final = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<given>[^`]+)`(?: - at `\$\.?(?P<place>[^`]+)`)?")
_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}


def _explained(error: msgspec.ValidationError) -> str:
    """Return what is wrong with a setting, in the words of TOML."""
    match = _MISMATCH.fullmatch(str(error))
    if match is None:
        return str(error)
    wanted = " or ".join(_KINDS.get(each, each) for each in match["wanted"].split(" | "))
    return f"{match['place'] or 'the file'} must be {wanted}, not {_KINDS.get(match['given'], match['given'])}"


def make_config(
    settings: dict[str, Any], overrides: dict[str, Any] | None = None, where: str = "options"
) -> BrokerConfig:
    """Make a configuration of settings.

    Args:
        settings: as in a TOML file.
        overrides: settings that win over them; None values are left out, ``limits`` and ``tls`` are merged key by key.
        where: where the settings are from, for errors.

    Raises:
        ConfigurationError: unknown key (with the nearest known one), or a value of the wrong kind.
        ClusterConfigurationError: the settings about other brokers are wrong.
    """
    settings = dict(settings)
    limits = settings.get("limits", {})
    if not isinstance(limits, dict):
        raise ConfigurationError(f"{where}: [limits] must be a table")
    for key, value in (overrides or {}).items():
        if key == "limits":
            limits = {**limits, **value}
        elif key == "tls" and value is not None:
            settings[key] = {**settings.get(key, {}), **value}
        elif value is not None:
            settings[key] = value
    if limits:
        settings["limits"] = limits = {name: _limit(name, value, where) for name, value in limits.items()}
    _refuse_unknown(settings, BrokerConfig, where)
    _refuse_unknown(limits, Limits, f"{where}: [limits]")
    for table, kind in (
        ("metadata", MetadataConfig),
        ("security", SecurityConfig),
        ("tls", TlsConfig),
        ("policies", TopicPolicies),
        ("subscription_policy", SubscriptionPolicy),
    ):
        given = settings.get(table, {})
        if isinstance(given, dict):
            _refuse_unknown(given, kind, f"{where}: [{table}]")
    try:
        config = msgspec.convert(settings, BrokerConfig)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {_explained(error)}") from error
    try:
        _check(config)
    except ClusterConfigurationError as error:
        raise ClusterConfigurationError(f"{where}: {error}") from error.__cause__
    except (ConfigurationError, InvalidNameError) as error:
        raise ConfigurationError(f"{where}: {error}") from error.__cause__
    return config


def _check_cluster(config: BrokerConfig) -> None:
    """Check what the broker knows of others before it starts."""
    if config.peers and config.join:
        raise ClusterConfigurationError(
            "--peers lists the brokers that form a cluster, and --join names one of a cluster that exists; give one of"
            " them"
        )
    for option, address in (("--join", config.join), ("--advertise", config.advertise)):
        if not address:
            continue
        try:
            host, port = parse_address(address)
        except ConfigurationError as error:
            raise ClusterConfigurationError(f"{option} {address!r} is not host:port") from error
        if not port or _is_wildcard(host):
            raise ClusterConfigurationError(
                f"{option} {address} is no address that other brokers can connect to; write the host's name or address,"
                " and the port"
            )
    if config.rack:
        try:
            validate_identifier("rack", config.rack)
        except InvalidNameError as error:
            raise ClusterConfigurationError(f"--rack: {error}") from error
    others = (*config.peer_addresses, *filter(None, [config.join_address]))
    exposed = [each for each in (*config.listen, *others) if not is_loopback(parse_address(each)[0])]
    if others and exposed and not config.cluster_secret:
        raise ClusterConfigurationError(
            f"a cluster on several machines needs --cluster-secret FILE, the same on all brokers: {exposed[0]} is not"
            " this machine alone; make one with: umask 077; openssl rand -hex 32 > FILE"
        )
    if config.security.enabled and others and not config.cluster_secret:
        raise ClusterConfigurationError(
            "with [security] enabled, the brokers of a cluster need --cluster-secret FILE, the same on all brokers: it"
            " proves who they are to each other; make one with: umask 077; openssl rand -hex 32 > FILE"
        )
    if others and config.tls is not None and not (config.tls.plaintext or config.tls.broker_ca):
        raise ClusterConfigurationError(
            "a cluster with TLS needs [tls] broker_ca (--tls-broker-ca FILE), the authority of its brokers'"
            " certificates: with it they verify each other"
        )
    everywhere = [each for each in config.listen if _is_wildcard(parse_address(each)[0])]
    if (others or config.cluster_secret) and everywhere and not config.advertise:
        raise ClusterConfigurationError(
            f"the broker listens on {everywhere[0]}, so it does not know where other brokers reach it; add --advertise"
            " HOST:PORT"
        )


def _is_wildcard(host: str) -> bool:
    """Whether a host stands for all addresses of the machine."""
    return host in ("0.0.0.0", "::")


def _check_oidc(config: BrokerConfig) -> None:
    """Check the OIDC issuers. An issuer with a name of another kind of tokens would take their place."""
    security = config.security
    if not security.oidc:
        return
    most = security.all_limits.max_oidc_issuers
    if len(security.oidc) > most:
        raise ConfigurationError(
            f"[[security.oidc]] names {len(security.oidc)} issuers, and max_oidc_issuers is {most}"
        )
    names = {"dns"}  # of names in client certificates
    issuers = {config.cluster} | ({security.upstream.issuer} if security.upstream is not None else set())
    for each in security.oidc:
        where = f"[[security.oidc]] {each.name!r}"
        validate_identifier("OIDC issuer", each.name)
        if each.name in names or each.issuer in issuers:
            raise ConfigurationError(f"{where}: its name or its issuer is in use already; each needs its own")
        names.add(each.name)
        issuers.add(each.issuer)
        if not each.audiences or not all(each.audiences):
            raise ConfigurationError(f"{where} needs audiences: without, it would accept tokens for other services")
        if not each.issuer or not each.algorithms or not each.name_claim or not each.longest_life_s > 0:
            raise ConfigurationError(f"{where} needs an issuer, algorithms, a name_claim, and a longest_life_s above 0")
        for option, url in (("issuer", each.issuer), ("jwks", each.jwks)):
            if (option == "jwks" or not each.jwks) and (url or option == "issuer"):
                _check_document_url(f"{where}: {option}", url, is_file_allowed=option == "jwks")


def _check_document_url(what: str, url: str, *, is_file_allowed: bool) -> None:
    from urllib.parse import urlsplit  # not imported without OIDC issuers

    allowed = "https://HOST/..., or http:// on this machine" + (", or file:///PATH" if is_file_allowed else "")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigurationError(f"{what} = {url!r} is no URL; use {allowed}") from error
    if parts.scheme == "file":
        is_fine = is_file_allowed and not host and parts.path.startswith("/")
    else:
        is_fine = bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))
    if not is_fine or "@" in parts.netloc or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigurationError(f"{what} = {url!r} cannot be used; use {allowed}, without a password in it")


def _check(config: BrokerConfig) -> None:
    if not config.listen:
        raise ConfigurationError("listen needs at least one address")
    for address in config.listen:
        parse_address(address)
    for address in config.admin_listen:
        parse_address(address, DEFAULT_ADMIN_PORT)
    for address in config.http_listen or ():
        parse_address(address, DEFAULT_HTTP_PORT)
    for address in config.registry_listen or ():
        parse_address(address, DEFAULT_REGISTRY_PORT)
    for name in config.http_allowed_hosts:
        if not name or not name.isascii() or set(name) & set("/:@ *") or name != name.strip("[]"):
            raise ConfigurationError(f"http_allowed_hosts: {name!r} is no name of a host; leave out port and brackets")
    if config.advertised_address:
        parse_address(config.advertised_address.removeprefix("http://").removeprefix("https://").rstrip("/"))
    if config.client_url:
        try:
            parse_address(config.client_url.removeprefix("http://").removeprefix("https://").rstrip("/"))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"client_url = {config.client_url!r} is neither host:port nor a URL with http:// or https://"
            ) from error
    if config.tls is not None:
        check_tls(config.tls)
    _check_cluster(config)
    _check_oidc(config)
    if config.security.enabled or config.security.limits:
        _ = config.security.all_limits
    limits = config.limits
    check_limits(limits)
    if limits.max_message_bytes >= limits.max_batch_bytes:
        raise ConfigurationError("limits.max_batch_bytes must be larger than limits.max_message_bytes")
    for name in ("drain_timeout_s", "sync_delay_ms"):
        if not 0 <= getattr(config, name) <= 1e9:  # not a number is refused, too
            raise ConfigurationError(f"{name} = {getattr(config, name)} must be from 0 to 1e9")
    file_bytes = config.journal_file_bytes
    if file_bytes < limits.max_batch_bytes + MIB:
        raise ConfigurationError(
            f"journal_file_size = {file_bytes} must exceed limits.max_batch_bytes"
            f" = {limits.max_batch_bytes} by at least 1 MiB, since a batch never spans two files"
        )
    if limits.journal_max_bytes < 2 * file_bytes:
        raise ConfigurationError(
            f"limits.journal_max_bytes = {limits.journal_max_bytes} must hold at least two journal files"
            f" of {file_bytes} bytes"
        )
    validate_identifier("cluster", config.cluster)
    for table, policy in (("policies", config.policies), ("subscription_policy", config.subscription_policy)):
        try:
            check_policy(policy)
        except InvalidArgumentError as error:
            raise ConfigurationError(f"[{table}] {error}") from error
    for name in config.storages:
        validate_identifier("storage", name)
        if name == DEFAULT_STORAGE:
            raise ConfigurationError(
                f"the storage called {DEFAULT_STORAGE!r} is set with storage = ..., not in a table"
            )
    if config.log_level not in ("debug", "info", "warning", "error"):
        raise ConfigurationError(f"log_level {config.log_level!r} is not debug, info, warning or error")
