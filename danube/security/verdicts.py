"""Judges calls by the table of rights. Pure.

::

    no row for the path            DENIED
    public                         ALLOWED
    no principal                   UNAUTHENTICATED
    a suspended principal          DENIED
    any principal                  ALLOWED
    nothing that exists is named   DENIED to a caller that has the permission nowhere, else ALLOWED
    a consumer that does not       UNKNOWN, as one that is another caller's, unless the caller has the permission
    exist                          nowhere
    a list                         FILTERED if there may be items that the caller may see
    the caller has all it needs    ALLOWED
    it shows one object            HIDDEN, unless the caller has the permission nowhere
    otherwise                      DENIED

Requirements with a condition are judged by the operation, with :func:`judge_condition`, when the condition holds.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from danube.model.errors import (
    DanubeError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from danube.security.evaluate import Rights
from danube.security.flaws import NO_PROOF
from danube.security.resources import Book, resources_of
from danube.security.rights import Access, Condition, Named, Refusal, Requirement, Rule
from danube.security.roles import Principal
from danube.security.scopes import CLUSTER, Resource

__all__ = ["UnknownConsumerError", "Verdict", "judge", "judge_condition", "refusal_of"]


_UNKNOWN: Final = (
    "the consumer is unknown, its subscription was deleted, or these credentials may not use it; subscribe again"
)


_NOT_SAID: Final = (
    Named.CLUSTER,
    Named.ANYTHING,
    Named.CONSUMER,
    Named.SCHEMA_NUMBER,
    Named.STAGES,
    Named.DEAD_LETTERS,
)
"""Not named by the request, or by a number only: the name would tell the caller what it may not know."""
_NAMES: Final = 3
"""Most names in an error."""


class UnknownConsumerError(UnavailableError):
    """The number of a consumer is unknown, or the caller may not use it: which of the two is not said."""

    def __init__(self, message: str = _UNKNOWN) -> None:
        super().__init__(message)


class Verdict(Enum):
    """The outcome of a judgement."""

    ALLOWED = "allowed"
    FILTERED = "filtered"
    """Allowed; the answer contains only what the caller may see (:meth:`~danube.security.evaluate.Rights.visible`)."""
    HIDDEN = "hidden"
    UNKNOWN = "unknown"
    """A consumer that is not there for the caller: it has to subscribe again, which says what it may not do."""
    DENIED = "denied"
    UNAUTHENTICATED = "unauthenticated"


def judge(rule: Rule | None, principal: Principal | None, rights: Rights, request: Any, book: Book) -> Verdict:
    """Judge a call.

    Args:
        rule: the row of its path; None if the path has none.
        principal: who calls; None without a proof, or with an invalid one.
        rights: the roles and bindings.
        request: the decoded request; of a stream, its first message.
        book: for requests that name objects by numbers.

    Raises:
        InvalidNameError: the request has an invalid name, for which there are no rights.
        InvalidArgumentError: it names an unknown kind of scope.
    """
    if rule is not None and rule.access is Access.PUBLIC:
        return Verdict.ALLOWED
    if principal is None:
        return Verdict.UNAUTHENTICATED
    if rule is None or rights.is_suspended(principal):
        return Verdict.DENIED
    for requirement in rule.requirements:
        if requirement.condition is not Condition.ALWAYS:
            continue
        permission = requirement.permission
        if requirement.named is Named.ANYTHING:
            if not rights.touches(principal, permission, CLUSTER):
                return Verdict.DENIED
            continue
        has = rights.allows if rule.refusal is not Refusal.FILTERED else rights.touches
        resources = resources_of(requirement, request, book)
        if requirement.named is Named.CONSUMER:
            if not rights.touches(principal, permission, CLUSTER):
                return Verdict.DENIED
            if not resources or not all(has(principal, permission, each) for each in resources):
                return Verdict.UNKNOWN
            continue
        if not resources and not rights.touches(principal, permission, CLUSTER):
            return Verdict.DENIED
        is_enough = any if requirement.named is Named.SCHEMA_NUMBER and resources else all
        if not is_enough(has(principal, permission, each) for each in resources):
            if rule.refusal is not Refusal.DENIED and rights.touches(principal, permission, CLUSTER):
                return Verdict.HIDDEN
            return Verdict.DENIED
    return Verdict.FILTERED if rule.refusal is Refusal.FILTERED else Verdict.ALLOWED


def judge_condition(
    rule: Rule, condition: Condition, principal: Principal, rights: Rights, resource: Resource
) -> Verdict:
    """Judge the requirements of a path for a condition that holds, on a resource that the operation knows.

    For example: opening a producer would create the topic ``resource``. A rule without such a requirement allows it,
    because none of its calls depends on the condition.
    """
    for requirement in rule.requirements:
        if requirement.condition is condition and not rights.allows(principal, requirement.permission, resource):
            return Verdict.DENIED
    return Verdict.ALLOWED


def refusal_of(
    verdict: Verdict, principal: Principal | None, rule: Rule | None, request: Any = None, book: Book | None = None
) -> DanubeError | None:
    """Return the error of a verdict; None if the call is allowed. It says nothing about why, except who may ask.

    Args:
        verdict: of the call.
        principal: who calls.
        rule: the row of its path.
        request, book: as in :func:`judge`; the error names what the request itself names. Without them it names no
            object.
    """
    match verdict:
        case Verdict.UNAUTHENTICATED:
            return UnauthenticatedError(NO_PROOF)
        case Verdict.DENIED:
            what = (
                "it has no rule"
                if rule is None or not rule.requirements
                else f"requires {_required(rule, request, book)}"
            )
            path = "this path" if rule is None else rule.path
            return PermissionDeniedError(
                f"{principal} may not call {path}: {what}; administrators see why with 'danube security explain'"
            )
        case Verdict.UNKNOWN:
            return UnknownConsumerError()
        case Verdict.HIDDEN:
            return NotFoundError("there is no such object, or these credentials may not see it")
    return None


def _required(rule: Rule, request: Any, book: Book | None) -> str:
    always = (each for each in rule.requirements if each.condition is Condition.ALWAYS)
    return " and ".join(dict.fromkeys(f"{each.permission.title} on {_object(each, request, book)}" for each in always))


def _object(requirement: Requirement, request: Any, book: Book | None) -> str:
    """Return the names of the objects, if the caller knows them."""
    if requirement.named in _NOT_SAID or request is None or book is None:
        return requirement.named.value
    try:
        names = [str(each) for each in resources_of(requirement, request, book)]
    except InvalidArgumentError:  # of a suspended principal: the names were not looked at
        names = []
    if len(names) > _NAMES:
        names[_NAMES:] = [f"{len(names) - _NAMES} more"]
    return ", ".join(names) or requirement.named.value
