"""A pytest plugin: Hypothesis tries the same examples each time, remembers none, and does not look for smaller ones."""

from __future__ import annotations

from hypothesis import Phase, settings

# When this is imported, with ``-p``: conftest.py makes its own profile of the default one.
settings.register_profile(
    "mutation", settings.default, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("mutation")
