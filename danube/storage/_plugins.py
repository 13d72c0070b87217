"""Storage backends are plugins, chosen by the scheme of a URL.

A plugin is a class registered in the entry-point group ``danube.storage`` under its scheme::

    [project.entry-points."danube.storage"]
    s3 = "danube_storage_s3:S3StoragePlugin"

The built-in ones register the same way; a source checkout that is not installed has no entry points, so their entries
are also written down here and used if the installed ones are missing.

The URL ``scheme://location/path?option=value`` is taken apart once, in :mod:`danube.storage._url`. Options come from
its query and from the configuration file's table; together they are validated by the plugin's config Struct, whose
fields are the options, with their defaults. A scheme with a ``+`` is looked up as a whole (``s3+obstore``), apart from
``fsspec+PROTOCOL``, which is the generic backend for any protocol that fsspec knows.
"""

from __future__ import annotations

import difflib
import random as random_module
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from danube.model.errors import ConfigurationError
from danube.model.limits import Limits
from danube.storage._contract import StorageBackend
from danube.storage._storage import Storage
from danube.storage._url import ALIASES, parse_url

__all__ = [
    "GROUP",
    "InstalledStoragePlugin",
    "KNOWN_PACKAGES",
    "StoragePlugin",
    "StorageSurroundings",
    "WallClock",
    "install_command",
    "installed_plugins",
    "load_plugin",
    "open_backend",
    "open_storage",
    "system_wall_clock_us",
]

GROUP = "danube.storage"
"""Entry-point group of storage backends."""

WallClock = Callable[[], int]
"""Returns microseconds since the epoch."""

_BUILT_IN = (
    EntryPoint("memory", "danube.storage.memory:MemoryStoragePlugin", GROUP),
    EntryPoint("disk", "danube.storage.disk:DiskStoragePlugin", GROUP),
    EntryPoint("fsspec", "danube.storage.fsspec:FsspecStoragePlugin", GROUP),
)

KNOWN_PACKAGES = {
    "s3": "danube-storage-s3",
    "s3+obstore": "danube-storage-s3[obstore]",
    "gcs": "danube-storage-gcs",
    "azure": "danube-storage-azure",
    "redis": "danube-storage-redis",
    "rediss": "danube-storage-redis",
    "remote": "danube-storage-remote",
}
"""Schemes whose package is known, and what to give to ``pip install`` for them."""


def install_command(scheme: str) -> str:
    """Return the command that installs the plugin of a scheme; a guess by the naming rule if it is not a known one."""
    package = KNOWN_PACKAGES.get(scheme, f"danube-storage-{scheme}")
    return f"pip install '{package}'" if "[" in package else f"pip install {package}"


def system_wall_clock_us() -> int:
    """Return the time of the machine, microseconds since the epoch: the real one behind :data:`WallClock`."""
    return time.time_ns() // 1000


class StorageSurroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin is given beside its own options."""

    scheme: str
    """The scheme, aliases resolved: ``gcs`` for ``gs://``."""
    location: str = ""
    """Bucket, or host and port, of the URL, as written; user information included."""
    path: str = ""
    """Path of the URL, decoded, with the slash it begins with."""
    url: str = ""
    """The URL without secrets: what the backend returns as its :attr:`~StorageBackend.url`."""
    data_directory: Path | None = None
    """The broker's data directory, for backends that keep files; None if there is none."""
    limits: Limits = Limits()
    wall_clock_us: WallClock = system_wall_clock_us


Config = TypeVar("Config", bound=msgspec.Struct)


class StoragePlugin(ABC, Generic[Config]):
    """Base class of a storage backend's plugin. Built without arguments, once for each storage that is opened."""

    name: ClassVar[str]
    """The URL scheme."""
    summary: ClassVar[str]
    """Half a line for ``danube plugins``."""
    config: ClassVar[type[msgspec.Struct]]
    """The backend's options. Their docstrings are shown by ``danube plugins --options``."""

    @abstractmethod
    def open(self, config: Config, surroundings: StorageSurroundings) -> AbstractAsyncContextManager[StorageBackend]:
        """Return a context manager that opens the backend, entered and ready for use, and closes it.

        Raises:
            ConfigurationError: the URL or the options are wrong (no bucket, say).
        """


class InstalledStoragePlugin(msgspec.Struct, frozen=True):
    """One storage backend that can be used."""

    scheme: str
    target: str
    """``module:Class``."""
    distribution: str | None
    """The package that brought it; None for a built-in one in a source checkout."""
    version: str | None
    built_in: bool


