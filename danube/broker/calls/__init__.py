"""The native protocol: bytes in, operations, bytes out."""
