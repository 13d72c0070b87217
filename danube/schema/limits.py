"""Limits of the registry: what one schema, one subject, and all of them may be."""

from __future__ import annotations

import msgspec

from danube.model.limits import KIB

__all__ = ["DEFAULT_LIMITS", "SchemaLimits"]


class SchemaLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the registry. All are hard, and error messages name them."""

    max_schema_bytes: int = 512 * KIB
    """UTF-8 bytes of the text of one schema, and of a protobuf schema's descriptor."""
    max_schema_depth: int = 100
    """Brackets that are open at once in the text of a schema; messages within messages of a protobuf schema."""
    max_schema_references: int = 100
    """Other schemas that one schema needs, those that they need included."""
    max_schema_references_bytes: int = 2048 * KIB
    """UTF-8 bytes of the texts of all these."""
    max_subject_bytes: int = 512
    """UTF-8 bytes of the name of a subject."""
    max_subjects: int = 100_000
    """Subjects of a registry, those included of which only the numbers of deleted versions are left."""
    max_versions_per_subject: int = 1_000
    """Versions of one subject that are not permanently deleted."""
    max_schema_notes_bytes: int = 16 * KIB
    """UTF-8 bytes of a description, an author, tags and metadata of one version together."""


DEFAULT_LIMITS = SchemaLimits()
