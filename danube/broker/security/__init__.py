"""Access control in a broker: the records as the metadata have them, and the gate through which all calls pass.

::

    metadata ──watch──▶ replica.py ──▶ danube.security.guard.Guard ◀── gate.py ◀── every method of both ports
                                                                        caller.py: who calls, for operations
                                                                        lists.py:  what of a list the caller may see

With security off none of this is used, and calls cost nothing more.
"""
