"""Errors that are raised in many tasks are copies with everything that the original says."""

from __future__ import annotations

from danube.client._tasks import copy_error
from danube.model.errors import NotOwnerError


def test_a_copy_says_what_the_original_says() -> None:
    error = NotOwnerError("topic /default/a belongs to broker b2", {"address": "b:6650"})
    error.__cause__ = ValueError("why")
    copy = copy_error(error)
    assert copy is not error
    assert isinstance(copy, NotOwnerError)
    assert (copy.message, copy.address, copy.__cause__) == (error.message, "b:6650", error.__cause__)
