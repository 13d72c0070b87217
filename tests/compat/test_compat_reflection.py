"""Health and reflection, as any gRPC server has them: asked by our own client, and by the gRPC project's programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from compat_harness import Caller, admin_port, calling, compat_broker
from google.protobuf import descriptor_pb2

from danube.compat.proto import health_pb2, reflection_pb2, reflection_v1alpha_pb2
from danube.model.errors import BrokerDrainingError, NotFoundError, Status

HEALTH = "grpc.health.v1.Health"
REFLECTION = ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"]
CLIENT_SERVICES = [
    "danube.AuthService",
    "danube.ConsumerService",
    "danube.Discovery",
    "danube.HealthCheck",
    "danube.ProducerService",
    "danube.StorageService",
    "danube_schema.SchemaRegistry",
    HEALTH,
    *REFLECTION,
]
VERSIONS = {"v1": reflection_pb2, "v1alpha": reflection_v1alpha_pb2}
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def check(caller: Caller, service: str = "") -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return (await caller.unary(f"/{HEALTH}/Check", request, health_pb2.HealthCheckResponse)).status


async def test_both_ports_and_each_service_are_healthy(tmp_path: Path) -> None:
    async with (
        compat_broker(tmp_path, admin_listen=["127.0.0.1:0"]) as running,
        calling(running) as client,
        calling(running, admin_port(running)) as admin,
    ):
        for name in ["", *CLIENT_SERVICES]:
            assert await check(client, name) == SERVING
        for name in ["", "danube_schema.SchemaRegistry", HEALTH]:
            assert await check(admin, name) == SERVING
        with pytest.raises(NotFoundError, match=r"service 'danube[.]Discovery' does not exist on this port"):
            await check(admin, "danube.Discovery")
        with pytest.raises(NotFoundError):
            await check(client, "danube.Nothing")
        answer = await client.unary(f"/{HEALTH}/List", health_pb2.HealthListRequest(), health_pb2.HealthListResponse)
        assert sorted(answer.statuses) == ["", *CLIENT_SERVICES]
        assert {each.status for each in answer.statuses.values()} == {SERVING}


async def statuses(stream: Any, count: int) -> list[int]:
    found = []
    for _ in range(count):
        message = await stream.receive()
        found.append(health_pb2.HealthCheckResponse.FromString(message.data).status)
        message.release()
    return found


async def test_who_watches_hears_of_the_drain(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        async with (
            caller.channel.open_stream(f"/{HEALTH}/Watch") as known,
            caller.channel.open_stream(f"/{HEALTH}/Watch") as unknown,
        ):
            known.send_nowait(health_pb2.HealthCheckRequest(service="danube.Discovery").SerializeToString())
            unknown.send_nowait(health_pb2.HealthCheckRequest(service="none").SerializeToString())
            assert await statuses(known, 1) == [SERVING]
            assert await statuses(unknown, 1) == [health_pb2.HealthCheckResponse.SERVICE_UNKNOWN]
            with trio.move_on_after(0.05) as silence:
                await known.receive()
            assert silence.cancelled_caught
            running.broker.drain()
            assert await statuses(known, 1) == [NOT_SERVING]
            for stream in (known, unknown):
                with pytest.raises(BrokerDrainingError):
                    await stream.receive()
        await running.drain()


async def test_the_admin_port_answers_while_the_other_one_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with compat_broker(tmp_path, admin_listen=["127.0.0.1:0"]) as running:
        broker, held = running.broker, trio.Event()
        drain = broker._server.drain

        async def slow(*times_s: float) -> None:
            await held.wait()
            await drain(*times_s)

        monkeypatch.setattr(broker._server, "drain", slow)
        async with calling(running, admin_port(running)) as admin:
            assert await check(admin) == SERVING
            broker.drain()
            assert await check(admin) == await check(admin, HEALTH) == NOT_SERVING
            held.set()


class Asking:
    """A reflection stream."""

    def __init__(self, stream: Any, pb: Any) -> None:
        self.stream = stream
        self.pb = pb

    async def __call__(self, **asked: Any) -> Any:
        request = self.pb.ServerReflectionRequest(host="somewhere", **asked)
        self.stream.send_nowait(request.SerializeToString())
        message = await self.stream.receive()
        response = self.pb.ServerReflectionResponse.FromString(message.data)
        message.release()
        assert (response.valid_host, response.original_request) == ("somewhere", request)
        return response

    async def files(self, **asked: Any) -> dict[str, Any]:
        response = await self(**asked)
        parsed = map(
            descriptor_pb2.FileDescriptorProto.FromString, response.file_descriptor_response.file_descriptor_proto
        )
        return {file.name: file for file in parsed}

    async def error(self, **asked: Any) -> int:
        response = await self(**asked)
        assert response.error_response.error_message
        return response.error_response.error_code


@pytest.mark.parametrize("version", VERSIONS)
async def test_served_methods_are_described_by_reflection(tmp_path: Path, version: str) -> None:
    pb = VERSIONS[version]
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        async with caller.channel.open_stream(path) as stream:
            ask = Asking(stream, pb)
            listed = (await ask(list_services="")).list_services_response.service
            assert [each.name for each in listed] == CLIENT_SERVICES
            for name in CLIENT_SERVICES:
                (file,) = (await ask.files(file_containing_symbol=name)).values()
                assert name in {f"{file.package}.{service.name}" for service in file.service}
                assert await ask.files(file_by_filename=file.name) == {file.name: file}
            for symbol in (
                "danube.ProducerService.SendMessage",
                "danube.StreamMessage",
                ".danube.StreamMessage",
                "danube.StreamMessage.payload",
                "danube.ConsumerRequest.SubscriptionType",
                "danube.ConsumerRequest.KeyShared",
                "danube.DispatchStrategy",
                "danube.SchemaReference.version_ref",
            ):
                assert list(await ask.files(file_containing_symbol=symbol)) == ["danube_api.proto"]
            numbers = (await ask(all_extension_numbers_of_type="danube.MsgID")).all_extension_numbers_response
            assert (numbers.base_type_name, list(numbers.extension_number)) == ("danube.MsgID", [])


@pytest.mark.parametrize("version", VERSIONS)
async def test_reflection_refuses_unknown_requests(tmp_path: Path, version: str) -> None:
    pb = VERSIONS[version]
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        async with caller.channel.open_stream(path) as stream:
            ask = Asking(stream, pb)
            assert await ask.error(file_by_filename="nothing.proto") == Status.NOT_FOUND
            for symbol in (
                "danube.Nothing",
                "danube.Discovery.Nothing",
                "danube",
                "",
                "danube_admin.BrokerAdmin",
                "google.protobuf.FileDescriptorProto",
            ):
                assert await ask.error(file_containing_symbol=symbol) == Status.NOT_FOUND
            assert await ask.error(all_extension_numbers_of_type="danube.Nothing") == Status.NOT_FOUND
            extension = pb.ExtensionRequest(containing_type="danube.MsgID", extension_number=100)
            assert await ask.error(file_containing_extension=extension) == Status.NOT_FOUND
            assert await ask.error() == Status.INVALID_ARGUMENT
            assert (await ask(list_services="")).list_services_response.service  # the stream goes on
            stream.end()
            assert await stream.receive() is None


_FOREIGN = """
import sys
import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

