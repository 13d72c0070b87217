"""What comes in: producers, their batches, and messages that are sent one at a time."""
