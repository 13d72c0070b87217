"""The messages of the etcd plugin: generated modules, watches cut into messages; and the plugin as it is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import danube_metadata_etcd.proto
import pytest
from danube_metadata_etcd._messages import KeySpace, WatchReader, transaction, transaction_result
from danube_metadata_etcd.proto import etcd_pb2 as pb

from danube.metadata import Condition, Delete, LeaseId, Put, TransactionResult, covers, installed_plugins
from danube.model.errors import MetadataConflictError, ProtocolError

PROTO = Path(danube_metadata_etcd.proto.__file__).parent


def test_compiling_again_gives_the_same(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed; it is in the dependency group 'test'")
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", *outputs, "etcd.proto"], check=True)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in PROTO.glob("*_pb2*")}
    for path in sorted(tmp_path.iterdir()):
        assert path.read_text() == (PROTO / path.name).read_text(), f"{path.name} is out of date"


def test_the_plugin_is_found() -> None:
    (found,) = [plugin for plugin in installed_plugins() if plugin.scheme == "etcd"]
    assert (found.target, found.distribution) == ("danube_metadata_etcd:EtcdPlugin", "danube-metadata-etcd")
    assert not found.built_in


KEYS = ["/w", "/w/a", "/w/b", "/w!", "/w-x/a", "/x"]


@pytest.mark.parametrize("seed", range(4))
def test_a_watch_is_the_same_however_it_is_cut(seed: int) -> None:
    """Into messages at revisions, into fragments anywhere, with notes of progress, and by losses of the stream."""
    random = Random(seed)
    for _ in range(100):
        history = [random.sample(KEYS, random.randint(1, 4)) for _ in range(random.randint(0, 12))]
        check_cut(history, random)


def check_cut(history: list[list[str]], random: Random) -> None:
    first = 11
    events = [
        pb.Event(kv=pb.KeyValue(key=b"/p" + key.encode(), mod_revision=revision, create_revision=revision, version=1))
        for revision, keys in enumerate(history, first)
        for key in keys
    ]
    reader = WatchReader(KeySpace("/p"), "/w", first - 1)
    seen = []
    left = [event for event in events if event.kv.mod_revision >= reader.request().create_request.start_revision]
    while left:
        taken = left[: random.randint(1, min(6, len(left)))]
        left = left[len(taken) :]
        begun = bool(left) and left[0].kv.mod_revision == taken[-1].kv.mod_revision
        answer = pb.WatchResponse(
            # Far ahead: what is sent from the history says how far the member is.
            header=pb.ResponseHeader(revision=99),
            events=taken,
            fragment=begun or (bool(left) and random.random() < 0.5),
        )
        seen += reader.read(answer)
        if not answer.fragment and random.random() < 0.5:
            reader.read(pb.WatchResponse(header=pb.ResponseHeader(revision=taken[-1].kv.mod_revision)))
        if left and random.random() < 0.3:
            start = reader.request().create_request.start_revision
            left = [event for event in events if event.kv.mod_revision >= start]
    expected = [
        (revision, [key for key in keys if covers("/w", key)])
        for revision, keys in enumerate(history, first)
        if any(covers("/w", key) for key in keys)
    ]
    assert [(batch.revision, [event.key for event in batch.events]) for batch in seen] == expected


def test_a_watch_skips_what_it_has_had() -> None:
    reader = WatchReader(KeySpace(""), "/", 10)
    events = [pb.Event(kv=pb.KeyValue(key=b"/a", mod_revision=revision, version=1)) for revision in (9, 10, 11)]
    for expected in ([11], []):
        assert [batch.revision for batch in reader.read(pb.WatchResponse(events=events))] == expected


CONDITIONS = [Condition("/a", 7), Condition("/b", 0), Condition("/c", 9)]
OPERATIONS = [Put("/b", b"1", LeaseId(5)), Put("/d", b"2"), Delete("/c"), Delete("/e"), Put("/f", b"3"), Delete("/g")]


def test_a_transaction_asks_only_for_revisions_that_no_condition_tells() -> None:
    request = transaction(KeySpace("/p"), CONDITIONS, OPERATIONS)
    assert [(one.target, one.key, one.mod_revision) for one in request.compare] == [
        (pb.Compare.MOD, b"/p/a", 7),
        (pb.Compare.MOD, b"/p/b", 0),
        (pb.Compare.MOD, b"/p/c", 9),
    ]
    assert all(one.WhichOneof("target_union") == "mod_revision" for one in request.compare), "0 must be sent"
    assert [(one.request_range.key, one.request_range.keys_only) for one in request.failure] == [
        (b"/p/a", True),
        (b"/p/b", True),
        (b"/p/c", True),
    ]
    puts = [one.request_put for one in request.success if one.HasField("request_put")]
    assert [(put.key, put.value, put.lease, put.prev_kv) for put in puts] == [
        (b"/p/b", b"1", 5, False),
        (b"/p/d", b"2", 0, True),
        (b"/p/f", b"3", 0, True),
    ]
    deletes = [one.request_delete_range for one in request.success if one.HasField("request_delete_range")]
    assert [(one.key, one.prev_kv) for one in deletes] == [(b"/p/c", False), (b"/p/e", True), (b"/p/g", True)]

    former = pb.KeyValue(mod_revision=4)
    answer = pb.TxnResponse(
        header=pb.ResponseHeader(revision=20),
        succeeded=True,
        responses=[
            pb.ResponseOp(response_put=pb.PutResponse()),
            pb.ResponseOp(response_put=pb.PutResponse(prev_kv=former)),
            pb.ResponseOp(response_delete_range=pb.DeleteRangeResponse(deleted=1)),
            pb.ResponseOp(response_delete_range=pb.DeleteRangeResponse(deleted=1, prev_kvs=[former])),
            pb.ResponseOp(response_put=pb.PutResponse()),
            pb.ResponseOp(response_delete_range=pb.DeleteRangeResponse()),
        ],
    )
    assert transaction_result(answer, CONDITIONS, OPERATIONS) == TransactionResult(20, (0, 4, 9, 4, 0, 0))
    with pytest.raises(ProtocolError, match="6 parts"):
        transaction_result(answer, CONDITIONS, OPERATIONS[:-1])


@pytest.mark.parametrize(
    ("present", "said"),
    [
        ((8, 0, 10), "'/a' was expected at revision 7, but it is at 8"),
        ((0, 3, 9), "'/a' was expected at revision 7, but it does not exist"),
        ((7, 3, 10), "'/b' exists already .revision 3"),
        ((7, 0, 10), "'/c' was expected at revision 9, but it is at 10"),
    ],
)
def test_a_conflict_names_the_first_key(present: tuple[int, ...], said: str) -> None:
    answer = pb.TxnResponse()
    for revision in present:
        found = [pb.KeyValue(mod_revision=revision)] if revision else []
        answer.responses.add().response_range.MergeFrom(pb.RangeResponse(kvs=found))
    with pytest.raises(MetadataConflictError, match=said):
        transaction_result(answer, CONDITIONS, OPERATIONS)


def test_a_refusal_without_a_reason_is_not_a_conflict() -> None:
    with pytest.raises(ProtocolError, match="although all of its conditions hold"):
        transaction_result(pb.TxnResponse(responses=[pb.ResponseOp()]), [Condition("/a", 0)], [])
