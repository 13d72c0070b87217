"""The matrix of rights, path by path and caller by caller, through the ports of a real broker.

Only the operations are replaced, by one that says that it was reached: what is tested is that nothing gets past the
gate, on both ports and in both protocols, that the checked-in matrix does not allow.
"""

from __future__ import annotations

import enum
import re
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
import rights_matrix
from broker.broker_harness import RunningBroker, running_broker
from test_security_tokens import FORGERIES
from token_helpers import CLUSTER_KEY, NOW, cluster_token, keyring

import danube.compat
from danube.broker.security.gate import Gate
from danube.compat.codec import PROTO
from danube.compat.proto import danube_api_pb2, reflection_pb2, reflection_v1alpha_pb2
from danube.metadata import Put
from danube.model.api import Empty
from danube.model.errors import (
    CallRefusedError,
    DanubeError,
    FailedPreconditionError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from danube.security import BUILT_IN_ROLES, Permission, Principal
from danube.security.book import first_records
from danube.security.flaws import NO_PROOF
from danube.security.proofs import mint
from danube.security.records import (
    BINDINGS,
    REVOKED,
    BindingRecord,
    PrincipalRecord,
    RevocationRecord,
    encode_record,
    principal_key,
)
from danube.security.rights import RULES, Port, Rule
from danube.wire import MSGPACK, Method, Service, connect_channel
from danube.wire.client import Channel

REACHED = "the operation was reached"
PROOFLESS = ("none", "bad", "expired", "revoked")
UNTHROTTLED = {
    "failed_proofs_burst": 1_000_000,
    "failed_proofs_per_s": 1e6,
    "failed_proofs_all_per_s": 1e6,
    "refused_proofs_burst": 1_000_000,
    "refused_proofs_per_s": 1e6,
}
REFLECTION = {"v1": reflection_pb2, "v1alpha": reflection_v1alpha_pb2}


def expected() -> dict[Port, dict[str, dict[str, str]]]:
    """Return the signs of the checked-in matrix, by port, path and caller."""
    found: dict[Port, dict[str, dict[str, str]]] = {}
    port, heads = Port.CLIENT, list[str]()
    for line in rights_matrix.FILE.read_text("utf-8").splitlines():
        cells = [each.strip() for each in line.strip("|").split("|")]
        if line == "## HTTP":
            break  # its routes make these calls: see tests/web/test_web_security.py
        if line.startswith("## "):
            port = {"## Client port": Port.CLIENT, "## Admin port": Port.ADMIN, "## Storage server": Port.STORAGE}[line]
        elif cells[0] == "path":
            heads = cells[1:-1]
        elif heads and line.startswith("| "):
            path = f"/{cells[0]}" if f"/{cells[0]}" in RULES else f"/danube.native.v1.{cells[0]}"
            found.setdefault(port, {})[path] = dict(zip(heads, cells[1:-1], strict=True))
    return found


def stub(method: Method) -> Method:
    """Return a method whose operation says that it was reached."""

    async def handler(*_: object) -> Any:
        raise FailedPreconditionError(REACHED)

    def start(*_: object) -> None:
        raise FailedPreconditionError(REACHED)

    if method.start is not None:
        return msgspec.structs.replace(method, start=start)
    return msgspec.structs.replace(method, handler=handler)


def value_of(kind: Any, given: Any, name: str) -> Any:
    """Return the value of a field: the given one if it fits, else the plainest one of its kind."""
    kind = getattr(kind, "__supertype__", kind)
    kinds = get_args(kind) if get_origin(kind) not in (list, dict, tuple) else (kind,)
    plain = kinds[0] if kinds else kind
    if NoneType in kinds:
        return None
    origin = get_origin(plain) or plain
    wanted = getattr(given, name, None)
    if origin in (list, tuple, dict):
        return wanted if isinstance(wanted, list) and origin is list else origin()
    if wanted is not None and type(wanted) is origin:
        return wanted
    if issubclass(origin, msgspec.Struct):
        return request_of(origin, given)
    return next(iter(origin)) if issubclass(origin, enum.Enum) else origin()


def request_of(kind: Any, given: SimpleNamespace) -> Any:
    """Return a request with the values of the matrix in the fields that it has."""
    if issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return kind(
            **{
                each.name: value_of(hints[each.name], given, each.name)
                for each in msgspec.structs.fields(kind)
                if each.required or hasattr(given, each.name)
            }
        )
    message = kind()
    for name, field in kind.DESCRIPTOR.fields_by_name.items():
        value = getattr(given, name, None)
        if value is None:
            continue
        if isinstance(value, SimpleNamespace):
            getattr(message, name).CopyFrom(request_of(field.message_type._concrete_class, value))
        elif isinstance(value, list):
            getattr(message, name).extend(value)
        elif field.type != field.TYPE_ENUM and isinstance(value, str) == (field.type == field.TYPE_STRING):
            setattr(message, name, value)
    return message


def kind_of(method: Method) -> Any:
    """Return the type of the (first) request message of a method."""
    if method.opening is not None:
        return method.opening
    if match := re.match(r"/grpc.reflection.(\w+)\.", method.path):
        return REFLECTION[match[1]].ServerReflectionRequest
    if method.path.endswith("Health/Watch"):
        return danube_api_pb2.HealthCheckRequest
    return Empty if method.request_type is bytes else method.request_type


class Matrix:
    """A broker with the callers of the matrix."""

    def __init__(self, running: RunningBroker) -> None:
        self.running = running
        self.now_s = int(time.time())

    async def begin(self) -> None:
        """Write the records of all callers."""
        rights, self.callers = rights_matrix.callers()
        cluster = self.running.config.cluster
        changes = list(first_records(cluster, CLUSTER_KEY.public_bytes, "user:admin", {}, now_us=1))
        operations = [Put(each.key, encode_record(each.record)) for each in changes if each.record is not None]
        for binding in rights.bindings.values():
            record = BindingRecord(subject=binding.subject, roles=binding.roles, scope=str(binding.scope))
            operations.append(Put(BINDINGS + binding.id, encode_record(record)))
        suspended = encode_record(PrincipalRecord(is_suspended=True))
        operations += [Put(principal_key(subject), suspended) for subject in rights.suspended]
        stolen = RevocationRecord(expires_us=(self.now_s + 1000) * 1_000_000)
        operations.append(Put(f"{REVOKED}stolen", encode_record(stolen)))
        result = await self.running.broker.metadata.transact([], operations)
        assert self.running.broker._access.gate is not None
        await self.running.broker._access.gate.replica.at(result.revision)

    def authorization(self, caller: str) -> str:
        """Return the header that a caller sends; empty: none."""
        if caller == "none":
            return ""
        principal = self.callers.get(caller)
        age_s = 10_000 if caller == "expired" else 10
        token = mint(
            CLUSTER_KEY,
            issuer=self.running.config.cluster,
            cluster=self.running.config.cluster,
            subject=str(principal) if isinstance(principal, Principal) else "user:admin",
            token_id="stolen" if caller == "revoked" else "t",
            issued_at_s=self.now_s - age_s,
            expires_at_s=self.now_s - age_s + 3600,
        )
        return f"Bearer {token[:-4]}AAAA" if caller == "bad" else f"Bearer {token}"

    @asynccontextmanager
    async def channels(self) -> AsyncGenerator[dict[tuple[Port, bool], Channel], None]:
        """Connect to both ports: by port, and whether with the native codec."""
        (admin,) = self.running.broker.admin_addresses
        ports = {Port.CLIENT: self.running.port, Port.ADMIN: int(admin.rpartition(":")[2])}
        async with AsyncExitStack() as stack:
            yield {
                (port, native): await stack.enter_async_context(
                    connect_channel("127.0.0.1", number, codec=MSGPACK if native else PROTO)
                )
                for port, number in ports.items()
                for native in (True, False)
            }


async def outcome(channel: Channel, method: Method, request: Any, authorization: str) -> DanubeError:
    metadata = {"authorization": authorization} if authorization else {}
    try:
        if method.kind == "unary":
            await channel.unary(method.path, request, Any, metadata=metadata)
        else:
            async with channel.open_stream(method.path, metadata=metadata) as stream:
                stream.send_nowait(channel.codec.encode(request))
                await stream.receive()
    except DanubeError as error:
        return error
    raise AssertionError(f"{method.path} has succeeded although its operation was replaced")


def sign_of(error: DanubeError) -> str:
    """Return the sign of the matrix for an outcome."""
    match error:
        case UnauthenticatedError() if error.message == NO_PROOF:
            return "who?"
        case PermissionDeniedError() if "may not call" in error.message:
            return "no"
        case NotFoundError() if "may not see it" in error.message:
            return "hidden"
        case UnavailableError() if "these credentials may not use it" in error.message:
            return "unknown"
        case FailedPreconditionError() if error.message == REACHED:
            return "yes"
        case CallRefusedError() if "no cluster secret" in error.message:
            return "no link"
    return f"{type(error).__name__}: {error}"


def wanted_sign(rule: Rule, signs: dict[str, str], caller: str) -> str:
    if any(each.permission is Permission.BROKER_INTERNAL for each in rule.requirements):
        return "no link"  # this broker has no cluster secret, so that no proof is enough
    sign = signs["none" if caller in PROOFLESS else caller]
    return "yes" if sign == "part" else sign


async def test_each_path_and_each_caller_through_a_real_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Gate.guarded
    monkeypatch.setattr(
        Gate,
        "guarded",
        lambda gate, service: guarded(gate, {path: stub(method) for path, method in service.items()}),
    )
    monkeypatch.setattr(Gate, "check_served", lambda *_args, **_named: None)
    signs = expected()
    wrong, count = [], 0
    async with running_broker(
        tmp_path,
        patience_s=60,
        faces=(danube.compat.face,),
        admin_listen=["127.0.0.1:0"],
        security={"enabled": True, "limits": UNTHROTTLED},
    ) as running:
        broker = running.broker
        monkeypatch.setattr(broker._access.gate, "_book", rights_matrix.Belongings())
        matrix = Matrix(running)
        await matrix.begin()
        assert broker._ports.admin is not None
        served: dict[Port, Service] = {
            Port.CLIENT: broker._ports.client.methods,
            Port.ADMIN: broker._ports.admin.methods,
        }
        assert {port: set(methods) for port, methods in served.items()} == {port: set(signs[port]) for port in served}
        async with matrix.channels() as channels:
            for caller in (*PROOFLESS, *(each for each in matrix.callers if each not in ("none", "broker"))):
                authorization = matrix.authorization(caller)
                for port, methods in served.items():
                    for path, method in methods.items():
                        kind = kind_of(method)
                        native = issubclass(kind, msgspec.Struct)
                        request = request_of(kind, rights_matrix.request_of(RULES[path]))
                        error = await outcome(channels[port, native], method, request, authorization)
                        count += 1
                        wanted = wanted_sign(RULES[path], signs[port][path], caller)
                        if sign_of(error) != wanted:
                            wrong.append(f"{caller} {path}: {sign_of(error)}, not {wanted}")
    assert wrong == []
    assert count > 130 * (len(BUILT_IN_ROLES) + 10)


async def test_forgeries_prove_nothing_in_either_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sendable = {
        name: token
        for name, (token, _) in FORGERIES.items()
        if re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", token)
    }
    assert len(sendable) > 90
    async with running_broker(
        tmp_path,
        cluster="prod",
        faces=(danube.compat.face,),
        admin_listen=["127.0.0.1:0"],
        security={"enabled": True, "limits": UNTHROTTLED},
    ) as running:
        gate = running.broker._access.gate
        assert gate is not None
        monkeypatch.setattr(gate, "_wall_s", lambda: float(NOW))
        trusted = keyring()
        gate._guard.configure(
            (kid, found) for (_, kid, _), found in trusted._keys.items() if found.issuer not in ("prod", "shop-team")
        )
        matrix = Matrix(running)
        await matrix.begin()
        info = running.broker._ports.client.methods["/danube.native.v1.Broker/Info"]
        health = running.broker._ports.client.methods["/danube.HealthCheck/HealthCheck"]
        request = danube_api_pb2.HealthCheckRequest(client=danube_api_pb2.HealthCheckRequest.Producer, id=7)
        async with matrix.channels() as channels:
            native, proto = channels[Port.CLIENT, True], channels[Port.CLIENT, False]
            good = {"authorization": f"Bearer {cluster_token()}"}
            await native.unary(info.path, Empty(), Any, metadata=good)
            await proto.unary(health.path, request, danube_api_pb2.HealthCheckResponse, metadata=good)
            for name, token in sendable.items():
                for channel, method, message in ((native, info, Empty()), (proto, health, request)):
                    error = await outcome(channel, method, message, f"Bearer {token}")
                    assert sign_of(error) == "who?", name
