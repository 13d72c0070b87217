"""The schema registry without I/O: schemas, compatibility rules, and the state of all subjects.

The libraries for Avro, JSON Schema and protobuf are imported only when a schema of that type is parsed.
"""

from danube.schema.book import LATEST, Book, Change, Entry, Proposal, Registered
from danube.schema.examine import Examination, Finding, Objection, examine
from danube.schema.kinds import Compile, Needed, Parsed, Reason, Source, parse
from danube.schema.limits import SchemaLimits
from danube.schema.modes import (
    Level,
    Mode,
    Policy,
    SchemaType,
    parse_level,
    parse_mode,
    parse_policy,
    parse_type,
)
from danube.schema.records import NumberRecord, Reference, Settings, VersionRecord
from danube.schema.subjects import Strategy, subject_for

__all__ = [
    "LATEST",
    "Book",
    "Change",
    "Compile",
    "Entry",
    "Examination",
    "Finding",
    "Level",
    "Mode",
    "Needed",
    "NumberRecord",
    "Objection",
    "Parsed",
    "Policy",
    "Proposal",
    "Reason",
    "Reference",
    "Registered",
    "SchemaLimits",
    "SchemaType",
    "Settings",
    "Source",
    "Strategy",
    "VersionRecord",
    "examine",
    "parse",
    "parse_level",
    "parse_mode",
    "parse_policy",
    "parse_type",
    "subject_for",
]
