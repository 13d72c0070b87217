"""Ports for the servers of tests; see there why a test must not look for them itself."""

from benchmarks._ports import free_port, free_ports

__all__ = ["free_port", "free_ports"]
