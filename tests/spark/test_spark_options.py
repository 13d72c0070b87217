"""Options: their parsing, refusals and advice, and hiding of secrets."""

from __future__ import annotations

import pickle

import pytest

from danube.model.errors import ConfigurationError, DanubeError, InvalidNameError

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

from pyspark_danube._options import EARLIEST, LATEST, At, Secrets, read_options, write_options

SERVERS = {"servers": "danube://127.0.0.1:6650"}
ONE = SERVERS | {"topic": "/default/orders"}


def test_little_is_needed() -> None:
    options = read_options(ONE)
    assert options.servers == "danube://127.0.0.1:6650"
    assert options.topics == ("/default/orders",)
    assert (options.starting, options.ending) == (EARLIEST, LATEST)
    assert options.include_tail
    assert options.fail_on_data_loss
    assert not options.pushdown
    assert options.target_partition_bytes == 96 << 20


def test_a_stream_begins_at_the_end_as_kafkas_does() -> None:
    assert read_options(ONE, streaming=True).starting == LATEST
    assert read_options(ONE | {"startingOffsets": "earliest"}, streaming=True).starting == EARLIEST


def test_names_have_no_case_and_topics_no_doubles() -> None:
    options = read_options(
        SERVERS | {"TOPICS": " /default/a, /default/b,/default/a ", "minpartitions": "7", "TargetPartitionBytes": "1m"}
    )
    assert options.topics == ("/default/a", "/default/b")
    assert (options.min_partitions, options.target_partition_bytes) == (7, 1 << 20)


@pytest.mark.parametrize(
    ("given", "size"), [("100", 100), ("64k", 65536), ("64 KiB", 65536), ("2MB", 2 << 20), ("1g", 1 << 30)]
)
def test_sizes_have_units(given: str, size: int) -> None:
    assert read_options(ONE | {"maxBytesPerTrigger": given}, streaming=True).max_bytes_per_trigger == size


@pytest.mark.parametrize(
    ("given", "time_us"),
    [
        ("1700000000000", 1_700_000_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000),
        ("2023-11-14T23:13:20.000001+01:00", 1_700_000_000_000_001),
        ("1969-01-01T00:00:00Z", 0),
        ("253402300799999", 253_402_300_799_999_000),
    ],
)
def test_times_are_milliseconds_or_iso(given: str, time_us: int) -> None:
    assert read_options(ONE | {"startingTimestamp": given}).starting == At("time", time_us)
    assert read_options(ONE | {"endingTimestamp": given}).ending == At("time", time_us)


def test_offsets_are_kafkas_json() -> None:
    options = read_options(ONE | {"startingOffsets": '{"/default/orders": {"0": 5, "1": -2, "2": -1}}'})
    assert options.starting == At("offsets", offsets={"/default/orders": {0: 5, 1: -2, 2: -1}})


