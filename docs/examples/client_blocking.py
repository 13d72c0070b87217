"""The blocking client, for scripts and notebooks: the same names without ``await``.

::

    danube serve &
    python docs/examples/client_blocking.py

On a new broker it prints::

    stored at offset 0
    stored 3 readings
    1 ok
    2 is refused
    3 ok
    2 ok at attempt 2
    3 readings in the topic

The client runs an event loop in a thread of its own, to which every call is passed; threads may share it. Timeouts are
arguments, since a blocking call cannot be cancelled from outside.
"""

from __future__ import annotations

import sys

from danube.client import sync
from danube.model.errors import DeadlineExceededError

TOPIC = "/default/blocking-readings"


def publish(client: sync.Client) -> None:
    with client.producer(TOPIC) as producer:
        print(f"stored at offset {producer.send(b'1').offset}")
        pending = [producer.send_nowait(payload) for payload in (b"2", b"3")]  # does not wait for the broker
        producer.flush()  # waits for both, and raises if one of them failed
        print(f"stored {1 + sum(message.done for message in pending)} readings")


def consume(client: sync.Client) -> None:
    policy = {"redelivery_delay_s": 0.1}  # of the subscription, if it does not exist yet
    with client.consumer(TOPIC, subscription="plant", start="earliest", policy=policy) as consumer:
        while True:
            try:
                message = consumer.receive(timeout_s=0.5)
            except DeadlineExceededError:
                break  # no message within the timeout
            reading = message.payload.decode()
            if reading == "2" and message.attempt == 1:
                print(f"{reading} is refused")
                message.nack(reason="the sensor is being calibrated")  # delivered again after a pause
            else:
                print(f"{reading} ok" + (f" at attempt {message.attempt}" if message.attempt > 1 else ""))
                message.ack()


def main(url: str) -> None:
    with sync.connect(url) as client:
        publish(client)
        consume(client)
        with client.reader(TOPIC, start="earliest") as reader:  # reads without a subscription
            print(f"{sum(len(batch) for batch in reader.batches(until_caught_up=True))} readings in the topic")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "danube://127.0.0.1:6650")
