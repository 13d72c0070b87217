"""The schema registry of a broker: a replica of its records, changes of them, and the process that checks schemas."""
