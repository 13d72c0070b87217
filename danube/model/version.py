"""The version of Danube, in the lowest layer so that every module may import it."""

from __future__ import annotations

__version__ = "0.1.0"
