"""The files with extended tests that take longest: a run in several processes begins with them.

A file is run by one process (``--dist loadfile``). xdist hands out files with many tests first, but the extended tests
that take minutes are alone in their files, so they came last, and one process worked while the others had ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

__all__ = ["LONGEST", "long_first"]

LONGEST = (
    "tests/simulation/test_simulation_worlds.py",
    "tests/broker/calls/test_raw_requests.py",
    "tests/cli/test_cli_options.py",
    "tests/spark/test_spark_kill.py",
    "tests/spark/test_spark_kafka.py",
    "tests/spark/test_spark_secure_cluster.py",
    "tests/client/test_sync_parameters.py",
    "tests/extended/test_two_gigabytes.py",
    "tests/simulation/test_simulation_cluster.py",
    "tests/cli/test_cli_interrupted.py",
    "tests/extended/test_cluster_flights.py",
    "tests/client/test_client_parameters.py",
    "tests/extended/test_cluster_kills.py",
    "tests/compat/test_compat_raw_requests.py",
    "tests/extended/test_power_cut.py",
    "tests/web/test_web_fuzzed.py",
    "tests/plugins/test_storage_server_raw_requests.py",
    "tests/spark/test_spark_pipeline_examples.py",
    "tests/web/test_console_pages.py",
    "tests/simulation/test_planted_bugs.py",
    "tests/benchmarks/test_benchmark_spark.py",
    "tests/benchmarks/test_benchmark_cluster.py",
    "tests/extended/test_prometheus.py",
    "tests/cluster/test_rolling_restart.py",
    "tests/extended/test_tls_scan.py",
)
"""About in the order of their times. The two of the simulation are apart: each has two processes of its own."""

_PLACES = {name: place for place, name in enumerate(LONGEST)}


def long_first(files: Sequence[str]) -> list[int]:
    """Order tests: those of the files above, then those of files with many tests; tests of a file stay in their order.

    Args:
        files: the file of each test.

    Returns: the positions of the tests, in their new order.
    """
    sizes = Counter(files)
    first = {name: place for place, name in reversed(list(enumerate(files)))}
    return sorted(
        range(len(files)), key=lambda at: (_PLACES.get(files[at], len(_PLACES)), -sizes[files[at]], first[files[at]])
    )
