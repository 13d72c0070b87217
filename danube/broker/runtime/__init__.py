"""What one topic may rely on: configuration, seams, clocks, the rhythm of commits, tasks."""
