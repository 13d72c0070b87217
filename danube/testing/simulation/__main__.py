"""The command ``python -m danube.testing.simulation``."""

from __future__ import annotations

import sys

from danube.testing.simulation.command import main

if __name__ == "__main__":
    sys.exit(main())
