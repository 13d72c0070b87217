"""AuthService and SecurityAdmin at a broker with access control: the first token, an API key, and what it may do."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from compat_harness import admin_port, calling, compat_broker
from security.token_helpers import signed_by

from danube.broker.operations.security_start import SIGNING_KEY
from danube.compat.proto import danube_admin_pb2 as admin_pb
from danube.compat.proto import danube_api_pb2 as pb
from danube.compat.proto import danube_auth_pb2 as auth_pb
from danube.model import security_api as api
from danube.model.errors import NotFoundError, PermissionDeniedError, UnauthenticatedError
from danube.security import Principal, PrincipalType
from danube.security.api_keys import RANDOM_BYTES, NewApiKey, make_api_key
from danube.security.flaws import NO_PROOF
from danube.security.jws import parse_token
from danube.security.keys import signing_key_of_pem
from danube.security.proofs import mint

ADMIN = Principal(PrincipalType.USER, "admin")
AUTHENTICATE, LOOKUP = "/danube.AuthService/Authenticate", "/danube.Discovery/TopicLookup"


@asynccontextmanager
async def secured(directory: Path) -> AsyncGenerator[Any, None]:
    security = {"enabled": True, "administrator": "user:admin"}
    async with compat_broker(directory, admin_listen=["127.0.0.1:0"], security=security) as running:
        yield running


def first_token(running: Any) -> str:
    """Return a token of the administrator, signed as `danube security init` does."""
    key = signing_key_of_pem((Path(running.config.data_directory) / SIGNING_KEY).read_text())
    now_s = int(time.time())
    return mint(
        key,
        issuer="danube",
        cluster="danube",
        subject="user:admin",
        token_id=secrets.token_hex(8),
        issued_at_s=now_s,
        expires_at_s=now_s + 60,
    )


async def add_key(running: Any) -> NewApiKey:
    new, security = make_api_key(secrets.token_bytes(RANDOM_BYTES)), running.broker.operations.security
    await security.put_binding(ADMIN, api.PutBinding("service:java", ["producer"], "namespace:default"))
    await security.add_key(ADMIN, api.AddKey(new.id, new.hash, "service:java"))
    return new


async def call(caller: Any, path: str, request: Any, answer: Any, credential: str = "") -> Any:
    metadata = {"authorization": f"Bearer {credential}"} if credential else {}
    return await caller.channel.unary(path, request, answer, metadata=metadata, timeout_s=10)


async def test_an_api_key_is_exchanged_for_a_token_that_ends_with_it(tmp_path: Path) -> None:
    async with secured(tmp_path) as running, calling(running) as caller:
        new = await add_key(running)
        lookup = pb.TopicLookupRequest(topic="/default/none")

        async def exchange(key: str) -> str:
            answer = await call(caller, AUTHENTICATE, auth_pb.AuthRequest(api_key=key), auth_pb.AuthResponse)
            return str(answer.token)

        token = await exchange(new.text)
        claims = parse_token(token, 8192).claims
        assert claims["sub"] == "service:java"
        assert claims["exp"] - claims["iat"] >= 2 * 3600
        for credential in (token, new.text):
            with pytest.raises(NotFoundError):
                await call(caller, LOOKUP, lookup, pb.TopicLookupResponse, credential)
        for wrong in ("", "x", new.text[:-1] + ("a" if new.text[-1] != "a" else "b"), token, first_token(running)):
            with pytest.raises(UnauthenticatedError) as caught:
                await exchange(wrong)
            assert caught.value.message == NO_PROOF
        await running.broker.operations.security.drop_key(ADMIN, api.DropKey(new.id))
        for credential in (token, new.text):
            with pytest.raises(UnauthenticatedError):
                await call(caller, LOOKUP, lookup, pb.TopicLookupResponse, credential)


async def test_without_access_control_the_client_gets_a_text_that_is_ignored(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        answer = await call(caller, AUTHENTICATE, auth_pb.AuthRequest(api_key="any"), auth_pb.AuthResponse)
        with pytest.raises(NotFoundError):
            await call(
                caller, LOOKUP, pb.TopicLookupRequest(topic="/default/none"), pb.TopicLookupResponse, answer.token
            )


async def test_tokens_of_upstreams_tools_count_if_their_secret_is_configured(tmp_path: Path) -> None:
    secret = secrets.token_hex(32)

    def token(**changed: Any) -> str:
        claims = {
            "iss": "danube-auth",
            "exp": int(time.time()) + 60,
            "sub": "test-app",
            "principal_type": "user",
            "principal_name": "admin",
        }
        return signed_by(secret.encode(), {"alg": "HS256", "typ": "JWT"}, {**claims, **changed})

    path, answer = "/danube_admin.SecurityAdmin/ListRoles", admin_pb.ListRolesResponse
    for upstream in ({"upstream": {"secret": secret}}, {}):
        security = {"enabled": True, "administrator": "user:admin", **upstream}
        async with (
            compat_broker(tmp_path, admin_listen=["127.0.0.1:0"], security=security) as running,
            calling(running, admin_port(running)) as caller,
        ):
            wrong = [token(iss="other"), token(principal_type="broker_internal"), token(exp=1)]
            if upstream:
                assert (await call(caller, path, admin_pb.Empty(), answer, token())).roles
            else:
                wrong.append(token())
            for each in wrong:
                with pytest.raises(UnauthenticatedError):
                    await call(caller, path, admin_pb.Empty(), answer, each)


async def test_administrators_and_others_at_the_admin_port(tmp_path: Path) -> None:
    async with secured(tmp_path) as running, calling(running, admin_port(running)) as caller:
        new = await add_key(running)
        path = "/danube_admin.SecurityAdmin/"
        role = admin_pb.CreateRoleRequest(role=admin_pb.RoleDefinition(name="tap", permissions=["Consume"]))
        with pytest.raises(UnauthenticatedError):
            await call(caller, f"{path}CreateRole", role, admin_pb.CreateRoleResponse)
        with pytest.raises(PermissionDeniedError):
            await call(caller, f"{path}CreateRole", role, admin_pb.CreateRoleResponse, new.text)
        token = first_token(running)
        assert (await call(caller, f"{path}CreateRole", role, admin_pb.CreateRoleResponse, token)).success
        binding = admin_pb.BindingDefinition(
            id="b",
            principal_type="service_account",
            principal_name="test-app",
            role_names=["tap"],
            scope="topic",
            resource_name="/default/orders",
        )
        request = admin_pb.CreateBindingRequest(binding=binding)
        assert (await call(caller, f"{path}CreateBinding", request, admin_pb.CreateBindingResponse, token)).success
        found = await call(caller, f"{path}ListAllBindings", admin_pb.Empty(), admin_pb.ListBindingsResponse, token)
        assert {each.id for each in found.bindings} == {"first-admin", "b", "b-2"}
