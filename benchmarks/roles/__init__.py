"""Code of the worker processes: one module for each client library, each with a table ``ROLES``.

A role prepares, calls ``control.ready()``, which waits for the common start, and returns an
:class:`~benchmarks._processes.Outcome`.
"""
