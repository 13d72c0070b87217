"""Handlers of definitions: they use the native client within the process, on behalf of the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from danube.model.definitions import Definitions, Plan, check_definitions, described
from danube.model.errors import FailedPreconditionError
from danube.web.administration import Handler
from danube.web.caller import ApiCall
from danube.web.definition_routes import PlanAnswer, Wanted

if TYPE_CHECKING:
    from danube.client import Client

__all__ = ["HANDLERS"]


async def export_definitions(call: ApiCall) -> Definitions:
    """Return the definitions of what there is."""
    async with call.client() as client:
        from danube.client import definitions  # loaded with the client

        return await definitions.export_definitions(client)


async def plan_definitions(call: ApiCall) -> PlanAnswer:
    """Return the steps that lead to definitions."""
    check_definitions(call.body.definitions)
    async with call.client() as client:
        return _answer(await _plan(client, call.body))


async def apply_definitions(call: ApiCall) -> PlanAnswer:
    """Carry them out."""
    wanted: Wanted = call.body
    check_definitions(wanted.definitions)
    async with call.client() as client:
        from danube.client import definitions

        found = await _plan(client, wanted)
        if wanted.fingerprint not in ("", found.fingerprint):
            raise FailedPreconditionError(
                "the plan is not the one that was looked at: something has changed; plan again, and look at it"
            )
        await definitions.apply_plan(client, found)
    return _answer(found)


async def _plan(client: Client, wanted: Wanted) -> Plan:
    from danube.client import definitions

    return await definitions.make_plan(client, wanted.definitions, prune=wanted.prune)


def _answer(plan: Plan) -> PlanAnswer:
    lines = described(plan.steps, plan.conflicts)
    return PlanAnswer(steps=plan.steps, conflicts=plan.conflicts, lines=lines, fingerprint=plan.fingerprint)


HANDLERS: Final[Mapping[str, Handler]] = {
    handler.__name__: handler for handler in (export_definitions, plan_definitions, apply_definitions)
}
