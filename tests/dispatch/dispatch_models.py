"""Shared by the models of all subscription types: names, sizes, and conversions of flat ranges."""

from __future__ import annotations

RECORD_BYTES = 10
NAMES = ["ann", "bob", "cyd", "dan"]


def offsets_of(flat):
    assert len(flat) % 2 == 0
    found = [offset for index in range(0, len(flat), 2) for offset in range(flat[index], flat[index + 1])]
    assert found == sorted(set(found))
    return found


def flat_of(pairs):
    """Sorted, disjoint, flat ranges from (start, size) pairs."""
    wanted = sorted({offset for start, size in pairs for offset in range(start, start + size)})
    flat = []
    for offset in wanted:
        if flat and flat[-1] == offset:
            flat[-1] = offset + 1
        else:
            flat += [offset, offset + 1]
    return flat
