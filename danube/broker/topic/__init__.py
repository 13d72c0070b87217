"""One plain topic or partition, and what recovery found of it."""
