"""A simulated world in which the real broker and the real client run, from a seed, in virtual time.

``python -m danube.testing.simulation --seed 7`` runs one world; see :mod:`danube.testing.simulation.world` for what a
world is, and :mod:`danube.testing.history` for what is checked.

The world is made of machines on a network; today one of them has a broker. A broker is a
:class:`~danube.testing.simulation.node.BrokerNode` with a name of its own, and nothing but the plan says how many there
are.
"""

from __future__ import annotations

from danube.testing.simulation.plan import WorldPlan, draw_plan
from danube.testing.simulation.world import Report, World, run_world

__all__ = ["Report", "World", "WorldPlan", "draw_plan", "run_world"]
