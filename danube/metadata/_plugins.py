"""Metadata plugins: finds, loads and opens engines by the scheme of a URL.

A plugin is a class registered in the entry-point group ``danube.metadata`` under its scheme::

    [project.entry-points."danube.metadata"]
    etcd = "danube_metadata_etcd:EtcdPlugin"

The built-in ones are registered in the same way; a source checkout that is not installed has no entry points, so their
entries are also listed here and used if the installed ones are missing.

The URL ``scheme://host:port/path?option=value`` is parsed once, here. Options come from its query and from the
configuration file's table; together they are validated by the plugin's config Struct.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import trio

from danube.metadata._contract import MetadataStore
from danube.metadata._local import Clock
from danube.model.entry_points import built_in_points, entry_points, load_target
from danube.model.errors import ConfigurationError
from danube.model.limits import Limits
from danube.raft import Conf, NodeId

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from danube.metadata.raft.links import PeerLinks

__all__ = [
    "GROUP",
    "Group",
    "KNOWN_PACKAGES",
    "InstalledPlugin",
    "MetadataPlugin",
    "Surroundings",
    "install_command",
    "installed_plugins",
    "open_store",
]

GROUP = "danube.metadata"
"""Entry-point group of metadata engines."""

_BUILT_IN = {
    "memory": "danube.metadata.memory:MemoryPlugin",
    "embedded": "danube.metadata.embedded:EmbeddedPlugin",
}

KNOWN_PACKAGES = {
    "etcd": "danube-metadata-etcd",
    "raftos": "danube-metadata-raftos",
    "zookeeper": "danube-metadata-zookeeper",
}
"""Schemes with a known package, and its name for ``pip install``."""


def install_command(scheme: str) -> str:
    """Return the command that installs the plugin of a scheme; derived by the naming rule if the scheme is unknown."""
    return f"pip install {KNOWN_PACKAGES.get(scheme, f'danube-metadata-{scheme}')}"


class Group(msgspec.Struct, frozen=True):
    """The place of this broker among the brokers that keep the metadata together, for an engine inside the brokers."""

    member: NodeId
    """Its member id."""
    first_conf: Conf | None
    """The members that the group begins with; None: it exists, and this member joins it. Only for a new member."""
    links: PeerLinks | None = None
    """To the other members; None: there are none."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Data passed to a plugin besides its own options."""

    scheme: str
    location: str = ""
    """Host and port of the URL, as written; user information included."""
    path: str = ""
    """Path of the URL, decoded."""
    data_directory: Path | None = None
    """The broker's data directory, for engines that keep files; None if there is none."""
    group: Group | None = None
    """None: this broker is alone."""
    limits: Limits = Limits()
    clock: Clock = trio.current_time
    random: Random = msgspec.field(default_factory=Random)
    """The source of randomness."""


Config = TypeVar("Config", bound=msgspec.Struct)


class MetadataPlugin(ABC, Generic[Config]):
    """Base class of a metadata engine's plugin."""

    name: ClassVar[str]
    """The URL scheme."""
    summary: ClassVar[str]
    """Half a line for ``danube plugins``."""
    config: ClassVar[type[msgspec.Struct]]
    """The engine's options. Their docstrings are shown by ``danube plugins --options``."""
    secrets: ClassVar[frozenset[str]] = frozenset()
    """Options that a URL must not contain: it is shown in logs and in lists of processes."""

    @abstractmethod
    def open(self, config: Config, surroundings: Surroundings) -> AbstractAsyncContextManager[MetadataStore]:
        """Return a context manager that opens the store, entered and ready for use, and closes it."""


class InstalledPlugin(msgspec.Struct, frozen=True):
    """One available metadata engine."""

    scheme: str
    target: str
    """``module:Class``."""
    distribution: str | None
    """The package that provides it; None for a built-in one in a source checkout."""
    version: str | None
    built_in: bool


def installed_plugins() -> list[InstalledPlugin]:
    """Return the installed metadata engines, sorted by scheme. Does not import them."""
    built_in = set(_BUILT_IN.values())
    return [
        InstalledPlugin(
            entry.name,
            entry.value,
            entry.dist.name if entry.dist else None,
            entry.dist.version if entry.dist else None,
            entry.value in built_in,
        )
        for entry in sorted(_entries().values())
    ]


@asynccontextmanager
async def open_store(
    url: str,
    *,
    data_directory: Path | None = None,
    options: Mapping[str, Any] | None = None,
    group: Group | None = None,
    limits: Limits | None = None,
    clock: Clock = trio.current_time,
    random: Random | None = None,
) -> AsyncIterator[MetadataStore]:
    """Open the metadata store of a URL, and close it at the end of the block.

    ``memory://`` and ``embedded://`` (in the data directory) or ``embedded:///a/directory`` are built in. ``options``
    are options of the engine from a configuration file; options in the URL's query take precedence. ``group`` is this
    broker's place in a cluster, for an engine that runs inside the brokers. Raises
    :class:`ConfigurationError` for an invalid URL, scheme or option (without the option's value), and the engine's
    errors if it cannot be opened.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"the metadata URL is not valid: {error}") from None
    if not parts.scheme or "://" not in url:
        raise ConfigurationError(f"metadata URL {url!r} is not valid: write scheme://..., for example embedded://")
    plugin = _load(parts.scheme)
    config = _configure(plugin, parts.scheme, options or {}, dict(parse_qsl(parts.query, keep_blank_values=True)))
    surroundings = Surroundings(
        scheme=parts.scheme,
        location=parts.netloc,
        path=unquote(parts.path),
        data_directory=data_directory,
        group=group,
        limits=limits if limits is not None else Limits(),
        clock=clock,
        random=random or Random(),
    )
    async with plugin.open(config, surroundings) as store:
        yield store


def _configure(
    plugin: MetadataPlugin[Any], scheme: str, options: Mapping[str, Any], query: Mapping[str, str]
) -> msgspec.Struct:
    known = [field.encode_name for field in msgspec.structs.fields(plugin.config)]
    given = {**options, **query}
    for option in given:
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'none'}"
            raise ConfigurationError(f"the metadata engine {scheme!r} has no option {option!r}; {remedy}")
        if option in plugin.secrets and option in query:
            raise ConfigurationError(
                f"the option {option!r} of the metadata engine {scheme!r} is a secret and must not be in the URL, which"
                f" is shown in logs: set it in the configuration file, [metadata] options = {{ {option} = ... }}"
            )
    try:
        # Not strict: values from a query are strings. The message names the option and the type, never the value.
        return msgspec.convert(given, plugin.config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"options of the metadata engine {scheme!r} are wrong: {error}") from None


def _entries() -> dict[str, EntryPoint]:
    return built_in_points(GROUP, _BUILT_IN) | {entry.name: entry for entry in entry_points(group=GROUP)}


def _load(scheme: str) -> MetadataPlugin[Any]:
    # Looking at all installed packages takes longer than opening the store.
    targets = _BUILT_IN if scheme in _BUILT_IN else {name: entry.value for name, entry in _entries().items()}
    target = targets.get(scheme)
    if target is None:
        raise ConfigurationError(
            f"there is no metadata engine for {scheme!r}; installed: {', '.join(sorted(targets))};"
            f" to add one: {install_command(scheme)}"
        )
    try:
        plugin = load_target(target)()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"the metadata engine {scheme!r} ({target}) cannot be loaded: {error}") from error
    if not isinstance(plugin, MetadataPlugin):
        raise ConfigurationError(f"the metadata engine {scheme!r} ({target}) is not a MetadataPlugin")
    return plugin