def installed_plugins() -> list[InstalledStoragePlugin]:
    """Return the storage backends that are installed, sorted by scheme. Does not import them."""
    built_in = {entry.value for entry in _BUILT_IN}
    return [
        InstalledStoragePlugin(
            entry.name,
            entry.value,
            entry.dist.name if entry.dist else None,
            entry.dist.version if entry.dist else None,
            entry.value in built_in,
        )
        for entry in sorted(_entries().values())
    ]


def load_plugin(scheme: str) -> StoragePlugin[Any]:
    """Return the plugin of a scheme; raises :class:`ConfigurationError` if it is not installed or does not load."""
    scheme = ALIASES.get(scheme, scheme)
    entries = _entries()
    entry = entries.get(scheme)
    if entry is None and scheme.startswith("fsspec+"):
        entry = entries["fsspec"]
    if entry is None:
        raise ConfigurationError(
            f"there is no storage backend for {scheme!r}; installed: {', '.join(sorted(entries))};"
            f" to add one: {install_command(scheme)}"
        )
    try:
        plugin = entry.load()()
    except (ImportError, AttributeError) as error:
        remedy = f"; try: {install_command(scheme)}" if scheme in KNOWN_PACKAGES else ""
        raise ConfigurationError(
            f"the storage backend {scheme!r} ({entry.value}) cannot be loaded: {error}{remedy}"
        ) from error
    if not isinstance(plugin, StoragePlugin):
        raise ConfigurationError(f"the storage backend {scheme!r} ({entry.value}) is not a StoragePlugin")
    return plugin


@asynccontextmanager
async def open_storage(
    url: str,
    *,
    random: random_module.Random,
    data_directory: Path | None = None,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    wall_clock_us: WallClock = system_wall_clock_us,
    name: str = "default",
    max_concurrency: int | None = None,
) -> AsyncIterator[Storage]:
    """Open the storage that a URL names, and close it at the end of the block.

    ``memory://``, ``disk://`` (in the data directory) or ``disk:///a/directory`` and ``fsspec+PROTOCOL://...`` are
    built in. ``options`` are options of the backend from a configuration file; options in the URL's query win.
    ``random`` draws the pauses between attempts. ``name`` is what the storage is called in figures and messages.
    ``max_concurrency`` narrows the limit ``storage_max_concurrency``.

    Raises:
        ConfigurationError: a URL, scheme or option that is wrong; secrets are not in the message.
        StorageError: the backend cannot open.
    """
    limits = limits if limits is not None else Limits()
    async with open_backend(
        url, data_directory=data_directory, options=options, limits=limits, wall_clock_us=wall_clock_us
    ) as backend:
        yield Storage(backend, random=random, limits=limits, name=name, max_concurrency=max_concurrency)


@asynccontextmanager
async def open_backend(
    url: str,
    *,
    data_directory: Path | None = None,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    wall_clock_us: WallClock = system_wall_clock_us,
) -> AsyncIterator[StorageBackend]:
    """Open the bare backend that a URL names: one attempt each, nothing checked. Parameters as in :func:`open_storage`.

    For those who put a layer of their own around it, such as the storage server, whose clients retry.
    """
    parts = parse_url(url)
    plugin = load_plugin(parts.scheme)
    surroundings = StorageSurroundings(
        scheme=parts.scheme,
        location=parts.location,
        path=parts.path,
        url=parts.public,
        data_directory=data_directory,
        limits=limits if limits is not None else Limits(),
        wall_clock_us=wall_clock_us,
    )
    config = _configure(plugin, parts.scheme, dict(options or {}) | parts.options)
    async with plugin.open(config, surroundings) as backend:
        yield backend


def _configure(plugin: StoragePlugin[Any], scheme: str, given: dict[str, Any]) -> msgspec.Struct:
    known = [field.encode_name for field in msgspec.structs.fields(plugin.config)]
    for option in given:
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'none'}"
            raise ConfigurationError(f"the storage backend {scheme!r} has no option {option!r}; {remedy}")
    try:
        # Not strict: what comes from a query is text. The message names the option and the type, never the value.
        return msgspec.convert(given, plugin.config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"options of the storage backend {scheme!r} are wrong: {error}") from None


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in _BUILT_IN} | _scan(entry_points)


@cache
def _scan(find: Callable[..., Iterable[EntryPoint]]) -> dict[str, EntryPoint]:
    """Look through all installed packages, once: it takes 20 ms, and Spark's workers open a storage for each task."""
    return {entry.name: entry for entry in find(group=GROUP)}
