"""Services that topics depend on: configuration, seams, clocks, commit notifications, tasks."""
