"""Reads the configuration file of a broker (:mod:`danube.broker.runtime.config`)."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from danube.broker.runtime.config import BrokerConfig, make_config
from danube.model.errors import ConfigurationError

__all__ = ["load_config"]


def load_config(path: str | None = None, overrides: dict[str, Any] | None = None) -> BrokerConfig:
    """Read a configuration.

    Args:
        path: a TOML file, or None for the defaults.
        overrides: settings that win over the file; None values are left out, ``limits`` and ``tls`` are merged key by
            key.

    Raises:
        ConfigurationError: unreadable file, unknown key (with the nearest known one), a value of the wrong kind, or a
            secret that cannot be found or that others can read.
    """
    if path is None:
        return make_config({}, overrides)
    import tomllib

    from danube.broker.runtime.config_secrets import with_secrets

    try:
        with Path(path).open("rb") as file:
            is_open = bool(os.fstat(file.fileno()).st_mode & stat.S_IRWXO)
            settings = tomllib.loads(file.read().decode("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"configuration file {path!r} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"configuration file {path!r} is not valid TOML: {error}") from error
    return make_config(with_secrets(settings, path, is_open=is_open), overrides, path)
