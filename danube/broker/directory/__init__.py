"""The topics of this broker: lookup, creation and deletion, policies, recovery, restore."""
