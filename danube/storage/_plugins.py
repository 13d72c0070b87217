"""Storage plugins: finds, loads and opens backends by the scheme of a URL.

A plugin is a class registered in the entry-point group ``danube.storage`` under its scheme::

    [project.entry-points."danube.storage"]
    s3 = "danube_storage_s3:S3StoragePlugin"

The built-in ones are registered in the same way; a source checkout that is not installed has no entry points, so their
entries are also listed here and used if the installed ones are missing.

The URL ``scheme://location/path?option=value`` is parsed once, in :mod:`danube.storage._url`. Options come from
its query and from the configuration file's table; together they are validated by the plugin's config Struct, whose
fields are the options, with their defaults. A scheme with a ``+`` is looked up as a whole (``s3+obstore``), except
``fsspec+PROTOCOL``, which is the generic backend for any protocol supported by fsspec.
"""

from __future__ import annotations

import difflib
import random as random_module
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from danube.model.entry_points import built_in_points, entry_points, load_target
from danube.model.errors import ConfigurationError
from danube.model.limits import Limits
from danube.storage._contract import StorageBackend
from danube.storage._storage import Storage
from danube.storage._url import ALIASES, parse_url

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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

_BUILT_IN = {
    "memory": "danube.storage.memory:MemoryStoragePlugin",
    "disk": "danube.storage.disk:DiskStoragePlugin",
    "fsspec": "danube.storage.fsspec:FsspecStoragePlugin",
}

KNOWN_PACKAGES = {
    "s3": "danube-storage-s3",
    "s3+obstore": "danube-storage-s3[obstore]",
    "gcs": "danube-storage-gcs",
    "azure": "danube-storage-azure",
    "redis": "danube-storage-redis",
    "rediss": "danube-storage-redis",
    "remote": "danube-storage-remote",
}
"""Schemes with a known package, and its name for ``pip install``."""


def install_command(scheme: str) -> str:
    """Return the command that installs the plugin of a scheme; derived by the naming rule if the scheme is unknown."""
    package = KNOWN_PACKAGES.get(scheme, f"danube-storage-{scheme}")
    return f"pip install '{package}'" if "[" in package else f"pip install {package}"


def system_wall_clock_us() -> int:
    """Return the system time, microseconds since the epoch: the real implementation of :data:`WallClock`."""
    return time.time_ns() // 1000


class StorageSurroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Data passed to a plugin besides its own options."""

    scheme: str
    """The scheme, aliases resolved: ``gcs`` for ``gs://``."""
    location: str = ""
    """Bucket, or host and port, of the URL, as written; user information included."""
    path: str = ""
    """Path of the URL, decoded, with the slash it begins with."""
    url: str = ""
    """The URL without secrets, for the backend's :attr:`~StorageBackend.url`."""
    data_directory: Path | None = None
    """The broker's data directory, for backends that keep files; None if there is none."""
    limits: Limits = Limits()
    wall_clock_us: WallClock = system_wall_clock_us


Config = TypeVar("Config", bound=msgspec.Struct)


class StoragePlugin(ABC, Generic[Config]):
    """Base class of a storage backend's plugin. Instantiated without arguments for each storage that is opened."""

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
            ConfigurationError: the URL or the options are wrong (for example without a bucket).
        """


class InstalledStoragePlugin(msgspec.Struct, frozen=True):
    """One available storage backend."""

    scheme: str
    target: str
    """``module:Class``."""
    distribution: str | None
    """The package that provides it; None for a built-in one in a source checkout."""
    version: str | None
    built_in: bool


def installed_plugins() -> list[InstalledStoragePlugin]:
    """Return the installed storage backends, sorted by scheme. Does not import them."""
    built_in = set(_BUILT_IN.values())
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
    targets = _BUILT_IN if scheme in _BUILT_IN else {name: entry.value for name, entry in _entries().items()}
    target = targets.get(scheme)
    if target is None and scheme.startswith("fsspec+"):
        target = targets["fsspec"]
    if target is None:
        raise ConfigurationError(
            f"there is no storage backend for {scheme!r}; installed: {', '.join(sorted(targets))};"
            f" to add one: {install_command(scheme)}"
        )
    try:
        plugin = load_target(target)()
    except (ImportError, AttributeError) as error:
        remedy = f"; try: {install_command(scheme)}" if scheme in KNOWN_PACKAGES else ""
        raise ConfigurationError(
            f"the storage backend {scheme!r} ({target}) cannot be loaded: {error}{remedy}"
        ) from error
    if not isinstance(plugin, StoragePlugin):
        raise ConfigurationError(f"the storage backend {scheme!r} ({target}) is not a StoragePlugin")
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
    """Open the storage of a URL, and close it at the end of the block.

    ``memory://``, ``disk://`` (in the data directory) or ``disk:///a/directory`` and ``fsspec+PROTOCOL://...`` are
    built in. ``options`` are options of the backend from a configuration file; options in the URL's query take
    precedence. ``random`` draws the pauses between attempts. ``name`` identifies the storage in figures and messages.
    ``max_concurrency`` narrows the limit ``storage_max_concurrency``.

    Raises:
        ConfigurationError: an invalid URL, scheme or option; the message contains no secrets.
        StorageError: the backend cannot be opened.
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
    """Open the bare backend of a URL: single attempts, no checks. Parameters as in :func:`open_storage`.

    For callers that add a layer of their own, such as the storage server, whose clients retry.
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
        # Not strict: values from a query are strings. The message names the option and the type, never the value.
        return msgspec.convert(given, plugin.config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"options of the storage backend {scheme!r} are wrong: {error}") from None


def _entries() -> dict[str, EntryPoint]:
    return built_in_points(GROUP, _BUILT_IN) | _scan(entry_points)


@cache
def _scan(find: Callable[..., Iterable[EntryPoint]]) -> dict[str, EntryPoint]:
    """Scan all installed packages, once: it takes 20 ms, and Spark's workers open a storage for each task."""
    return {entry.name: entry for entry in find(group=GROUP)}
