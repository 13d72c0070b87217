"""Staged publishing: batches of a distributed job, hidden until the job commits, and made visible exactly once.

Tasks of a job *stage* batches: each stage is a file of its own (:mod:`~danube.broker.stages.store`), not a part of the
journal. A job may stage gigabytes before it commits; in the journal they would fill its limited space, and pin its
files until the decision, for messages that may never become visible.

The driver of the job *commits*. Then (:mod:`~danube.broker.stages.committing`):

1. The stages are checked and read through, and sessions are opened in their topics.
2. One conditional write to the metadata (:mod:`~danube.broker.stages.ledger`) names the batch, its stages, and for each
   topic the producer's sequence of its first message. This is the decision: before it nothing has happened, after it
   the batch will be in its topics, whatever crashes.
3. The batches are appended through the topics' intakes, like those of any producer. Their sequences are fixed by the
   decision, so batches appended before a crash are recognised as duplicates when they are appended again.
4. A second write records that the commit is complete, and stores the offsets for repeated calls. The files are removed
   afterwards.

A batch id that is not above the last decided one commits nothing: exactly-once needs no other state.

In a cluster all stages of a producer are held by one broker (:mod:`~danube.broker.stages.homes`), which has the owners
of topics append what was committed (:mod:`~danube.broker.stages.distant`).

Staging does not survive the loss of the machine, also for topics of durability ``remote``: stages are on its disk, and,
of a broker alone, decisions in its metadata. A producer that continues elsewhere starts without them. In a cluster the
next home takes the decisions over (:mod:`~danube.broker.stages.inheritance`).
"""

from __future__ import annotations

from danube.broker.runtime.stage_disk import RealStageDisk, StageDisk
from danube.broker.stages.service import Stages

__all__ = ["RealStageDisk", "StageDisk", "Stages"]
