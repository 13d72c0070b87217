"""The scenarios, in the order of the report."""

from __future__ import annotations

from benchmarks.scenarios import (
    c1,
    c2,
    c3,
    c4,
    c5,
    c6,
    c7,
    d1,
    h1,
    h2,
    h3,
    h4,
    h5,
    h6,
    memory,
    p1,
    p2,
    p3,
    p4,
    p5,
    p6,
    p7,
    s1,
    s1b,
    s2,
    s3,
    s4,
    s5,
    s6,
    s7,
    s8,
    t1,
    t2,
    t3,
    u1,
    u2,
    w1,
    w3,
)
from benchmarks.scenarios._base import Arm, Scenario, Target

__all__ = ["ALL_SCENARIOS", "Arm", "Scenario", "Target"]

ALL_SCENARIOS: dict[str, Scenario] = {
    module.SCENARIO.name: module.SCENARIO
    for module in (
        *(s1, s1b, s2, s3, s4, s5, s6, s7, s8, memory, d1, h1, h2, h3, h4, h5, h6),
        *(t1, t2, t3, u1, u2, w1, w3, c1, c2, c3, c4, c5, c6, c7),
        *(p1, p2, p3, p4, p5, p6, p7),
    )
}
"""By name."""
