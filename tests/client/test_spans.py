"""What the client's spans say, and which contexts they are linked with."""

from __future__ import annotations

from danube.client._spans import MAX_LINKS, Destination, carried, carriers, continues, message_id, operation

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_attributes_by_the_conventions() -> None:
    plain = operation("send", "send_many", Destination("/default/t"), 0, 7)
    assert plain == {
        "messaging.system": "danube",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send_many",
        "messaging.destination.name": "/default/t",
        "messaging.batch.message_count": 7,
    }
    wide = operation("process", "process", Destination("/default/t", "s", partitioned=True), 2)
    assert wide["messaging.destination.partition.id"] == "2"
    assert wide["messaging.destination.subscription.name"] == "s"
    assert "messaging.destination.partition.id" not in operation("send", "send", Destination("/t", "", True))
    assert message_id(2, 17) == "2:17"


def test_a_context_needs_a_traceparent() -> None:
    assert carried(None) == carried({}) == carried({"tracestate": "a=b", "baggage": "x=y"}) == {}
    attributes = {"traceparent": PARENT, "baggage": "x=y", "kind": "order"}
    assert carried(attributes) == {"traceparent": PARENT, "baggage": "x=y"}


def test_each_context_of_a_batch_counts_once_and_only_so_many() -> None:
    assert carriers(
        [None, {}, {"traceparent": PARENT}, {"kind": "x"}, {"traceparent": PARENT, "tracestate": "a=b"}]
    ) == [{"traceparent": PARENT}]
    many = carriers({"traceparent": str(number)} for number in range(1_000))
    assert [carrier["traceparent"] for carrier in many] == [str(number) for number in range(MAX_LINKS)]


def test_dead_letters_are_linked_and_do_not_continue() -> None:
    assert continues({"traceparent": PARENT})
    assert not continues(None)
    assert not continues({"kind": "x"})
    assert not continues({"traceparent": PARENT, "x-original-topic": "/default/t"})