with grpc.insecure_channel(sys.argv[1]) as channel:
    database = ProtoReflectionDescriptorDatabase(channel)
    pool = descriptor_pool.DescriptorPool(database)
    for name in sorted(database.get_services()):
        print(name, *sorted(method.name for method in pool.FindServiceByName(name).methods))
    health = health_pb2_grpc.HealthStub(channel)
    print("healthy", health.Check(health_pb2.HealthCheckRequest(), timeout=10).status)
    print("watched", next(iter(health.Watch(health_pb2.HealthCheckRequest(service="danube.Discovery")))).status)
    try:
        health.Check(health_pb2.HealthCheckRequest(service="none"), timeout=10)
    except grpc.RpcError as error:
        print("unknown", error.code().name)

# As grpcurl does: only the name of the call is known.
with grpc.insecure_channel(sys.argv[2]) as channel:
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    method = pool.FindServiceByName("danube_admin.BrokerAdmin").FindMethodByName("ListNamespaces")
    given, returned = map(message_factory.GetMessageClass, (method.input_type, method.output_type))
    call = channel.unary_unary("/danube_admin.BrokerAdmin/ListNamespaces", given.SerializeToString, returned.FromString)
    print("namespaces", *call(given(), timeout=10).namespaces)
"""


async def test_programs_of_the_grpc_project_understand_it(tmp_path: Path) -> None:
    pytest.importorskip("grpc_reflection", reason="grpcio-reflection is not installed; it is in the group 'test'")
    async with compat_broker(tmp_path, patience_s=30, admin_listen=["127.0.0.1:0"]) as running:
        # In a process of its own: its descriptors have the names of ours.
        ports = [f"127.0.0.1:{port}" for port in (running.port, admin_port(running))]
        done = await trio.run_process(
            [sys.executable, "-c", _FOREIGN, *ports], capture_stdout=True, stderr=subprocess.STDOUT
        )
    lines = done.stdout.decode().splitlines()
    assert [line.split()[0] for line in lines[:-4]] == CLIENT_SERVICES
    assert "danube.ProducerService CreateProducer SendMessage" in lines
    assert lines[-4:] == ["healthy 1", "watched 1", "unknown NOT_FOUND", "namespaces default system"]
