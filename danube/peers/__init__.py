"""Links between the brokers of a cluster, on the brokers' own port.

* ``_contract``: what floors that do not know the wire get: :class:`Peers`, :class:`Peer`,
  :class:`Lost`;
* :mod:`danube.peers.hello`: how two brokers prove that they belong together, and who is refused; pure;
* :mod:`danube.peers.secret`: the file of the cluster's secret;
* :mod:`danube.peers.links`: :func:`~danube.peers.links.open_peers`, over :mod:`danube.wire`. It is not imported here,
  because floors without the wire import this package.
"""

from danube.peers._contract import CallHandler, Lost, MessageHandler, Peer, Peers

__all__ = ["CallHandler", "Lost", "MessageHandler", "Peer", "Peers"]
