"""Times and sizes of a member of a replicated store. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from danube.model.limits import KIB, MIB
from danube.raft import Settings

__all__ = ["FILE_BYTES", "NodeOptions"]

FILE_BYTES: Final = 4 * MIB
"""Size of a file of the log. A start creates, or reads, a whole one."""


class NodeOptions(NamedTuple):
    """Times and sizes of a member. Times in seconds."""

    tick_s: float = 0.05
    """The core's unit of time: a heartbeat is 3, an election 20 to 40 of them."""
    lone_tick_s: float = 0.25
    """The same for a lone member with open leases."""
    gap_s: float = 0.5
    """A loop that stood still for longer extends the leases."""
    campaign_s: float = 0.15
    """A member that hears of the leader's death waits for a random part of this before it campaigns."""
    resend_s: float = 0.5
    """What was not answered for so long is sent again."""
    call_s: float = 10.0
    """A call that is not answered for so long fails: its outcome is unknown."""
    piece_s: float = 1.0
    """A piece of a copy that is not answered for so long is sent again."""
    piece_bytes: int = 512 * KIB
    """Size of such a piece."""
    file_bytes: int = FILE_BYTES
    """Size of a file of the log."""
    proposal_bytes: int = 256 * KIB
    """Commands are joined up to this size."""
    proposals: int = 8
    """Most proposals of a member on their way."""
    cut_bytes: int = 4 * MIB
    """The log is cut when so much was written,"""
    cut_entries: int = 10_000
    """or so many entries were."""
    kept_entries: int = 5_000
    """Entries that are kept for other members in any case,"""
    most_kept_entries: int = 100_000
    """and as many at most, for slow ones;"""
    most_kept_bytes: int = 64 * MIB
    """or so many bytes."""
    brief_bytes: int = 4 * KIB
    """Entries that are together not larger are applied in the event loop: a thread would take longer."""
    brief_reads: int = 64
    """The same for reads of single keys."""
    start_descriptor_wait_s: float = 5.0
    """A member that has applied nothing yet waits for a file descriptor for so long before it ends."""
    compare_s: float = 600.0
    """Members compare their tables so often."""
    settings: Settings = Settings()
