"""Test kits for plugin authors: a conformance suite for each contract, and stores with injected faults.

A running broker uses none of it. Import the module of the contract you implement, for example
:mod:`danube.testing.metadata`.
"""