REFUSED = [
    (SERVERS, "topic, topics or topicsPattern"),
    ({"topic": "/default/a"}, "needs the option servers"),
    (ONE | {"servers": "127.0.0.1:9092"}, "danube://"),
    (ONE | {"startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
    (ONE | {"storage.option.key": "x"}, "has no option 'storage.option.key'"),
    (ONE | {"path": "/default/a"}, "a topic is not a path"),
    (ONE | {"kafka.bootstrap.servers": "a:1"}, "this is not Kafka"),
    (ONE | {"maxOffsetsPerTrigger": "5"}, "no effect on read; it is for readStream"),
    (ONE | {"producerId": "x"}, "no effect on read; it is for write"),
    (ONE | {"topics": "/default/b"}, "the options topic and topics have the same meaning"),
    (ONE | {"topicsPattern": ".*"}, "either the option topic or topicsPattern"),
    (ONE | {"startingOffsets": "earliest", "startingTimestamp": "5"}, "have the same meaning"),
    (ONE | {"startingOffsets": "first"}, "must be earliest, latest, or JSON"),
    (ONE | {"startingOffsets": '{"/default/a": {"x": 1}}'}, "must be earliest, latest, or JSON"),
    (ONE | {"startingOffsets": '{"/default/a": {"0": -3}}'}, "neither an offset nor -2"),
    (ONE | {"startingTimestamp": "2023-11-14T22:13:20"}, "a time with its zone"),
    (
        ONE | {"startingTimestamp": "1700000000000000"},
        "startingTimestamp must be milliseconds since the epoch, not micro- or nanoseconds",
    ),
    (ONE | {"endingTimestamp": "1700000000000000000000"}, "endingTimestamp must be milliseconds since the epoch"),
    (ONE | {"minPartitions": "0"}, "whole number of at least 1"),
    (ONE | {"targetPartitionBytes": "96x"}, "a number of bytes"),
    (ONE | {"failOnDataLoss": "no"}, "true or false"),
    (ONE | {"mode": "DROPMALFORMED"}, "PERMISSIVE or FAILFAST"),
    (ONE | {"cluster": "danube"}, "leave out either it or servers"),
    (SERVERS | {"topicsPattern": "("}, "not a regular expression"),
    (SERVERS | {"topic": ","}, "names no topic"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_wrong_options_are_refused_with_advice(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_options(options)
    assert said in str(caught.value)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(ConfigurationError, match="endingOffsets has no effect on readStream; it is for read"):
        read_options(ONE | {"endingOffsets": "latest"}, streaming=True)


def test_partitions_are_not_topics() -> None:
    with pytest.raises(InvalidNameError, match="one partition of a topic; give the topic '/default/t'"):
        read_options(SERVERS | {"topic": "/default/t-part-3"})
    with pytest.raises(InvalidNameError, match="must have the form /namespace/topic"):
        read_options(SERVERS | {"topic": "orders"})


def test_history_without_a_broker() -> None:
    options = read_options({"topic": "/default/a", "storage.url": "s3://bucket/prefix", "cluster": "danube"})
    assert (options.servers, options.cluster) == ("", "danube")


def test_the_sink_has_options_of_its_own() -> None:
    options = write_options(ONE | {"producerId": "nightly", "batchId": "7"})
    assert (options.topic, options.producer_id, options.batch_id) == ("/default/orders", "nightly", 7)
    assert not options.by_partition
    assert write_options(SERVERS | {"checkpointLocation": "/x"}, streaming=True).topic == ""
    assert write_options(ONE | {"commitScope": "Partition", "producerId": "a"}, streaming=True).by_partition
    for wrong, said in (
        ({"topic": "/default/a"}, "needs the option servers"),
        (ONE | {"batchId": "7"}, "needs the option producerId"),
        (ONE | {"producerId": "a b"}, "without white space"),
        (ONE | {"batchId": "-1", "producerId": "a"}, "at least 0"),
        (ONE | {"commitScope": "row"}, "must be batch or partition"),
        (ONE | {"commitScope": "partition", "producerId": "a"}, "need the option batchId"),
        (ONE | {"startingOffsets": "earliest"}, "no effect on write"),
        (ONE | {"producer": "a"}, "did you mean 'producerId'?"),
    ):
        with pytest.raises(DanubeError) as caught:
            write_options(wrong)
        assert said in str(caught.value)
    with pytest.raises(ConfigurationError, match="numbers its batches itself"):
        write_options(ONE | {"batchId": "7", "producerId": "a"}, streaming=True)


def test_secrets_are_kept_but_not_shown() -> None:
    options = read_options(
        ONE | {"storage.url": "s3://user:hunter2@bucket/p?secret=hunter2", "storage.options.SECRET": "hunter2"}
    )
    assert options.storage_options["secret"] == "hunter2"
    assert "hunter2" not in repr(options) + str(options) + str(options.storage_options)
    assert "s3://bucket/p" in repr(options)
    copy = pickle.loads(pickle.dumps(options))
    assert copy.storage_options["secret"] == "hunter2"
    assert repr(Secrets()) == "<0 storage options: none>"


def test_a_wrong_storage_url_does_not_show_its_secret() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_options(ONE | {"storage.url": "s3:/bucket?secret=hunter2"})
    assert "hunter2" not in str(caught.value)
