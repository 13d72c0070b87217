"""Reads the configuration file of a broker (:mod:`danube.broker.runtime.config`)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from danube.broker.runtime.config import BrokerConfig, make_config
from danube.model.errors import ConfigurationError

__all__ = ["load_config"]


def load_config(path: str | None = None, overrides: dict[str, Any] | None = None) -> BrokerConfig:
    """Read a configuration.

    Args:
        path: a TOML file, or None for the defaults.
        overrides: settings that win over the file; None values are left out, ``limits`` is merged key by key.

    Raises:
        ConfigurationError: unreadable file, unknown key (with the nearest known one), or a value of the wrong kind.
    """
    if path is None:
        return make_config({}, overrides)
    try:
        settings = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"configuration file {path!r} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"configuration file {path!r} is not valid TOML: {error}") from error
    return make_config(settings, overrides, path)
