"""The configuration of a broker: defaults, overridden by a TOML file, overridden by command-line options.

A file looks like this; every key is optional, and an unknown key is refused with the nearest known name::

    listen = ["127.0.0.1:6650"]
    admin_listen = ["127.0.0.1:50051"]  # [] for no admin port
    data_directory = "./danube-data"
    durability = "disk"                 # default for new topics: none, os, disk or remote
    auto_create_topics = true
    journal_file_size = "64MiB"
    metadata = "embedded"
    storage = "disk"                    # where sealed history goes: a backend's name or URL
    cluster = "danube"

    [metadata]                          # instead of metadata = ..., for an engine with options
    url = "etcd://10.0.0.1:2379,10.0.0.2:2379/danube"
    options = { username = "danube", password = "..." }

    [storages.cold]                     # further storages, which topics may name
    url = "s3://bucket/prefix"
    options = { region = "eu-west-1" }

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
from typing import Any, Final

import msgspec

from danube.model import Durability, Limits, SubscriptionPolicy, TopicPolicies
from danube.model.addresses import DEFAULT_PORT, parse_address
from danube.model.errors import ConfigurationError, InvalidArgumentError, InvalidNameError
from danube.model.limits import MIB, check_limits
from danube.model.names import validate_identifier
from danube.model.policies import check_policy

__all__ = [
    "DEFAULT_ADMIN_PORT",
    "DEFAULT_STORAGE",
    "BrokerConfig",
    "MetadataConfig",
    "StorageConfig",
    "make_config",
    "parse_size",
]

DEFAULT_ADMIN_PORT: Final = 50051
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


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a broker."""

    listen: tuple[str, ...] = (f"127.0.0.1:{DEFAULT_PORT}",)
    """Addresses, ``host:port``. Port 0 takes a free one (the ready line shows it)."""
    admin_listen: tuple[str, ...] = (f"127.0.0.1:{DEFAULT_ADMIN_PORT}",)
    """Addresses of the admin port, in the form of :attr:`listen`. An empty list disables the admin port; a broker whose
    faces have no admin services has none either. Every client that can reach this port may do everything there: there
    is no authentication yet."""
    advertised_address: str = ""
    """Where official Danube clients are told to connect: ``host:port``, or a URL with ``http://`` or ``https://``. By
    default they are told to keep the address that they connected to."""
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
    log_level: str = "info"
    """debug, info, warning or error."""
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


def make_config(
    settings: dict[str, Any], overrides: dict[str, Any] | None = None, where: str = "options"
) -> BrokerConfig:
    """Make a configuration of settings.

    Args:
        settings: as in a TOML file.
        overrides: settings that win over them; None values are left out, ``limits`` is merged key by key.
        where: where the settings are from, for errors.

    Raises:
        ConfigurationError: unknown key (with the nearest known one), or a value of the wrong kind.
    """
    settings = dict(settings)
    limits = settings.get("limits", {})
    if not isinstance(limits, dict):
        raise ConfigurationError(f"{where}: [limits] must be a table")
    for key, value in (overrides or {}).items():
        if key == "limits":
            limits = {**limits, **value}
        elif value is not None:
            settings[key] = value
    if limits:
        settings["limits"] = limits
    _refuse_unknown(settings, BrokerConfig, where)
    _refuse_unknown(limits, Limits, f"{where}: [limits]")
    for table, kind in (
        ("metadata", MetadataConfig),
        ("policies", TopicPolicies),
        ("subscription_policy", SubscriptionPolicy),
    ):
        given = settings.get(table, {})
        if isinstance(given, dict):
            _refuse_unknown(given, kind, f"{where}: [{table}]")
    try:
        config = msgspec.convert(settings, BrokerConfig)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    try:
        _check(config)
    except (ConfigurationError, InvalidNameError) as error:
        raise ConfigurationError(f"{where}: {error}") from error.__cause__
    return config


def _check(config: BrokerConfig) -> None:
    if not config.listen:
        raise ConfigurationError("listen needs at least one address")
    for address in config.listen:
        parse_address(address)
    for address in config.admin_listen:
        parse_address(address, DEFAULT_ADMIN_PORT)
    if config.advertised_address:
        parse_address(config.advertised_address.removeprefix("http://").removeprefix("https://").rstrip("/"))
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
