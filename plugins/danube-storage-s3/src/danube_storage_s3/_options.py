"""Options of ``s3://`` and ``s3+obstore://``, and bucket and prefix from their URLs."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

import msgspec

from danube.model.errors import ConfigurationError
from danube.model.limits import MIB
from danube.storage import StorageSurroundings

__all__ = ["Place", "S3Config", "place_of", "signs_payload"]

_MIN_PART_BYTES = 5 * MIB
"""Minimum size that S3 requires of every part but the last."""


class S3Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of ``s3://bucket/prefix``.

    Without key and secret, credentials are taken from AWS's default sources: environment, shared files, machine role.
    """

    endpoint_url: str = ""
    """Address of a service other than AWS: ``http://host:port``."""
    region: str = ""
    """Region of the bucket; not set: the environment's."""
    key: str = ""
    """Access key id."""
    secret: str = ""
    """Secret access key."""
    token: str = ""
    """Session token of temporary credentials."""
    profile: str = ""
    """Profile of AWS's shared configuration files."""
    anon: bool = False
    """Send unsigned requests; for public buckets."""
    ca_file: str = ""
    """PEM file of the authorities that sign the server's certificate, instead of the system's."""
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    """Whether requests name the bucket in the path or in the host name."""
    sse: Literal["", "AES256", "aws:kms", "aws:kms:dsse"] = ""
    """Encryption by the server; not set: the bucket's default."""
    sse_kms_key_id: str = ""
    """Key of the key service for ``sse=aws:kms``; not set: the account's default."""
    checksum: bool = True
    """Send a CRC32C with each put, which the server checks and stores. Set it to false for services that refuse it.
    Only ``s3://``."""
    max_concurrency: int = 8
    """Maximum number of concurrent ranges, or parts of one large object."""
    single_put_bytes: int = 64 * MIB
    """Largest object that is put in one request. A larger one is sent in parts; parts of a cancelled put may remain
    until the janitor removes them. Only ``s3://``: ``s3+obstore://`` puts every object in one request."""
    part_bytes: int = 16 * MIB
    """Size of a part, at least 5 MiB; raised for objects that would have more than 10,000. Only ``s3://``."""
    connect_timeout_s: float = 5.0
    """Timeout for opening a connection, in seconds."""
    read_timeout_s: float = 20.0
    """Timeout for a server that sends nothing in response to a request, in seconds."""


def signs_payload(config: S3Config) -> bool:
    """Whether the payload of a put is hashed for the signature.

    Over TLS it cannot be changed in transfer, and the hash would be most of the cost of a put.
    """
    return config.endpoint_url.startswith("http://")


class Place(NamedTuple):
    """Bucket and prefix of the objects."""

    bucket: str
    prefix: str
    """Without slashes at its ends; may be empty."""

    def key(self, key: str) -> str:
        """Return the full name of an object, or a prefix of names."""
        return f"{self.prefix}/{key}" if self.prefix else key


def place_of(config: S3Config, surroundings: StorageSurroundings) -> Place:
    """Check URL and options, and return bucket and prefix; raises :class:`ConfigurationError`."""
    url = surroundings.url
    if not surroundings.location:
        raise ConfigurationError(f"{url} names no bucket; write {surroundings.scheme}://bucket/prefix")
    if "@" in surroundings.location:
        raise ConfigurationError(f"{url}: give the credentials as options (key and secret), not before the bucket")
    if bool(config.key) != bool(config.secret):
        raise ConfigurationError(f"{url}: key and secret belong together; one of them is missing")
    if config.anon and config.key:
        raise ConfigurationError(f"{url}: anon=true sends unsigned requests: remove key and secret")
    if config.sse_kms_key_id and not config.sse.startswith("aws:kms"):
        raise ConfigurationError(f"{url}: sse_kms_key_id needs sse=aws:kms")
    if config.max_concurrency < 1:
        raise ConfigurationError(f"{url}: max_concurrency must be at least 1")
    if config.part_bytes < _MIN_PART_BYTES or config.single_put_bytes < _MIN_PART_BYTES:
        raise ConfigurationError(f"{url}: part_bytes and single_put_bytes must be at least {_MIN_PART_BYTES}")
    if config.ca_file and not os.path.isfile(config.ca_file):
        raise ConfigurationError(f"{url}: ca_file {config.ca_file!r} is not a file")
    if config.connect_timeout_s <= 0 or config.read_timeout_s <= 0:
        raise ConfigurationError(f"{url}: connect_timeout_s and read_timeout_s must be more than 0")
    return Place(surroundings.location, surroundings.path.strip("/"))
