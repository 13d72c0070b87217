"""Options of the data source: parsing, immediate checks, and hiding of secrets.

Names are Kafka's where Kafka has them. Spark passes options as text, ignoring the case of names. An
unknown option is refused with the most similar known name, and so is one without effect in this kind of query
(for example ``maxOffsetsPerTrigger`` of a batch query): the user expects an effect.

The values of ``storage.options.*`` are usually credentials. They are never shown, neither in ``repr`` nor in an
error.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from danube.model.errors import ConfigurationError, InvalidNameError
from danube.model.limits import MIB
from danube.model.names import split_partition, validate_name, validate_topic

__all__ = [
    "EARLIEST",
    "EARLIEST_OFFSET",
    "LATEST",
    "LATEST_OFFSET",
    "REGISTRY_FORMATS",
    "At",
    "ReadOptions",
    "Secrets",
    "WriteOptions",
    "asks_registry",
    "nearest",
    "read_options",
    "schema_options",
    "write_options",
]

EARLIEST_OFFSET: Final = -2
"""In the JSON form of offsets: the first retained message."""
LATEST_OFFSET: Final = -1
"""In the JSON form of offsets: after the last message."""

REGISTRY_FORMATS: Final = ("avro", "protobuf", "registry")
"""Payload formats whose schema is in the registry; ``json`` is another one if a subject or version is given."""

DEFAULT_PARTITION_BYTES: Final = 96 * MIB
"""A task costs about 100 ms before it reads a byte, so it should have work for half a second."""

_STORAGE_OPTION: Final = "storage.options."

# Options that Spark itself adds to those of a source.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "serialization.format"})

_READ, _STREAM, _WRITE = "read", "readStream", "write"


class At(NamedTuple):
    """A position where reading begins or ends: first or last offset of each log, a time, or given offsets."""

    kind: str
    """``earliest``, ``latest``, ``time`` or ``offsets``."""
    time_us: int = 0
    """Microseconds since the epoch, for ``time``: the first message appended at or after it."""
    offsets: Mapping[str, Mapping[int, int]] | None = None
    """Topic to partition to offset, for ``offsets``; -2 is the first message, and -1 is after the last one."""


EARLIEST: Final = At("earliest")
LATEST: Final = At("latest")


class Secrets(Mapping[str, str]):
    """Options of a storage: a mapping that does not show its values."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<{len(self)} storage options: {', '.join(sorted(self)) or 'none'}>"


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a batch or streaming reader."""

    servers: str = ""
    """URL of the broker; empty if history is read directly from a storage."""
    topics: tuple[str, ...] = ()
    """Base names of topics; empty if there is a pattern."""
    topics_pattern: str = ""
    """Regular expression that must match the whole topic name."""
    starting: At = EARLIEST
    """Where reading begins. A stream begins at ``latest`` by default, as Kafka's does."""
    ending: At = LATEST
    """Where a batch query ends."""
    include_tail: bool = True
    """Also read unsealed messages from the broker."""
    fail_on_data_loss: bool = True
    """Fail if requested messages are gone; otherwise warn and continue after them."""
    pushdown: bool = False
    """Use the query's filters to skip parts (needs ``spark.sql.python.filterPushdown.enabled``)."""
    storage_url: str = ""
    """Overrides the storage URL reported by the broker."""
    storage_options: Secrets = Secrets()
    """Options and credentials of the storage."""
    cluster: str = ""
    """Name of the cluster whose history is read directly from the storage, without a broker."""
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_partitions: int = 1
    """Minimum number of tasks, as long as there are as many messages."""
    target_partition_bytes: int = DEFAULT_PARTITION_BYTES
    """Stored bytes that a task should read."""
    max_clock_skew_us: int | None = None
    """With ``pushdown``: maximum by which a producer's clock is ahead of the broker's. None: unknown."""
    job_name: str = ""
    """Name of a streaming query in the broker's list of jobs; empty: a generated one."""
    payload_format: str = "binary"
    """Name of the payload format."""
    mode: str = "PERMISSIVE"
    """Treatment of malformed payloads: ``PERMISSIVE`` (nulls) or ``FAILFAST``, the default with a registry."""
    schema_subject: str = ""
    """Subject of the reader's schema; empty: that of the topic."""
    schema_version: int | None = None
    """Version of the reader's schema; None: the latest."""

    @property
    def by_registry(self) -> bool:
        """Whether payloads are decoded with schemas of the registry."""
        return self.payload_format in REGISTRY_FORMATS or (
            self.payload_format == "json" and (bool(self.schema_subject) or self.schema_version is not None)
        )

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name != "storage_url"}
        shown["storage_url"] = _place(self.storage_url) if self.storage_url else ""
        return f"ReadOptions({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a batch or streaming sink."""

    servers: str
    """URL of the broker."""
    topic: str = ""
    """Topic of all rows; empty if the rows have a column ``topic``."""
    producer_id: str = ""
    """Name that identifies repeated batches. Empty: the query's id for a stream, a new one for a batch query."""
    batch_id: int | None = None
    """Number of the batch of a batch query. One that is not above the producer's last one is not stored again."""
    by_partition: bool = False
    """Whether each topic or partition commits its rows of a batch by itself."""
    payload_format: str = "binary"
    """``avro``, ``json`` or ``protobuf``: the column ``value`` is encoded; ``binary``: ``payload`` is written as is."""
    schema_subject: str = ""
    """Subject of the schema; empty: that of the topic."""
    register_schema: bool = True
    """Whether the schema may be registered; otherwise it must be there."""
    is_framed: bool = False
    """Whether payloads name their schema in Confluent's frame; otherwise the headers of batches do."""


