"""The version of Danube, on the ground floor so that everything may name it."""

from __future__ import annotations

__version__ = "0.1.0"
