"""Test kits for people who write plugins: a conformance suite for each contract, and stores that fail on purpose.

Nothing in here is used by a running broker. Import the module of the contract you implement, for example
:mod:`danube.testing.metadata`.
"""