def _place(url: str) -> str:
    """Return a storage's URL without secrets, or raise ConfigurationError."""
    from danube.storage import storage_place  # much code, which most queries need on executors only

    return storage_place(url)


def nearest(name: str, known: Sequence[str]) -> str:
    """Return `` did you mean 'x'?`` for the known name that is nearest, or an empty text if none is near."""
    lowered = {candidate.lower(): candidate for candidate in reversed(known)}
    near = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.6)
    return f" did you mean {lowered[near[0]]!r}?" if near else ""


# --- Values ---


def _text(name: str, value: str) -> str:
    del name
    return value.strip()


def _boolean(name: str, value: str) -> bool:
    lowered = value.strip().lower()
    if lowered not in ("true", "false"):
        raise ConfigurationError(f"option {name} must be true or false, not {value!r}")
    return lowered == "true"


def _count(name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigurationError(f"option {name} must be a whole number of at least 1, not {value!r}")
    return number


def _batch_number(name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = -1
    if number < 0:
        raise ConfigurationError(f"option {name} must be a whole number of at least 0, not {value!r}")
    return number


_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([a-z]*?)(?:i?b)?", re.IGNORECASE)


def _size(name: str, value: str) -> int:
    found = _SIZE.fullmatch(value.strip())
    size = int(found[1]) * _UNITS.get(found[2].lower(), 0) if found else 0
    if size < 1:
        raise ConfigurationError(f"option {name} must be a number of bytes, such as 100663296 or 96m, not {value!r}")
    return size


_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)")


def _duration(name: str, value: str) -> int:
    found = _DURATION.fullmatch(value.strip().lower())
    if not found:
        raise ConfigurationError(f"option {name} must be a time such as 500ms, 30s, 10m, 2h or 1d, not {value!r}")
    return round(int(found[1]) * _SECONDS[found[2]] * 1_000_000)


def _servers(name: str, value: str) -> str:
    url = value.strip()
    if not url.startswith(("danube://", "danube+tls://")):
        raise ConfigurationError(
            f"option {name} must begin with danube://, such as danube://127.0.0.1:6650, or danube+tls://, not {url!r}"
        )
    return url


def _scope(name: str, value: str) -> bool:
    scope = value.strip().lower()
    if scope not in ("batch", "partition"):
        raise ConfigurationError(f"option {name} must be batch or partition, not {value!r}")
    return scope == "partition"


def _topic(name: str, value: str) -> str:
    topic = value.strip()
    try:
        validate_topic(topic)
    except InvalidNameError as error:
        raise InvalidNameError(f"option {name}: {error}") from None
    if (partition := split_partition(topic)) is not None:
        raise InvalidNameError(
            f"option {name}: {topic!r} is one partition of a topic; give the topic {partition[0]!r} and choose with a"
            " filter on the column 'partition'"
        )
    return topic


def _topics(name: str, value: str) -> tuple[str, ...]:
    topics = dict.fromkeys(_topic(name, part) for part in value.split(",") if part.strip())
    if not topics:
        raise ConfigurationError(f"option {name} names no topic; write /namespace/topic, several with commas between")
    return tuple(topics)


def _pattern(name: str, value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ConfigurationError(f"option {name}: {value!r} is not a regular expression: {error}") from None
    return value


def _offsets(name: str, value: str) -> At:
    text = value.strip()
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    wrong = f'option {name} must be earliest, latest, or JSON such as {{"/default/orders": {{"0": 5, "1": -2}}}}'
    try:
        decoded = msgspec.convert(json.loads(text), dict[str, dict[str, int]])
        offsets = {
            topic: {int(partition): offset for partition, offset in row.items()} for topic, row in decoded.items()
        }
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"{wrong}; {value!r} is not: {error}") from None
    for topic, row in offsets.items():
        _topic(name, topic)
        for partition, offset in row.items():
            if offset < EARLIEST_OFFSET or partition < 0:
                raise ConfigurationError(
                    f"{wrong}: {topic}, partition {partition}: {offset} is neither an offset nor -2 (earliest) nor -1"
                    " (latest)"
                )
    return At("offsets", offsets=offsets)


def _time(name: str, value: str) -> At:
    text = value.strip()
    if re.fullmatch(r"[0-9]+", text):
        milliseconds = int(text)
        if milliseconds > _LAST_MS:
            raise ConfigurationError(
                f"option {name} must be milliseconds since the epoch, not micro- or nanoseconds: {value!r} lies beyond"
                " the year 9999"
            )
        return At("time", milliseconds * 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ConfigurationError(
            f"option {name} must be milliseconds since the epoch, or a time with its zone such as"
            f" 2026-01-31T12:00:00Z, not {value!r}"
        )
    microseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND
    return At("time", max(0, microseconds))


_MICROSECOND: Final = datetime.resolution
_LAST_MS: Final = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1000 + 999
"""The last time that can be converted to a date; now in microseconds is beyond it."""


def _storage_url(name: str, value: str) -> str:
    del name
    _place(value.strip())  # an error now, not on an executor; it does not show the URL's secrets
    return value.strip()


def _mode(name: str, value: str) -> str:
    mode = value.strip().upper()
    if mode not in ("PERMISSIVE", "FAILFAST"):
        raise ConfigurationError(f"option {name} must be PERMISSIVE or FAILFAST, not {value!r}")
    return mode


def _format(name: str, value: str) -> str:
    del name
    return value.strip().lower() if value.strip().lower() in (*REGISTRY_FORMATS, "json") else value.strip()


def _written_format(name: str, value: str) -> str:
    written = value.strip().lower()
    if written not in ("binary", "avro", "json", "protobuf"):
        raise ConfigurationError(f"option {name} of a sink must be avro, json, protobuf or binary, not {value!r}")
    return written


def _framing(name: str, value: str) -> bool:
    framing = value.strip().lower()
    if framing not in ("none", "confluent"):
        raise ConfigurationError(f"option {name} must be none or confluent, not {value!r}")
    return framing == "confluent"


def _subject(name: str, value: str) -> str:
    subject = value.strip()
    if not subject:
        raise ConfigurationError(f"option {name} names a subject of the registry, such as /default/orders-value")
    return subject


def _version(name: str, value: str) -> int | None:
    return None if value.strip().lower() == "latest" else _count(name, value)


def _producer(name: str, value: str) -> str:
    del name
    return validate_name("producer", value.strip())


def _job(name: str, value: str) -> str:
    del name
    return validate_name("job", value.strip())


class _Option(NamedTuple):
    """One option: its parser, its field, and the queries in which it has an effect."""

    name: str
    field: str
    parse: Callable[[str, str], Any]
    where: tuple[str, ...]


_BOTH = (_READ, _STREAM)
_OPTIONS: Final = (
    _Option("servers", "servers", _servers, (_READ, _STREAM, _WRITE)),
    _Option("topic", "topics", _topics, _BOTH),
    _Option("topics", "topics", _topics, _BOTH),
    _Option("topicsPattern", "topics_pattern", _pattern, _BOTH),
    _Option("startingOffsets", "starting", _offsets, _BOTH),
    _Option("startingTimestamp", "starting", _time, _BOTH),
    _Option("endingOffsets", "ending", _offsets, (_READ,)),
    _Option("endingTimestamp", "ending", _time, (_READ,)),
    _Option("includeTail", "include_tail", _boolean, (_READ,)),
    _Option("failOnDataLoss", "fail_on_data_loss", _boolean, _BOTH),
    _Option("pushdown", "pushdown", _boolean, (_READ,)),
    _Option("maxClockSkew", "max_clock_skew_us", _duration, (_READ,)),
    _Option("storage.url", "storage_url", _storage_url, _BOTH),
    _Option("cluster", "cluster", _text, (_READ,)),
    _Option("maxOffsetsPerTrigger", "max_offsets_per_trigger", _count, (_STREAM,)),
    _Option("maxBytesPerTrigger", "max_bytes_per_trigger", _size, (_STREAM,)),
    _Option("jobName", "job_name", _job, (_STREAM,)),
    _Option("minPartitions", "min_partitions", _count, _BOTH),
    _Option("targetPartitionBytes", "target_partition_bytes", _size, _BOTH),
    _Option("payloadFormat", "payload_format", _format, _BOTH),
    _Option("schemaSubject", "schema_subject", _subject, _BOTH),
    _Option("schemaVersion", "schema_version", _version, _BOTH),
    _Option("mode", "mode", _mode, _BOTH),
    _Option("topic", "topic", _topic, (_WRITE,)),
    _Option("producerId", "producer_id", _producer, (_WRITE,)),
    _Option("batchId", "batch_id", _batch_number, (_WRITE,)),
    _Option("commitScope", "by_partition", _scope, (_WRITE,)),
    _Option("payloadFormat", "payload_format", _written_format, (_WRITE,)),
    _Option("schemaSubject", "schema_subject", _subject, (_WRITE,)),
    _Option("registerSchema", "register_schema", _boolean, (_WRITE,)),
    _Option("schemaFraming", "is_framed", _framing, (_WRITE,)),
)


def read_options(options: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """Read the options of ``spark.read`` or ``spark.readStream``.

    Raises:
        ConfigurationError: one is unknown, has no effect here, contradicts another one, or is missing.
        InvalidNameError: an invalid topic name.
    """
    where = _STREAM if streaming else _READ
    fields, given, secrets = _parse(options, where)
    if not {"topic", "topics", "topicsPattern"} & set(given):
        raise ConfigurationError(f"{where} names no topic to read: set the option topic, topics or topicsPattern")
    if "servers" not in fields:
        if "storage_url" not in fields or "cluster" not in fields:
            raise ConfigurationError(
                f"{where} needs the option servers (danube://host:port), or, to read history without a broker,"
                " storage.url and cluster (of readStream: servers)"
            )
    elif "cluster" in fields:
        raise ConfigurationError(
            "option cluster is for reading history without a broker (with storage.url): leave out either it or servers"
        )
    if secrets:
        fields["storage_options"] = Secrets(secrets)
    fields.setdefault("starting", LATEST if streaming else EARLIEST)
    made = ReadOptions(**fields)
    if not made.by_registry:
        if "schemaSubject" in given or "schemaVersion" in given:
            raise ConfigurationError(
                "options schemaSubject and schemaVersion need payloadFormat=registry, avro, protobuf or json"
            )
        return made
    if not made.servers:
        raise ConfigurationError(
            f"payloadFormat={made.payload_format} needs the option servers: the schemas are in the broker's registry"
        )
    if not made.schema_subject and len(made.topics) != 1:
        raise ConfigurationError(
            f"payloadFormat={made.payload_format} with several topics needs the option schemaSubject: the subject of"
            " the schema with which all of them are read"
        )
    return made if "mode" in given else msgspec.structs.replace(made, mode="FAILFAST")


def asks_registry(options: Mapping[str, str]) -> bool:
    """Whether the options of a reader, not checked yet, name a schema of the registry."""
    lowered = {name.lower(): value.strip().lower() for name, value in options.items()}
    named = bool({"schemasubject", "schemaversion"} & set(lowered))
    return lowered.get("payloadformat", "binary") in REGISTRY_FORMATS or named


def schema_options(options: Mapping[str, str]) -> ReadOptions:
    """Read options before it is known whether they are those of a stream.

    Raises:
        ConfigurationError, InvalidNameError: as :func:`read_options`.
    """
    of_streams = {option.name.lower() for option in _OPTIONS if option.where == (_STREAM,)}
    return read_options(options, streaming=any(name.lower() in of_streams for name in options))


def write_options(options: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
    """Read the options of ``df.write`` or ``df.writeStream``.

    Raises:
        ConfigurationError: one is unknown, wrong, or missing.
        InvalidNameError: an invalid topic or producer name.
    """
    fields, _, _ = _parse(options, _WRITE)
    if "servers" not in fields:
        raise ConfigurationError("writing to a topic needs the option servers (danube://host:port)")
    if streaming and "batch_id" in fields:
        raise ConfigurationError("option batchId is for batch queries; a stream numbers its batches itself")
    if "batch_id" in fields and "producer_id" not in fields:
        raise ConfigurationError("option batchId needs the option producerId: both together identify a batch")
    if not streaming and fields.get("by_partition") and "producer_id" in fields and "batch_id" not in fields:
        raise ConfigurationError(
            "options commitScope=partition and producerId need the option batchId: each partition counts its batches"
        )
    made = WriteOptions(**fields)
    if made.payload_format == "binary" and {"schema_subject", "register_schema", "is_framed"} & set(fields):
        raise ConfigurationError(
            "options schemaSubject, registerSchema and schemaFraming need payloadFormat=avro, json or protobuf"
        )
    if made.payload_format != "binary" and not made.topic and not made.schema_subject:
        raise ConfigurationError(
            f"payloadFormat={made.payload_format} without the option topic needs the option schemaSubject"
        )
    return made


def _parse(options: Mapping[str, str], where: str) -> tuple[dict[str, Any], list[str], dict[str, str]]:
    here = {option.name.lower(): option for option in _OPTIONS if where in option.where}
    elsewhere = {option.name.lower(): option for option in _OPTIONS if where not in option.where}
    fields: dict[str, Any] = {}
    given: dict[str, str] = {}
    secrets: dict[str, str] = {}
    for name, value in options.items():
        lowered = name.lower()
        if lowered.startswith(_STORAGE_OPTION) and where != _WRITE:
            secrets[lowered.removeprefix(_STORAGE_OPTION)] = value
            continue
        if lowered in _OF_SPARK:
            continue
        option = here.get(lowered)
        if option is None:
            raise ConfigurationError(_refusal(name, lowered, where, here, elsewhere))
        if option.field in given:
            raise ConfigurationError(
                f"the options {given[option.field]} and {option.name} have the same meaning: set only one of them"
            )
        given[option.field] = option.name
        fields[option.field] = option.parse(option.name, value)
    if "topics" in given and "topics_pattern" in given:
        raise ConfigurationError(f"give either the option {given['topics']} or topicsPattern, not both")
    return fields, list(given.values()), secrets


def _refusal(name: str, lowered: str, where: str, here: Mapping[str, _Option], elsewhere: Mapping[str, _Option]) -> str:
    if lowered in elsewhere:
        return f"option {elsewhere[lowered].name} has no effect on {where}; it is for {elsewhere[lowered].where[0]}"
    if lowered == "path":
        return (
            "a topic is not a path: give it as .option('topic', '/namespace/topic') and call load() without arguments"
        )
    if lowered in ("token", "tokenfile", "token_file", "api_key", "apikey", "ca", "cert", "key"):
        return (
            "certificates and tokens are not options, because plans show those: set DANUBE_CA, DANUBE_TOKEN_FILE ... in"
            " the environment of driver and executors (spark.executorEnv.DANUBE_TOKEN_FILE)"
        )
    if lowered == "kafka.bootstrap.servers":
        return "this is not Kafka: give the broker's address as .option('servers', 'danube://host:port')"
    known = sorted(option.name for option in here.values())
    remedy = nearest(name, known) or f" it has: {', '.join(known)}, storage.options.NAME"
    return f"the danube source has no option {name!r};{remedy}"
