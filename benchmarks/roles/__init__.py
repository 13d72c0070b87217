"""What runs inside the worker processes: one module for each client library, each with a table ``ROLES``.

A role prepares itself, calls ``control.ready()``, which waits for the common start, and gives an
:class:`~benchmarks._processes.Outcome`.
"""
