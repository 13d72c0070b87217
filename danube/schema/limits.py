"""Limits of the schema registry: sizes and counts of schemas, subjects and versions."""

from __future__ import annotations

import msgspec

from danube.model.limits import KIB, Limits

__all__ = ["DEFAULT_LIMITS", "SchemaLimits", "limits_of"]


class SchemaLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the registry. All are hard, and error messages name them.

    Those that operators may change are fields of :class:`danube.model.limits.Limits`, too. They are limits of
    registrations: what is stored stays readable when they are lowered.
    """

    max_schema_bytes: int = 512 * KIB
    """UTF-8 bytes of the text of one schema, and of a protobuf schema's descriptor."""
    max_schema_depth: int = 100
    """Nesting depth: of brackets in the text of a schema, or of messages in a protobuf schema."""
    max_schema_references: int = 100
    """Number of schemas that one schema refers to, directly or indirectly."""
    max_schema_references_bytes: int = 2048 * KIB
    """UTF-8 bytes of the texts of all these schemas."""
    max_subject_bytes: int = 512
    """UTF-8 bytes of the name of a subject."""
    max_subjects: int = 100_000
    """Subjects of a registry, including permanently deleted ones, whose version numbers are still remembered."""
    max_versions_per_subject: int = 1_000
    """Versions of one subject that are not permanently deleted."""
    max_schema_notes_bytes: int = 16 * KIB
    """UTF-8 bytes of a description, an author, tags and metadata of one version together."""


DEFAULT_LIMITS = SchemaLimits()


def limits_of(limits: Limits) -> SchemaLimits:
    """Return the limits of the registry of a broker with these limits."""
    return SchemaLimits(
        max_schema_bytes=limits.max_schema_bytes,
        max_schema_depth=limits.max_schema_depth,
        max_subjects=limits.max_subjects,
        max_versions_per_subject=limits.max_versions_per_subject,
    )
