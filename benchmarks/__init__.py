"""Danube and its peers, measured side by side in one run.

``python -m benchmarks`` starts a broker, separate producer and consumer processes, and does the same with NATS
JetStream and Redis Streams, taking turns so that whatever else the machine does hits all of them alike.

The rules that make the figures worth reading:

* every system stores durably (fsync before the acknowledgement), and the durability is printed beside each number;
* payloads are distinct objects; producers encode and consumers decode all of them inside the timed region, through the
  public client libraries, and what arrived is compared with what was sent (count and checksum);
* consumers are subscribed before the first message is sent; time runs from the first send to the last
  acknowledgement;
* a paced latency counts from the moment the message *should* have been sent, so that a stall is not hidden by the
  messages that were not sent during it;
* a warm-up is discarded; the median of several repetitions is printed with the lowest and the highest;
* CPU seconds per million messages are kept apart for broker, producer and consumer, and CPU time that was used by
  anything else on the machine is reported, because it is what spoils a comparison.

Layout: :mod:`benchmarks.systems` starts servers, :mod:`benchmarks.roles` is what runs inside a worker process,
:mod:`benchmarks.scenarios` puts both together, :mod:`benchmarks.runner` repeats and alternates.
"""
