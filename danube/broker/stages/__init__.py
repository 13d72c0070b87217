"""Staged publishing: batches of a distributed job, kept out of sight until one place decides, and shown once.

Tasks of a job *stage* batches: each stage is a file of its own (:mod:`~danube.broker.stages.store`), not a part of the
journal. A job may stage gigabytes before it decides; in the journal they would fill its limited space, and pin its
files until the job makes up its mind, for the sake of messages that perhaps nobody will ever see.

The driver of the job *commits*. Then (:mod:`~danube.broker.stages.committing`):

1. The stages are checked and read through, and sessions are opened in their topics.
2. One conditional write to the metadata (:mod:`~danube.broker.stages.ledger`) names the batch, its stages, and for each
   topic the producer's sequence that the first of its messages will get. This is the decision: before it nothing has
   happened, after it the batch will be in its topics, whatever crashes.
3. The batches are appended through the topics' intakes, as those of any producer. Their sequences are fixed by the
   decision, so what was appended before a crash is recognised as a duplicate when it comes again.
4. A second write says that it is done, and keeps the offsets for whoever asks again. The files go afterwards.

A batch id that is not above the last decided one commits nothing: that is the whole memory that exactly-once needs.

What it does not survive is the loss of the machine, also for topics of durability ``remote``: stages are on its disk,
and decisions in its metadata. A producer that goes on elsewhere begins with an empty memory.
"""

from __future__ import annotations

from danube.broker.runtime.stage_disk import RealStageDisk, StageDisk
from danube.broker.stages.service import Stages

__all__ = ["RealStageDisk", "StageDisk", "Stages"]
