"""``etcd://`` against a scripted peer: lost answers, expired tokens and leases, watches that end, members that fail."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
import trio
from danube_metadata_etcd.proto import etcd_pb2 as pb
from scripted_etcd import Conversation, ScriptedEtcd, header, lives_forever, refusal, scripted, store_at

from danube.metadata import Condition, LeaseId, MetadataStore, Put, open_store
from danube.model.errors import (
    ClosedError,
    ConfigurationError,
    DanubeError,
    InvalidArgumentError,
    LimitExceededError,
    NotFoundError,
    PermissionDeniedError,
    Status,
    UnavailableError,
    WatchCompactedError,
)

pytestmark = pytest.mark.timeout(30)

USER = {"username": "danube", "password": "sesame"}


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - of the peer's state, which has no events
        await trio.sleep(0.002)


async def insist(store: MetadataStore) -> None:
    """Read; once more if the call was sent on a connection that was about to break."""
    try:
        await store.get("/a")
    except UnavailableError as error:
        if "cannot be reached" in error.message:
            raise
        await store.get("/a")


def accept_put(request: Any, context: Any) -> Any:
    return pb.PutResponse(header=header(11))


# Answers that do not come


async def test_a_lost_answer_is_unavailable_and_the_change_is_not_repeated() -> None:
    async with scripted() as peer, store_at(peer) as store:

        async def apply_and_vanish(request: Any, context: Any) -> Any:
            peer.hang_up()
            await trio.sleep_forever()

        peer.answers["Put"] = apply_and_vanish
        with pytest.raises(UnavailableError, match=r"put of '/a': .*; it may have been applied"):
            await store.put("/a", b"")
        assert peer.count("Put") == 1
        with pytest.raises(
            UnavailableError, match=r"etcd cannot be reached: no connection to 127\.0\.0\.1:\d+: [^?]*$"
        ):
            await store.get("/a")


async def test_a_call_without_an_answer_ends_at_its_deadline() -> None:
    async with scripted() as peer, store_at(peer, request_timeout_s=0.1) as store:

        async def say_nothing(request: Any, context: Any) -> Any:
            await trio.sleep_forever()

        peer.answers |= {"Put": say_nothing, "Txn": say_nothing}
        with pytest.raises(UnavailableError, match="may have been applied"):
            await store.put("/a", b"")
        with pytest.raises(UnavailableError, match="may have been applied"):
            await store.transact([Condition("/a", 3)], [Put("/b", b"")])
        assert await store.get("/a") is None  # the connection is still used


async def test_closing_ends_a_call_that_waits_for_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        async with scripted() as peer:
            async with open_store(f"etcd://127.0.0.1:{peer.port},127.0.0.1:{silent.getsockname()[1]}") as store:
                peer.hang_up()
                failed: list[DanubeError] = []

                async def call() -> None:
                    while not failed:
                        try:
                            await store.get("/a")
                        except ClosedError as error:
                            failed.append(error)
                        except UnavailableError:
                            await trio.lowlevel.checkpoint()

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(call)
                    await trio.sleep(0.05)
                    await store.aclose()
            assert failed


@pytest.mark.parametrize(
    ("status", "text", "kind", "said"),
    [
        (Status.UNAVAILABLE, "leader changed", UnavailableError, "may have been applied"),
        (Status.UNAVAILABLE, "request timed out", UnavailableError, "may have been applied"),
        (Status.UNKNOWN, "raft proposal dropped", UnavailableError, "may have been applied"),
        (Status.RESOURCE_EXHAUSTED, "too many requests", UnavailableError, "try again"),
        (Status.RESOURCE_EXHAUSTED, "mvcc: database space exceeded", LimitExceededError, "--quota-backend-bytes"),
        (Status.INVALID_ARGUMENT, "request is too large", InvalidArgumentError, "too large"),
        (Status.PERMISSION_DENIED, "permission denied", PermissionDeniedError, "readwrite permission of the prefix"),
        (Status.INVALID_ARGUMENT, "user name is empty", PermissionDeniedError, "set username and password"),
    ],
)
async def test_refusals_of_a_change(status: Status, text: str, kind: type[DanubeError], said: str) -> None:
    async with scripted() as peer, store_at(peer) as store:
        peer.answers["Put"] = lambda request, context: refusal(status, text)
        with pytest.raises(kind, match=said) as found:
            await store.put("/a", b"")
        assert type(found.value) is kind
        assert text in str(found.value)
        assert f"127.0.0.1:{peer.port}" in str(found.value)
        assert peer.count("Put") == 1


# Several endpoints


async def test_the_next_endpoint_is_used_if_one_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = taken.getsockname()[1]
    async with scripted() as first, scripted() as second:
        url = f"etcd://127.0.0.1:{dead},127.0.0.1:{first.port},127.0.0.1:{second.port}"
        async with open_store(url) as store:
            assert first.count("Range") == 1
            first.hang_up()
            await insist(store)
            assert second.count("Range") == 1
            second.hang_up()
            with pytest.raises(UnavailableError, match="cannot be reached") as found:
                await insist(store)
            for port in (dead, first.port, second.port):
                assert f"127.0.0.1:{port}" in str(found.value)


async def test_a_member_without_a_leader_is_left() -> None:
    async with scripted() as first, scripted() as second, store_at(first, second) as store:
        first.answers["Range"] = lambda request, context: refusal(Status.UNAVAILABLE, "no leader")
        assert first.calls == second.calls == []
        with pytest.raises(UnavailableError, match="no leader; try again"):
            await store.get("/a")
        assert await store.get("/a") is None
        assert (first.count("Range"), second.count("Range")) == (1, 1)
        # That is what makes members refuse, instead of waiting for a leader.
        assert {metadata["hasleader"] for _, _, metadata in first.calls + second.calls} == {"true"}


# Users


def guard(peer: ScriptedEtcd) -> list[str]:
    """Let a peer want tokens; return the valid ones."""
    valid: list[str] = []

    def authenticate(request: Any, context: Any) -> Any:
        if (request.name, request.password) != ("danube", "sesame"):
            return refusal(Status.INVALID_ARGUMENT, "authentication failed, invalid user ID or password")
        valid.append(f"token-{len(valid)}")
        return pb.AuthenticateResponse(token=valid[-1])

    def checked(answer: Any) -> Any:
        def handle(request: Any, context: Any) -> Any:
            token = context.metadata.get("token")
            if token is None:
                return refusal(Status.INVALID_ARGUMENT, "user name is empty")
            if token not in valid[-1:]:
                return refusal(Status.UNAUTHENTICATED, "invalid auth token")
            return answer(request, context)

        return handle

    peer.answers |= {"Authenticate": authenticate, "Range": checked(lives_forever), "Put": checked(accept_put)}
    return valid


async def test_an_expired_token_is_replaced_and_the_refused_call_repeated() -> None:
    async with scripted() as peer:
        valid = guard(peer)
        async with store_at(peer, **USER) as store:
            assert valid == ["token-0"]
            valid.append("another client's")
            assert await store.put("/a", b"") == 11
            assert peer.tokens("Put") == ["token-0", "token-2"]
            valid.append("again")
            async with trio.open_nursery() as nursery:  # many calls, one authentication
                for number in range(20):
                    nursery.start_soon(store.put, f"/b/{number}", b"")
            assert peer.count("Authenticate") == 2


async def test_a_token_that_is_never_valid_is_not_tried_for_ever() -> None:
    async with scripted() as peer:
        guard(peer)
        async with store_at(peer, **USER) as store:
            peer.answers["Put"] = lambda request, context: refusal(Status.UNAUTHENTICATED, "invalid auth token")
            with pytest.raises(UnavailableError, match="invalid auth token"):
                await store.put("/a", b"")
            assert (peer.count("Put"), peer.count("Authenticate")) == (2, 1)


async def test_wrong_credentials_fail_at_the_start() -> None:
    async with scripted() as peer:
        guard(peer)
        for options, said in [
            ({}, "set username and password in the options of"),
            (USER | {"password": "wrong"}, "correct username and password"),
        ]:
            with pytest.raises(PermissionDeniedError, match=said) as found:
                async with store_at(peer, **options):
                    pass
            assert "wrong" not in str(found.value)


async def test_a_user_for_an_etcd_without_authentication(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted() as peer:
        peer.answers["Authenticate"] = lambda request, context: refusal(
            Status.FAILED_PRECONDITION, "authentication is not enabled"
        )
        async with store_at(peer, **USER) as store:
            assert await store.get("/a") is None
        assert "has no authentication enabled" in caplog.text
        assert peer.count("Authenticate") == 0  # not again


# Leases


async def test_a_lease_that_has_ended_in_the_meantime() -> None:
    async with scripted() as peer, store_at(peer) as store:

        async def expired(talk: Conversation) -> None:
            for ttl_s in (3, 0):
                request = await talk.receive()
                await talk.send(pb.LeaseKeepAliveResponse(ID=request.ID, TTL=ttl_s))

        gone = refusal(Status.NOT_FOUND, "requested lease not found")
        peer.answers |= {"LeaseKeepAlive": expired} | dict.fromkeys(
            ("Put", "Txn", "LeaseRevoke"), lambda request, context: gone
        )
        peer.answers["LeaseTimeToLive"] = lambda request, context: pb.LeaseTimeToLiveResponse(TTL=-1)
        await store.keep_alive(LeaseId(7))
        with pytest.raises(NotFoundError, match="metadata lease 7 has ended"):
            await store.keep_alive(LeaseId(7))
        with pytest.raises(NotFoundError, match="metadata lease 7 has ended"):
            await store.put("/a", b"", lease=LeaseId(7))
        with pytest.raises(NotFoundError, match="one of the metadata leases 7, 8 has ended"):
            await store.transact([], [Put("/a", b"", LeaseId(7)), Put("/b", b"", LeaseId(8)), Put("/c", b"")])
        assert await store.revoke(LeaseId(7)) is None
        for never in (LeaseId(0), LeaseId(-1), LeaseId(2**63)):
            with pytest.raises(NotFoundError):
                await store.keep_alive(never)
            assert await store.revoke(never) is None


async def test_answers_of_keep_alives_belong_to_their_messages() -> None:
    """Also if a caller has gone before its answer."""
    async with scripted() as peer, store_at(peer) as store:
        go = trio.Event()
        asked: list[int] = []

        async def answer_later(talk: Conversation) -> None:
            while len(asked) < 4:
                asked.append((await talk.receive()).ID)
            await go.wait()
            for lease in asked:
                await talk.send(pb.LeaseKeepAliveResponse(ID=lease, TTL=0 if lease == 2 else 5))
            await trio.sleep_forever()

        peer.answers["LeaseKeepAlive"] = answer_later
        outcomes: dict[str, str] = {}

        async def renew(name: str, lease: int) -> None:
            try:
                await store.keep_alive(LeaseId(lease))
                outcomes[name] = "renewed"
            except NotFoundError:
                outcomes[name] = "ended"

        with trio.CancelScope() as impatient:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(renew, "impatient", 1)
                await until(lambda: len(asked) == 1)
                impatient.cancel()
        async with trio.open_nursery() as nursery:
            for count, (name, lease) in enumerate([("ended", 2), ("one", 1), ("three", 3)], 2):
                nursery.start_soon(renew, name, lease)
                await until(lambda count=count: len(asked) == count)  # type: ignore[misc]
            go.set()
        assert outcomes == {"ended": "ended", "one": "renewed", "three": "renewed"}
        assert peer.count("LeaseKeepAlive") == 1


@pytest.mark.parametrize("how", ["error", "silence", "stranger", "end"])
async def test_a_stream_of_keep_alives_that_fails_is_replaced(how: str) -> None:
    async with scripted() as peer, store_at(peer, request_timeout_s=0.2) as store:

        async def fail(talk: Conversation) -> None:
            request = await talk.receive()
            if peer.count("LeaseKeepAlive") > 1:
                await talk.send(pb.LeaseKeepAliveResponse(ID=request.ID, TTL=5))
                await trio.sleep_forever()
            if how == "error":
                raise refusal(Status.UNAVAILABLE, "no leader")
            if how == "stranger":
                await talk.send(pb.LeaseKeepAliveResponse(ID=99, TTL=5))
            if how != "end":
                await trio.sleep_forever()

        peer.answers["LeaseKeepAlive"] = fail
        failed = 0

        async def renew(lease: int) -> None:
            nonlocal failed
            with pytest.raises(UnavailableError, match=f"keep-alive of lease {lease}: .*may have been applied"):
                await store.keep_alive(LeaseId(lease))
            failed += 1

        async with trio.open_nursery() as nursery:
            for lease in (1, 2, 3):
                nursery.start_soon(renew, lease)
        assert failed == 3
        await store.keep_alive(LeaseId(1))
        assert peer.count("LeaseKeepAlive") == 2


async def test_times_are_whole_seconds_rounded_up() -> None:
    async with scripted() as peer, store_at(peer) as store:
        peer.answers["LeaseGrant"] = lambda request, context: pb.LeaseGrantResponse(ID=5, TTL=request.TTL)
        for ttl_s in (0.2, 1.0, 1.01, 3):
            assert await store.grant_lease(ttl_s) == 5
        assert [request.TTL for request in peer.requests("LeaseGrant")] == [1, 1, 2, 3]


# Watches


def put(key: str, revision: int, *, version: int = 1, previous: int = 0, value: bytes = b"") -> pb.Event:
    event = pb.Event(
        kv=pb.KeyValue(
            key=b"/p" + key.encode(), value=value, mod_revision=revision, create_revision=revision, version=version
        )
    )
    if previous:
        event.prev_kv.mod_revision = previous
    return event


def happened(revision: int, *events: pb.Event, fragment: bool = False) -> pb.WatchResponse:
    return pb.WatchResponse(header=header(revision), events=events, fragment=fragment)


class Watched:
    """Scripts of the watches of one peer, in their order; and the requests that began them."""

    def __init__(self, peer: ScriptedEtcd, *scripts: list[Any]) -> None:
        self.begun: list[pb.WatchCreateRequest] = []
        self._scripts = list(scripts)
        peer.answers["Watch"] = self.play

    async def play(self, talk: Conversation) -> None:
        self.begun.append((await talk.receive()).create_request)
        await talk.send(pb.WatchResponse(header=header(10), created=True))
        for step in self._scripts.pop(0):
            if isinstance(step, DanubeError):
                raise step
            await talk.send(step)
        await trio.sleep_forever()


async def revisions(store: MetadataStore, count: int, start: int | None = None) -> list[tuple[int, list[str]]]:
    seen = []
    async with store.watch("/w", start) as watch:
        for _ in range(count):
            batch = await watch.__anext__()
            seen.append((batch.revision, [event.key for event in batch.events]))
    return seen


async def test_a_lost_watch_goes_on_at_its_position() -> None:
    """Nothing is lost, and nothing comes twice: a revision of which only fragments came begins again."""
    lost = refusal(Status.UNAVAILABLE, "no leader")
    async with scripted() as peer, store_at(peer) as store:
        watched = Watched(
            peer,
            [
                happened(12, put("/w/a", 11), put("/w/b", 12)),
                happened(13, put("/w/a", 13, version=2, previous=11), fragment=True),
                lost,
            ],
            [
                happened(13, put("/w/a", 13, version=2, previous=11), fragment=True),
                happened(13, put("/w/b", 13, version=2, previous=12), put("/other", 13)),
                lost,
            ],
            [happened(14, put("/w/c", 14))],
        )
        assert await revisions(store, 4) == [
            (11, ["/w/a"]),
            (12, ["/w/b"]),
            (13, ["/w/a", "/w/b"]),
            (14, ["/w/c"]),
        ]
        assert [begun.start_revision for begun in watched.begun] == [11, 13, 14]
        assert all(begun.prev_kv and begun.fragment and begun.progress_notify for begun in watched.begun)
        assert {(begun.key, begun.range_end) for begun in watched.begun} == {(b"/p/w", b"/p/w0")}
        # Before it goes on, it checks that nothing is missing.
        assert [request.revision for request in peer.requests("Range")] == [0, 12, 13]


async def test_a_watch_without_an_endpoint_fails_and_goes_on_later() -> None:
    async with scripted() as peer, store_at(peer) as store, store.watch("/w") as watch:
        await until(lambda: peer.count("Watch") == 1)
        peer.hang_up()
        for _ in range(2):
            with pytest.raises(UnavailableError, match="cannot be reached"):
                await watch.__anext__()
        async with scripted(port=peer.port) as again:
            Watched(again, [happened(11, put("/w/a", 11))])
            assert (await watch.__anext__()).revision == 11


async def test_a_watch_that_fell_behind_a_compaction() -> None:
    async with scripted() as peer, store_at(peer) as store:
        Watched(peer, [happened(11, put("/w/a", 11)), pb.WatchResponse(canceled=True, compact_revision=20)])
        with pytest.raises(WatchCompactedError, match=r"'/w' needs revision 12, .* compacted at revision 20"):
            await revisions(store, 2)


async def test_a_compaction_while_the_connection_was_lost() -> None:
    async with scripted() as peer, store_at(peer) as store:
        Watched(peer, [happened(11, put("/w/a", 11)), refusal(Status.UNAVAILABLE, "no leader")])

        def since(request: Any, context: Any) -> Any:
            if request.revision:
                return refusal(Status.OUT_OF_RANGE, "mvcc: required revision has been compacted")
            return lives_forever(request, context)

        peer.answers["Range"] = since
        with pytest.raises(WatchCompactedError, match=r"'/w' needs revision 12, .*it was compacted"):
            await revisions(store, 2)
        with pytest.raises(WatchCompactedError, match="needs revision 5,"):
            await revisions(store, 1, start=5)


async def test_a_revision_of_another_history() -> None:
    async with scripted() as peer, store_at(peer) as store:
        peer.answers["Range"] = lambda request, context: refusal(
            Status.OUT_OF_RANGE, "mvcc: required revision is a future revision"
        )
        with pytest.raises(WatchCompactedError, match=r"needs revision 500, .*another history"):
            await revisions(store, 1, start=500)


async def test_an_event_whose_predecessor_was_compacted() -> None:
    """etcd then leaves it out; its revision is part of the event, so the watch has a gap."""
    deleted = pb.Event(type=pb.Event.DELETE, kv=pb.KeyValue(key=b"/p/w/a", mod_revision=11))
    for event in (put("/w/a", 11, version=2), deleted):
        async with scripted() as peer, store_at(peer) as store:
            Watched(peer, [happened(11, put("/w/b", 10), event)], [happened(12, put("/w/c", 12))])
            async with store.watch("/w", 10) as watch:
                for _ in range(2):  # it does not go on behind the gap
                    with pytest.raises(WatchCompactedError, match="what it replaced at '/w/a' was compacted"):
                        await watch.__anext__()


async def test_an_idle_watch_passes_what_it_is_told_to() -> None:
    """A progress notification moves the position. The revision in the header of events does not: more may come."""
    lost = refusal(Status.UNAVAILABLE, "no leader")
    async with scripted() as peer, store_at(peer) as store:
        watched = Watched(
            peer,
            [happened(30, put("/w/a", 11)), lost],
            [happened(25), lost],
            [happened(31, put("/w!", 30), put("/w/b", 31))],
        )
        assert await revisions(store, 2) == [(11, ["/w/a"]), (31, ["/w/b"])]
        assert [begun.start_revision for begun in watched.begun] == [11, 12, 26]


async def test_a_watch_that_is_not_permitted() -> None:
    async with scripted() as peer, store_at(peer) as store:
        Watched(
            peer,
            [pb.WatchResponse(created=True, canceled=True, cancel_reason="rpc error: etcdserver: permission denied")],
        )
        with pytest.raises(PermissionDeniedError, match=r"ended the metadata watch of '/w': .*permission denied"):
            await revisions(store, 1)


# Lists


def serve_pages(peer: ScriptedEtcd, count: int, *, size: int = 0) -> None:
    """Serve keys at revision 10, with one more at the present one."""

    def page(request: Any, context: Any) -> Any:
        found = [b"/p/k/%05d" % number for number in range(count)]
        if not request.revision:
            peer.calls[-1][1].revision = -1
        found = [key for key in found if request.key <= key < request.range_end]
        kvs = [
            pb.KeyValue(key=key, mod_revision=3, create_revision=3, version=1, value=bytes(size))
            for key in found[: request.limit]
        ]
        return pb.RangeResponse(header=header(10 if request.revision <= 0 else 99), kvs=kvs, more=len(found) > len(kvs))

    peer.answers["Range"] = page


async def test_pages_of_a_list_are_of_one_revision() -> None:
    async with scripted() as peer, store_at(peer) as store:
        serve_pages(peer, 1000)
        items, revision = await store.list("/k/")
        assert [item.key for item in items] == [f"/k/{number:05}" for number in range(1000)]
        assert revision == 10
        pages = peer.requests("Range")
        assert [page.revision for page in pages] == [-1, 10, 10, 10]
        assert [page.limit for page in pages] == [128, 256, 512, 1024]


async def test_pages_shrink_with_large_values() -> None:
    async with scripted() as peer, store_at(peer) as store:
        serve_pages(peer, 200, size=40 * 1024)
        items, _ = await store.list("/k/")
        assert len(items) == 200
        assert [page.limit for page in peer.requests("Range")] == [128, 64, 32]


async def test_a_page_that_is_too_large_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("danube_metadata_etcd._link._LARGEST_ANSWER", 64 * 1024)
    async with scripted() as peer, store_at(peer) as store:
        serve_pages(peer, 40, size=4 * 1024)
        items, _ = await store.list("/k/")
        assert [item.key for item in items] == [f"/k/{number:05}" for number in range(40)]
        assert [page.limit for page in peer.requests("Range")][:3] == [128, 16, 2]
        serve_pages(peer, 1, size=70 * 1024)
        with pytest.raises(LimitExceededError):
            await store.list("/k/")
        # After a change it is only known that there was an answer.
        peer.answers["Txn"] = lambda request, context: pb.TxnResponse(
            succeeded=True,
            responses=[pb.ResponseOp(response_put=pb.PutResponse(prev_kv=pb.KeyValue(value=bytes(70 * 1024))))],
        )
        with pytest.raises(UnavailableError, match="may have been applied"):
            await store.transact([], [Put("/k/00000", b"")])


async def test_a_stream_that_lacks_a_token_lets_the_next_call_authenticate() -> None:
    async with scripted() as peer:
        guard(peer)
        async with store_at(peer, **USER) as store:

            async def refuse(talk: Conversation) -> None:
                await talk.receive()
                raise refusal(Status.UNAUTHENTICATED, "invalid auth token")

            peer.answers["LeaseKeepAlive"] = refuse
            with pytest.raises(UnavailableError, match=r"keep-alive of lease 3: .*invalid auth token"):
                await store.keep_alive(LeaseId(3))
            assert await store.get("/a") is None
            assert (peer.count("Authenticate"), peer.tokens("Range")) == (1, ["token-1"])


async def test_a_compaction_during_a_list_begins_it_again() -> None:
    async with scripted() as peer, store_at(peer) as store:
        serve_pages(peer, 200)
        page = peer.answers["Range"]
        compactions = 2

        def compact(request: Any, context: Any) -> Any:
            nonlocal compactions
            if request.revision > 0 and compactions:
                compactions -= 1
                return refusal(Status.OUT_OF_RANGE, "mvcc: required revision has been compacted")
            return page(request, context)

        peer.answers["Range"] = compact
        items, _ = await store.list("/k/")
        assert len(items) == 200
        assert len({item.key for item in items}) == 200
        compactions = 3
        with pytest.raises(UnavailableError, match="compacted 3 times while it was read"):
            await store.list("/k/")


async def test_a_foreign_key_below_the_prefix_is_named() -> None:
    async with scripted() as peer, store_at(peer) as store:
        peer.answers["Range"] = lambda request, context: pb.RangeResponse(kvs=[pb.KeyValue(key=b"/p/k/\xff")])
        with pytest.raises(DanubeError, match="another program writes below the prefix '/p'"):
            await store.list("/k/")


# Options


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("etcd://", {}, "endpoint '' names no host"),
        ("etcd:///danube", {}, "endpoint '' names no host"),
        ("etcd://a,,b", {}, "endpoint '' names no host"),
        ("etcd://a:port", {}, "endpoint 'a:port' is not valid"),
        ("etcd://a:99999", {}, "endpoint 'a:99999' is not valid"),
        ("etcd://user:sesame@a", {}, "contains user information"),
        ("etcd://a/two//slashes", {}, "prefix of the metadata URL is not valid"),
        ("etcd://a/with%20space", {}, "prefix of the metadata URL is not valid"),
        ("etcd://a?password=sesame", {}, "'password' .* must not be in the URL"),
        ("etcd://a", {"password": "sesame"}, "'password' .* needs the option 'username'"),
        ("etcd://a", {"usrname": "x"}, "no option 'usrname'; did you mean 'username'?"),
        ("etcd://a", {"key_file": "x.pem"}, "'key_file' .* needs the option 'cert_file'"),
        ("etcd://a", {"ca_file": "/not/there"}, "'ca_file' .* '/not/there', cannot be used: .*No such file"),
        ("etcd://a", {"cert_file": "/not/there"}, "'cert_file' and 'key_file' .*cannot be used: .*No such file"),
        ("etcd://a", {"request_timeout_s": 0}, "'request_timeout_s' .* is 0.0; it must be more than 0"),
        ("etcd://a?connect_timeout_s=nan", {}, "'connect_timeout_s' .* is nan"),
        ("etcd://a", {"tls": "sesame"}, r"options of the metadata engine 'etcd' are wrong.*\$\.tls"),
    ],
)
async def test_wrong_options(url: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as found:
        async with open_store(url, options=options):
            pass
    assert "sesame" not in str(found.value)


async def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UnavailableError, match=rf"etcd cannot be reached: no connection to 127\.0\.0\.1:{port}"):
        async with open_store(f"etcd://127.0.0.1:{port}"):
            pass
