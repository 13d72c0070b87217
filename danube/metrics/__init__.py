"""Metrics: the values that a broker counts, their text format, and what is made of them (boards, alerts). Pure.

The parts of a broker count with plain integers and with :class:`danube.metrics.histogram.Histogram`, one addition for a
batch. What is read of them at a scrape is in ``danube/broker/metrics``; the table of all series is
:mod:`danube.metrics.families`, and :mod:`danube.metrics.text` writes them.
"""
