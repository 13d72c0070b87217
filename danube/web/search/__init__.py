"""Search: filters of messages, and a process of its own that applies them to a topic.

* ``filters``, ``matching`` and ``needles`` are the language; ``scanning`` applies a filter to stored batches. They are
  pure, and so is ``jobs``, what broker and process say to each other.
* ``engine`` reads a topic with the rights of a caller, and reports what matches.
* ``__main__`` is the process ``python -m danube.web.search``, and ``pool`` starts and stops such processes.
"""
