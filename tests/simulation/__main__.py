"""``python -m tests.simulation --minutes 60 --jobs 2``: long runs; see danube.testing.simulation.command."""

from __future__ import annotations

import sys

from danube.testing.simulation.command import main

if __name__ == "__main__":
    sys.exit(main())
