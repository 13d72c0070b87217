"""Routes of definitions; a part of the one table. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from danube.model import api
from danube.model.definitions import Definitions, Step
from danube.model.inspect_api import InspectMethod
from danube.model.policy_api import PolicyMethod
from danube.web.route import API, Route

__all__ = ["DEFINITION_ROUTES", "PlanAnswer", "Wanted"]


class Wanted(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What there is to be."""

    definitions: Definitions
    prune: bool = False
    """Delete what the definitions do not have."""
    fingerprint: str = ""
    """Of the plan that is to be carried out; empty: whatever it is."""


class PlanAnswer(msgspec.Struct, kw_only=True):
    """What is to be done, or was done."""

    steps: list[Step]
    conflicts: list[str]
    """What no step can reach; with any, nothing is carried out."""
    lines: list[str]
    """All of it in words."""
    fingerprint: str


_M: Final = api.Method
_READ: Final = (
    _M.LIST_NAMESPACES,
    _M.LIST_TOPICS,
    _M.LOOKUP_TOPIC,
    _M.LIST_SUBSCRIPTIONS,
    PolicyMethod.SHOW,
)
_CHANGE: Final = (
    _M.CREATE_NAMESPACE,
    _M.DELETE_NAMESPACE,
    _M.CREATE_TOPIC,
    _M.DELETE_TOPIC,
    InspectMethod.EXPAND,
    PolicyMethod.CHANGE,
    PolicyMethod.CHANGE_SUBSCRIPTION,
    _M.CREATE_SUBSCRIPTION,
    _M.DELETE_SUBSCRIPTION,
)

DEFINITION_ROUTES: Final = (
    Route(
        "GET",
        f"{API}/definitions",
        "export_definitions",
        "Namespaces, topics, policies and subscriptions as a file of definitions.",
        _READ,
        answer=Definitions,
        lasting=True,
    ),
    Route(
        "POST",
        f"{API}/definitions:plan",
        "plan_definitions",
        "The steps that lead to definitions; nothing is changed.",
        _READ,
        body=Wanted,
        answer=PlanAnswer,
        lasting=True,
    ),
    Route(
        "POST",
        f"{API}/definitions:apply",
        "apply_definitions",
        "Carry out the steps that lead to definitions, and return them.",
        (*_READ, *_CHANGE),
        body=Wanted,
        answer=PlanAnswer,
        lasting=True,
    ),
)
"""The rows."""
