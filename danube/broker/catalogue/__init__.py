"""The records of namespaces, topics and subscriptions in the metadata store, including their policies."""
