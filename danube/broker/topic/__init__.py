"""One plain topic or partition, and its recovered state."""
