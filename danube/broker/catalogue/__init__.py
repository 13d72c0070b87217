"""The records of namespaces, topics and subscriptions in the metadata store, and the policies in them."""
