"""A TLS client made of OpenSSL itself, in memory: it sends updates of keys, for which Python has no call."""

from __future__ import annotations

import _ssl
import ctypes
from typing import Any, Final

__all__ = ["OpensslClient"]

_POINTER: Final = ctypes.c_void_p
_TEXT: Final = ctypes.c_char_p
_INT: Final = ctypes.c_int
_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "TLS_client_method": (_POINTER, []),
    "SSL_CTX_new": (_POINTER, [_POINTER]),
    "SSL_CTX_free": (None, [_POINTER]),
    "SSL_CTX_set_alpn_protos": (_INT, [_POINTER, _TEXT, ctypes.c_uint]),
    "SSL_new": (_POINTER, [_POINTER]),
    "SSL_free": (None, [_POINTER]),
    "BIO_s_mem": (_POINTER, []),
    "BIO_new": (_POINTER, [_POINTER]),
    "BIO_read": (_INT, [_POINTER, _TEXT, _INT]),
    "BIO_write": (_INT, [_POINTER, _TEXT, _INT]),
    "SSL_set_bio": (None, [_POINTER, _POINTER, _POINTER]),
    "SSL_set_connect_state": (None, [_POINTER]),
    "SSL_do_handshake": (_INT, [_POINTER]),
    "SSL_key_update": (_INT, [_POINTER, _INT]),
    "SSL_write": (_INT, [_POINTER, _TEXT, _INT]),
    "SSL_read": (_INT, [_POINTER, _TEXT, _INT]),
}
_READ_BYTES: Final = 1 << 16


def _library() -> Any:
    # The module of Python names its OpenSSL, whose functions are found through it.
    library = ctypes.CDLL(_ssl.__file__)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class OpensslClient:
    """A client that trusts any certificate; its caller moves the bytes. Call :meth:`free` at the end."""

    def __init__(self) -> None:
        self._lib = lib = _library()
        self._context = lib.SSL_CTX_new(lib.TLS_client_method())
        assert lib.SSL_CTX_set_alpn_protos(self._context, b"\x02h2", 3) == 0
        self._ssl = lib.SSL_new(self._context)
        self._incoming, self._outgoing = lib.BIO_new(lib.BIO_s_mem()), lib.BIO_new(lib.BIO_s_mem())
        lib.SSL_set_bio(self._ssl, self._incoming, self._outgoing)
        lib.SSL_set_connect_state(self._ssl)

    def free(self) -> None:
        """Give its memory back; it cannot be used any more."""
        self._lib.SSL_free(self._ssl)
        self._lib.SSL_CTX_free(self._context)

    def handshake(self) -> bool:
        """Go on with the handshake; return whether it has ended."""
        return bool(self._lib.SSL_do_handshake(self._ssl) == 1)

    def key_update(self, *, requested: bool = False) -> None:
        """Queue an update of the client's keys; ``requested``: the server shall change its own, too."""
        assert self._lib.SSL_key_update(self._ssl, int(requested)) == 1
        assert self.handshake()

    def write(self, data: bytes) -> None:
        """Queue data, in one record if it is short."""
        assert self._lib.SSL_write(self._ssl, data, len(data)) == len(data)

    def read(self) -> bytes:
        """Return the data that has arrived."""
        buffer, found = ctypes.create_string_buffer(_READ_BYTES), b""
        while (size := self._lib.SSL_read(self._ssl, buffer, _READ_BYTES)) > 0:
            found += buffer.raw[:size]
        return found

    def feed(self, sealed: bytes) -> None:
        """Take what the server has sent."""
        assert self._lib.BIO_write(self._incoming, sealed, len(sealed)) == len(sealed)

    def sealed(self) -> bytes:
        """Return what is to be sent to the server."""
        buffer, found = ctypes.create_string_buffer(_READ_BYTES), b""
        while (size := self._lib.BIO_read(self._outgoing, buffer, _READ_BYTES)) > 0:
            found += buffer.raw[:size]
        return found
