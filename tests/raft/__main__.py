"""``python -m tests.raft --seeds 0-9999 --jobs 2``: many worlds of the Raft core."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from multiprocessing import Pool
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from raft_simulator import run_world


def _try(seed: int) -> tuple[int, Counter[str], str]:
    try:
        return seed, run_world(seed), ""
    except Exception as error:  # noqa: BLE001 - reported with its seed
        return seed, Counter(), f"{type(error).__name__}: {error}"


def main() -> int:
    """Run the worlds; print each that fails and the sums; return 1 if any failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.raft", description=__doc__)
    parser.add_argument("--seeds", default="100", help="100 (from 0 on), or 500-999")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    first, dash, last = options.seeds.partition("-")
    seeds = range(int(first), int(last) + 1) if dash else range(int(first))
    began_s, counts, failed = time.monotonic(), Counter[str](), 0
    with Pool(options.jobs) as pool:
        for seed, found, trouble in pool.imap_unordered(_try, seeds, chunksize=20):
            counts.update(found)
            if trouble:
                failed += 1
                sys.stdout.write(f"seed {seed} FAILED: {trouble}\n")
    sums = ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
    sys.stdout.write(f"{len(seeds)} worlds in {time.monotonic() - began_s:.0f} s, {failed} failed: {sums}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
