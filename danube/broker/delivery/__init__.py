"""Delivery of messages: pumps, subscriptions, readers, cursors, dead letters."""
