"""Fixed programs in virtual time whose instructions are counted; see :mod:`benchmarks.instructions`.

:mod:`~benchmarks.counting.programs` are the scenarios, :mod:`~benchmarks.counting.machine` is the simulated machine on
which they run, :mod:`~benchmarks.counting.callgrind` speaks with Valgrind, and ``python -m benchmarks.counting`` runs
one program, under Valgrind or not.
"""
