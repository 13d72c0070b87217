"""The files with tests that take longest: a run in several processes begins with them.

A file is run by one process (``--dist loadfile``). xdist hands out files with many tests first, but the tests that take
a minute are alone in their files, so they came last, and one process worked while the others had ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

__all__ = ["LONGEST", "LONGEST_EXTENDED", "long_first"]

LONGEST = (
    "tests/simulation/test_planted_bugs.py",
    "tests/spark/test_spark_pipeline.py",
    "tests/benchmarks/test_benchmark_danube.py",
    "tests/spark/test_spark_flights.py",
    "tests/simulation/test_simulation_worlds.py",
    "tests/e2e/test_flights.py",
    "tests/spark/test_spark_sink.py",
    "tests/broker/durability/test_moves_of_remote.py",
    "tests/spark/test_spark_batch.py",
    "tests/simulation/test_simulation_cluster.py",
    "tests/spark/test_spark_session.py",
    "tests/broker/directory/test_forgetting.py",
    "tests/benchmarks/test_benchmark_history.py",
    "tests/crash/test_kill9.py",
    "tests/cli/test_cli_options.py",
    "tests/cli/test_cli_end_to_end.py",
    "tests/broker/test_process.py",
    "tests/history/remote/test_remote_simulation.py",
    "tests/simulation/test_simulation_staging.py",
    "tests/packaging/test_wheels.py",
    "tests/simulation/test_simulation_moves.py",
    "tests/broker/test_broker_memory.py",
    "tests/client/test_client_at_exit.py",
    "tests/spark/test_spark_pipeline_tables.py",
    "tests/broker/test_cluster_processes.py",
    "tests/official/test_official_disturbed.py",
    "tests/broker/directory/test_snapshots.py",
    "tests/broker/test_broker_stateful.py",
    "tests/crash/test_kill9_staging.py",
)
"""Of the default line, about in the order of their times; those with Spark take turns with others."""

LONGEST_EXTENDED = (
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

_PLACES = {
    extended: {name: place for place, name in enumerate(names)}
    for extended, names in ((False, LONGEST), (True, LONGEST_EXTENDED))
}


def long_first(files: Sequence[str], *, extended: bool) -> list[int]:
    """Order tests: those of the files above, then those of files with many tests; tests of a file stay in their order.

    Args:
        files: the file of each test.
        extended: whether extended tests are run, or the others.

    Returns: the positions of the tests, in their new order.
    """
    sizes, places = Counter(files), _PLACES[extended]
    first = {name: place for place, name in reversed(list(enumerate(files)))}
    return sorted(
        range(len(files)), key=lambda at: (places.get(files[at], len(places)), -sizes[files[at]], first[files[at]])
    )
