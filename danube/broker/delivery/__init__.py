"""What goes out: pumps, subscriptions, readers, cursors, dead letters."""
