"""A mutation tester: plants one small mistake at a time and looks whether a test notices.

``python -m tests.mutation --sample 1000`` (or ``tox -e mutants -- --sample 1000``) draws mistakes from the modules with
rules, runs the tests that reach the changed line, fastest first, and prints what survived as diffs.

Why one of our own: mutmut 3 mutates no decorated function, removes no statement, ``raise`` or guard, draws no sample
and chooses tests by function; cosmic-ray starts one process of all tests for each mutant and knows no coverage.

* ``sources``: a module's text and tree. ``operators``: what can be changed in it. ``rules``: what is left alone.
* ``targets``: the packages. ``sampling``: the draw. ``judged``: survivors that were looked at, each with its reason.
* ``recording``: which test reaches which line, kept on disk by content. ``examples``: Hypothesis repeats itself.
* ``patching``: functions of modules that are loaded get the mutated code. ``session``: forked workers. ``report``.
"""
