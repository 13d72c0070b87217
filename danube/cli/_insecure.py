"""Whether a server may listen on other machines' networks without access control: ``--insecure``, DANUBE_INSECURE."""

from __future__ import annotations

import os

from danube.model.errors import ConfigurationError

__all__ = ["insecure_wanted"]


def insecure_wanted(given: bool | None) -> bool | None:
    """Return the option, or else what the environment variable says; None: neither says anything.

    Raises:
        ConfigurationError: the variable is neither 1 nor 0.
    """
    if given is not None:
        return given
    said = os.environ.get("DANUBE_INSECURE", "")
    if said not in ("", "0", "1"):
        raise ConfigurationError(f"DANUBE_INSECURE is {said!r}; set it to 1 or 0")
    return said == "1" if said else None
