"""The native protocol: converts bytes to operations, and results to bytes; the Publish and Consume streams."""
