"""``python -m danube``: the same as the ``danube`` command."""

from __future__ import annotations

from danube import _command

if __name__ == "__main__":
    _command()
