"""Danube and its peers, measured side by side in one run.

``python -m benchmarks`` starts a broker, separate producer and consumer processes, and does the same with NATS
JetStream and Redis Streams. The systems take turns, so that other load on the machine affects all of them alike.

Rules that make the figures comparable:

* every system stores durably (fsync before the acknowledgement), and the durability is printed beside each number;
* payloads are distinct objects; producers encode and consumers decode all of them inside the timed region, through the
  public client libraries, and received messages are compared with sent ones (count and checksum);
* consumers are subscribed before the first message is sent; time runs from the first send to the last
  acknowledgement;
* a paced latency is measured from the time when the message was *due*, so that a stall adds to the latency of the
  messages that were not sent during it;
* a warm-up is discarded; the median of several repetitions is printed with the lowest and the highest;
* CPU seconds per million messages are reported separately for broker, producer and consumer, and so is the CPU time of
  other processes on the machine, which distorts a comparison.

Layout: :mod:`benchmarks.systems` starts servers, :mod:`benchmarks.roles` has the code of worker processes,
:mod:`benchmarks.scenarios` combines both, :mod:`benchmarks.runner` repeats and alternates.
"""
