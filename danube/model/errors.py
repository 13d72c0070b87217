"""All exceptions of Danube in one tree, with their mappings to gRPC and HTTP statuses and to process exit codes.

Every error visible to users is a subclass of :class:`DanubeError`. Its message states what happened, to which
object, and what to do. The class has everything that programs need:

* ``status``: the gRPC status code that goes on the wire (https://grpc.github.io/grpc/core/md_doc_statuscodes.html);
* ``code``: a stable name (``topic-not-found``) sent with the status, so that a client raises the same class;
* ``retryable``: whether the same request may succeed later without a change;
* ``details``: a few names and values, for example the address of the broker to ask instead.

A broker turns an exception into a :class:`WireError` with :func:`to_wire`; a client turns it back with
:func:`from_wire`; an HTTP response has its :func:`http_status`; a command line turns it into :func:`exit_code`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple

__all__ = [
    "AddressTakenError",
    "AlreadyExistsError",
    "BrokerDrainingError",
    "CallCancelledError",
    "ClosedError",
    "BrokerForgottenError",
    "ClusterConfigurationError",
    "ConfigurationError",
    "ConnectionLostError",
    "ConsumerDisplacedError",
    "CorruptBatchError",
    "CredentialsExpiredError",
    "DanubeError",
    "DataDirectoryError",
    "DataLossError",
    "DeadlineExceededError",
    "DuplicateSequenceError",
    "DurabilityMismatchError",
    "ExposedAddressError",
    "FailedPreconditionError",
    "IncompatibleSchemaError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidNameError",
    "InvalidSchemaError",
    "InvalidSchemaNumberError",
    "JournalFencedError",
    "JournalFullError",
    "LimitExceededError",
    "MessageTooLargeError",
    "MetadataConflictError",
    "NamespaceNotFoundError",
    "NotFoundError",
    "NotOwnerError",
    "OutOfDescriptorsError",
    "OwnerAwayError",
    "OwnerFencedError",
    "PeerRefusedError",
    "PeerBlockedError",
    "PeerFloodError",
    "PermissionDeniedError",
    "ProducerFencedError",
    "ProtocolError",
    "RequestFailedError",
    "SchemaMismatchError",
    "SchemaModeError",
    "SchemaNotDeletedError",
    "SchemaNotFoundError",
    "SchemaError",
    "SchemaPayloadError",
    "SchemaReferencedError",
    "SchemaSettingNotFoundError",
    "SchemaTooLargeError",
    "SchemaVersionDeletedError",
    "SchemaVersionNotFoundError",
    "SequenceGapError",
    "Status",
    "StorageConflictError",
    "StorageDeniedError",
    "StorageError",
    "StorageExistsError",
    "StorageNotFoundError",
    "StorageRangeError",
    "StorageThrottledError",
    "StorageTimeoutError",
    "StorageUnavailableError",
    "SubjectDeletedError",
    "SubjectNotFoundError",
    "SubscriptionBusyError",
    "SubscriptionNotFoundError",
    "SubscriptionTypeMismatchError",
    "TopicNotFoundError",
    "TopicReplacedError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnsupportedBatchError",
    "WatchCompactedError",
    "WireError",
    "exit_code",
    "from_wire",
    "http_status",
    "to_wire",
]


class Status(enum.IntEnum):
    """gRPC status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class DanubeError(Exception):
    """Base of every error that Danube raises deliberately."""

    status: ClassVar[Status] = Status.UNKNOWN
    code: ClassVar[str] = "unknown"
    retryable: ClassVar[bool] = False
    details: Mapping[str, str] = MappingProxyType({})
    """Names and values for programs, as the class describes them; short, because they are sent in a trailer."""

    def __init__(self, message: str = "", details: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        if details:
            self.details = dict(details)


class InternalError(DanubeError):
    """A bug in Danube: an invariant did not hold."""

    status, code = Status.INTERNAL, "internal"


class InvalidArgumentError(DanubeError):
    """The request can never succeed as it is."""

    status, code = Status.INVALID_ARGUMENT, "invalid-argument"


class InvalidNameError(InvalidArgumentError):
    """A topic, namespace, subscription, producer or consumer name breaks the naming rules."""

    code = "invalid-name"


class MessageTooLargeError(InvalidArgumentError):
    """A message or batch is larger than a named limit."""

    code = "message-too-large"


class CorruptBatchError(InvalidArgumentError):
    """The bytes of a batch do not match their checksum or their own header."""

    code = "corrupt-batch"


class UnsupportedBatchError(CorruptBatchError):
    """A batch is of another version, or requires a feature that this version of Danube does not know."""

    code = "unsupported-batch"


class InvalidSchemaError(InvalidArgumentError):
    """A text is not a valid schema of its type, or a reference is missing."""

    code = "invalid-schema"


class SchemaTooLargeError(InvalidArgumentError):
    """A schema, its references or its notes exceed a named limit."""

    code = "schema-too-large"


class SchemaError(InvalidArgumentError):
    """A value does not fit its schema, or a payload cannot be decoded with the schemas of its writer and its reader.

    The message names the field, as far as it is known.
    """

    code = "schema-value"


class SchemaPayloadError(SchemaError):
    """A payload does not conform to its schema, or to the framing of its topic."""

    code = "schema-payload"


class InvalidSchemaNumberError(InvalidArgumentError):
    """The given number or version of a schema is taken or out of range."""

    code = "invalid-schema-number"


class NotFoundError(DanubeError):
    """A named object does not exist."""

    status, code = Status.NOT_FOUND, "not-found"


class NamespaceNotFoundError(NotFoundError):
    """The namespace does not exist."""

    code = "namespace-not-found"


class TopicNotFoundError(NotFoundError):
    """The topic does not exist, and may not be created by this request."""

    code = "topic-not-found"


class SubscriptionNotFoundError(NotFoundError):
    """The subscription does not exist."""

    code = "subscription-not-found"


class SubjectNotFoundError(NotFoundError):
    """The subject of the schema registry does not exist, or has no version."""

    code = "subject-not-found"


class SubjectDeletedError(SubjectNotFoundError):
    """The subject was deleted already; it can only be deleted permanently."""

    code = "subject-deleted"


class SchemaVersionNotFoundError(NotFoundError):
    """The subject has no such version."""

    code = "schema-version-not-found"


class SchemaVersionDeletedError(SchemaVersionNotFoundError):
    """The version was deleted already; it can only be deleted permanently."""

    code = "schema-version-deleted"


class SchemaNotFoundError(NotFoundError):
    """There is no schema with this number, or no version of the subject has this content."""

    code = "schema-not-found"


class SchemaSettingNotFoundError(NotFoundError):
    """The subject, or the registry, has no such setting of its own."""

    code = "schema-setting-not-found"


class AlreadyExistsError(DanubeError):
    """The object to be created exists already."""

    status, code = Status.ALREADY_EXISTS, "already-exists"


class DuplicateSequenceError(AlreadyExistsError):
    """The batch was stored before, so long ago that the broker no longer knows its offsets."""

    code = "duplicate-sequence"


class FailedPreconditionError(DanubeError):
    """The system is in a state that forbids the request; retrying alone does not help."""

    status, code = Status.FAILED_PRECONDITION, "failed-precondition"


class DurabilityMismatchError(FailedPreconditionError):
    """A producer asks for another durability than the topic was created with."""

    code = "durability-mismatch"


class SubscriptionTypeMismatchError(FailedPreconditionError):
    """A consumer asks for another subscription type than the subscription was created with."""

    code = "subscription-type-mismatch"


class TopicReplacedError(FailedPreconditionError):
    """The topic is not the one that the caller means: it was deleted, and another one of its name was created."""

    code = "topic-replaced"


class SubscriptionBusyError(FailedPreconditionError):
    """An exclusive subscription has a connected consumer already."""

    code = "subscription-busy"


class ConsumerDisplacedError(FailedPreconditionError):
    """A consumer of the same name has connected to the same subscription and taken over."""

    code = "consumer-displaced"


class ProducerFencedError(FailedPreconditionError):
    """A newer session of the same producer, or a newer exclusive producer, has taken over."""

    code = "producer-fenced"


class OwnerFencedError(FailedPreconditionError):
    """Another broker has taken over the data that this one owned; its later changes have no effect.

    Retryable: the present owner can execute the request, and knows the outcome of changes that were in flight.
    """

    code, retryable = "owner-fenced", True


class PeerRefusedError(FailedPreconditionError):
    """Two brokers do not belong to the same cluster, or cannot prove it, so there is no link between them."""

    code = "peer-refused"


class SequenceGapError(FailedPreconditionError):
    """A batch does not continue its producer's sequence."""

    code = "sequence-gap"


class IncompatibleSchemaError(FailedPreconditionError):
    """A schema is not compatible with existing versions of its subject. The message contains all reasons."""

    code = "incompatible-schema"


class SchemaNotDeletedError(FailedPreconditionError):
    """A subject or version cannot be deleted permanently, because it was not deleted before."""

    code = "schema-not-deleted"


class SchemaReferencedError(FailedPreconditionError):
    """A version or schema cannot be deleted, because other schemas refer to it. The message names some of them."""

    code = "schema-referenced"


class SchemaMismatchError(FailedPreconditionError):
    """A batch names no schema of its topic's subject, or does not fit it, and the topic takes no others.

    Final: not to be sent again.
    """

    code = "schema-mismatch"


class SchemaModeError(FailedPreconditionError):
    """The mode of the subject, or of the registry, does not permit the change."""

    code = "schema-mode"


class MetadataConflictError(DanubeError):
    """A conditional metadata change lost against another one; read again and retry."""

    status, code, retryable = Status.ABORTED, "metadata-conflict", True


class WatchCompactedError(DanubeError):
    """A metadata watch asks for a revision whose history is gone; list again and watch from there."""

    status, code = Status.OUT_OF_RANGE, "watch-compacted"


class PermissionDeniedError(DanubeError):
    """The caller lacks permission, or the resource currently belongs to another caller."""

    status, code = Status.PERMISSION_DENIED, "permission-denied"


class UnauthenticatedError(DanubeError):
    """The caller has no valid credentials. The message never says what is wrong with those that it has sent."""

    status, code = Status.UNAUTHENTICATED, "unauthenticated"


class CredentialsExpiredError(UnauthenticatedError):
    """The credentials of an open call or stream have expired or were revoked; reconnect with new ones."""

    code, retryable = "credentials-expired", True


class LimitExceededError(DanubeError):
    """A named limit was hit. The message gives the limit's name, its value and how to raise it."""

    status, code, retryable = Status.RESOURCE_EXHAUSTED, "limit-exceeded", True


class JournalFullError(LimitExceededError):
    """The journal has reached its disk limit, or the disk is full; publishing waits for space."""

    code = "journal-full"


class OutOfDescriptorsError(LimitExceededError):
    """The process, or the machine, has no file descriptor left. This is not a disk error, and no data is lost."""

    code = "out-of-descriptors"


class UnavailableError(DanubeError):
    """The broker cannot answer now; try again, perhaps elsewhere."""

    status, code, retryable = Status.UNAVAILABLE, "unavailable", True


class CallRefusedError(UnavailableError):
    """The call was refused without being executed: repeating it cannot execute it twice."""

    code = "call-refused"


class PeerBlockedError(CallRefusedError):
    """The server closes a connection: too many wrong credentials came from its address, or its certificate ended."""

    code = "peer-blocked"


_MAX_EPOCH_DIGITS = 20


class OwnerAwayError(CallRefusedError):
    """The broker that owns the topic is away, and no other one may take its place yet. The message names both."""

    code = "owner-away"


class NotOwnerError(CallRefusedError):
    """Another broker owns the topic, and this one did not execute the request.

    ``details`` may contain ``address``, the ``host:port`` of the owner; without it, any broker can be asked for it. And
    ``epoch``, the decimal epoch of that owner; of two answers, the one with the higher epoch is newer.
    """

    code = "not-owner"

    @property
    def address(self) -> str:
        """The ``host:port`` of the owner; empty if the broker does not know it."""
        return self.details.get("address", "")

    @property
    def epoch(self) -> int:
        """Epoch of that owner; 0 if the broker does not know it, or sent something else."""
        text = self.details.get("epoch", "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_EPOCH_DIGITS else 0


class BrokerDrainingError(UnavailableError):
    """The broker is shutting down; reconnect."""

    code = "broker-draining"


class ConnectionLostError(UnavailableError):
    """The connection to the broker broke, or could not be opened."""

    code = "connection-lost"


class PeerFloodError(ConnectionLostError):
    """The peer sends more of what costs much and carries nothing than a limit allows. The message names the limit."""

    code = "peer-flood"


class JournalFencedError(UnavailableError):
    """The journal met an I/O error and accepts no more entries; the broker is about to exit."""

    code = "journal-fenced"


class DeadlineExceededError(DanubeError):
    """The deadline of a call passed before it was answered."""

    status, code, retryable = Status.DEADLINE_EXCEEDED, "deadline-exceeded", True


class CallCancelledError(DanubeError):
    """The call was cancelled by its caller or by a reset of its stream."""

    status, code = Status.CANCELLED, "cancelled"


class ClosedError(DanubeError):
    """A client, producer or consumer was used after it was closed."""

    status, code = Status.CANCELLED, "closed"


class DataLossError(DanubeError):
    """Stored data is damaged. The message names the exact range."""

    status, code = Status.DATA_LOSS, "data-loss"


class StorageError(DanubeError):
    """A storage operation failed. The message names the backend, the operation and the key."""

    status, code = Status.UNAVAILABLE, "storage"


class StorageNotFoundError(StorageError):
    """The object, or the bucket itself, does not exist."""

    status, code = Status.NOT_FOUND, "storage-not-found"


class StorageExistsError(StorageError):
    """A put with ``if_absent`` found an existing object under the key."""

    status, code = Status.ALREADY_EXISTS, "storage-exists"


class StorageRangeError(StorageError):
    """A range extends beyond the end of the object."""

    status, code = Status.OUT_OF_RANGE, "storage-range"


class StorageDeniedError(StorageError):
    """The backend refuses the credentials, or the credentials do not allow the operation."""

    status, code = Status.PERMISSION_DENIED, "storage-denied"


class StorageConflictError(StorageError):
    """The backend could not resolve a conflict of concurrent writers; try again."""

    status, code, retryable = Status.ABORTED, "storage-conflict", True


class StorageThrottledError(StorageError):
    """The backend asks the client to slow down."""

    status, code, retryable = Status.UNAVAILABLE, "storage-throttled", True


class StorageTimeoutError(StorageError):
    """The backend did not answer in time; the operation may have succeeded."""

    status, code, retryable = Status.DEADLINE_EXCEEDED, "storage-timeout", True


class StorageUnavailableError(StorageError):
    """The backend cannot be reached, or failed; the operation may have succeeded."""

    status, code, retryable = Status.UNAVAILABLE, "storage-unavailable", True


class UnimplementedError(DanubeError):
    """The method or codec is unknown to this broker."""

    status, code = Status.UNIMPLEMENTED, "unimplemented"


class ProtocolError(DanubeError):
    """A peer broke HTTP/2, gRPC framing or the native protocol."""

    status, code = Status.INTERNAL, "protocol-error"


class RequestFailedError(DanubeError):
    """The handler of a request failed; its type of error and text are in the message."""

    code = "request-failed"


class ConfigurationError(DanubeError):
    """A configuration file, option, context or plugin is invalid."""

    status, code = Status.INVALID_ARGUMENT, "configuration"


class ClusterConfigurationError(ConfigurationError):
    """The options of a broker that name its cluster, the other brokers or the cluster's secret are invalid."""

    status, code = Status.FAILED_PRECONDITION, "cluster-configuration"


class BrokerForgottenError(ConfigurationError):
    """The broker was declared gone for good, so it may not join its cluster again."""

    status, code = Status.FAILED_PRECONDITION, "broker-forgotten"


class ExposedAddressError(ConfigurationError):
    """A server without access control would listen on an address that other machines can reach."""

    status, code = Status.FAILED_PRECONDITION, "exposed-address"


class AddressTakenError(ConfigurationError):
    """A configured address of the HTTP API cannot be bound, usually because another process has it."""

    status, code = Status.FAILED_PRECONDITION, "address-taken"


class DataDirectoryError(DanubeError):
    """The data directory cannot be used: locked by another broker, read-only, or of another format."""

    status, code = Status.FAILED_PRECONDITION, "data-directory"


def _tree(root: type[DanubeError]) -> dict[str, type[DanubeError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


_BY_CODE = _tree(DanubeError)

# The class for a status without a Danube code, for example from a proxy.
_BY_STATUS: dict[Status, type[DanubeError]] = {
    Status.CANCELLED: CallCancelledError,
    Status.UNKNOWN: DanubeError,
    Status.INVALID_ARGUMENT: InvalidArgumentError,
    Status.DEADLINE_EXCEEDED: DeadlineExceededError,
    Status.NOT_FOUND: NotFoundError,
    Status.ALREADY_EXISTS: AlreadyExistsError,
    Status.PERMISSION_DENIED: PermissionDeniedError,
    Status.RESOURCE_EXHAUSTED: LimitExceededError,
    Status.FAILED_PRECONDITION: FailedPreconditionError,
    Status.ABORTED: MetadataConflictError,
    Status.UNIMPLEMENTED: UnimplementedError,
    Status.INTERNAL: InternalError,
    Status.UNAVAILABLE: UnavailableError,
    Status.DATA_LOSS: DataLossError,
    Status.UNAUTHENTICATED: UnauthenticatedError,
}

# Exit codes follow sysexits.h where it has a meaning for the status; 1 is any other error, 2 is a usage error.
_EXIT_BY_STATUS: dict[Status, int] = {
    Status.INVALID_ARGUMENT: 65,
    Status.NOT_FOUND: 66,
    Status.UNAVAILABLE: 69,
    Status.INTERNAL: 70,
    Status.ALREADY_EXISTS: 73,
    Status.DATA_LOSS: 74,
    Status.DEADLINE_EXCEEDED: 75,
    Status.RESOURCE_EXHAUSTED: 75,
    Status.ABORTED: 75,
    Status.UNIMPLEMENTED: 76,
    Status.PERMISSION_DENIED: 77,
    Status.UNAUTHENTICATED: 77,
    Status.FAILED_PRECONDITION: 78,
}

# As google.rpc.Code maps them to HTTP; any other status is 500.
_HTTP_BY_STATUS: dict[Status, int] = {
    Status.OK: 200,
    Status.CANCELLED: 499,
    Status.INVALID_ARGUMENT: 400,
    Status.FAILED_PRECONDITION: 400,
    Status.OUT_OF_RANGE: 400,
    Status.UNAUTHENTICATED: 401,
    Status.PERMISSION_DENIED: 403,
    Status.NOT_FOUND: 404,
    Status.ALREADY_EXISTS: 409,
    Status.ABORTED: 409,
    Status.RESOURCE_EXHAUSTED: 429,
    Status.UNIMPLEMENTED: 501,
    Status.UNAVAILABLE: 503,
    Status.DEADLINE_EXCEEDED: 504,
}


class WireError(NamedTuple):
    """An error as it is sent."""

    status: Status
    code: str
    message: str
    details: dict[str, str]


def to_wire(error: BaseException) -> WireError:
    """Return what is sent for an exception; a foreign exception becomes INTERNAL with nothing but its type."""
    if isinstance(error, DanubeError):
        return WireError(error.status, error.code, error.message, dict(error.details))
    text = f"internal error in the broker: {type(error).__name__}; see its log"
    return WireError(Status.INTERNAL, InternalError.code, text, {})


def from_wire(status: int, code: str, message: str, details: Mapping[str, str] | None = None) -> DanubeError:
    """Build the exception for what was sent."""
    kind = _BY_CODE.get(code)
    if kind is None:
        try:
            kind = _BY_STATUS.get(Status(status), DanubeError)
        except ValueError:
            kind = DanubeError
    return kind(message, details)


def http_status(error: BaseException) -> int:
    """Return the status of an HTTP response for an exception; a foreign one is 500."""
    return _HTTP_BY_STATUS.get(error.status, 500) if isinstance(error, DanubeError) else 500


def exit_code(error: BaseException) -> int:
    """Return the process exit code for an exception (see the table in the README)."""
    if isinstance(error, DanubeError):
        return _EXIT_BY_STATUS.get(error.status, 1)
    return 1
