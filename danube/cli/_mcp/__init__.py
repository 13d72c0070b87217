"""The tools of ``danube mcp``: calls of the broker for programs that speak the Model Context Protocol.

``inputs`` and ``outputs`` are pure; ``tools`` makes the calls; ``server`` speaks the protocol, and is the only part
that needs the package ``mcp``.
"""
