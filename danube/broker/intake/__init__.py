"""Intake of messages: producers, their batches, messages that are sent one at a time, publish rates."""
