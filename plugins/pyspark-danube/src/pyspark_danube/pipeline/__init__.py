"""Pipeline jobs: topics to lakehouse tables, anything to topics, topics to topics."""
