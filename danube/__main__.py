"""``python -m danube``: the same as the ``danube`` command."""

from __future__ import annotations

from danube.cli import main

if __name__ == "__main__":
    main()
