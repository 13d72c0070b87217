"""Examines schemas in a process of its own: they are untrusted, and parsers of native code crash on some of them.

``python -m danube.checker`` reads requests from standard input, one after the other, and writes an answer to each to
standard output (:mod:`danube.checker.messages`).
"""
