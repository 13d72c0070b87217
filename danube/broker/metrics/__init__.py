"""The metrics of a broker: what a scrape reads of its objects, which count by themselves.

:class:`danube.broker.metrics.collecting.Metrics` goes through the topics, with checkpoints in between, and through the
other parts (:mod:`danube.broker.metrics.parts`). Nothing here counts, and nothing here runs between scrapes.
"""
