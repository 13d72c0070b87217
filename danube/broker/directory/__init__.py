"""Which topics are here: records, policies, creation and deletion, recovery, restore."""
