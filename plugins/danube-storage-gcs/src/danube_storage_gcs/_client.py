"""gcsfs without retries, and with errors that keep their HTTP status.

gcsfs makes six attempts by itself, and converts the service's answers to less specific Python exceptions: a refused
permission and a broken connection are both ``OSError``. So its one method that sends requests is replaced; credentials
and their refresh, the session and the addresses are still handled by gcsfs.

The environment variable below must be set before gcsfs is first imported: otherwise the kind of each bucket is queried
through another protocol, which takes minutes to fail if the server does not support it.
"""

from __future__ import annotations

import os

os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

from typing import Any, ClassVar

import msgspec
from gcsfs.core import GCSFileSystem

__all__ = ["AnswerError", "GcsClient"]


class AnswerError(Exception):
    """An answer with an error.

    ``status`` is the HTTP status, ``reason`` Google's error reason (``conditionNotMet``), "" if there was none.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"the server answered {status}{f' {reason}' if reason else ''}: {message}")
        self.status = status
        self.reason = reason


class GcsClient(GCSFileSystem):  # type: ignore[misc] # gcsfs has no types
    """A file system of gcsfs whose requests are sent once."""

    protocol: ClassVar[tuple[str, ...]] = ("danube-gcs",)

    async def _request(
        self, method: str, path: str, *args: Any, headers: Any = None, json: Any = None, data: Any = None, **kwargs: Any
    ) -> tuple[int, Any, Any, bytes]:
        """Send one request; return status, headers, the request and the body. Raises :class:`AnswerError`."""
        for unused in ("cache_type", "cache_source"):
            kwargs.pop(unused, None)
        await self._set_session()
        async with self.session.request(
            method=method,
            url=self._format_path(path, args),
            params=self._get_params(kwargs),
            json=json,
            headers=self._get_headers(headers),
            data=data,
            timeout=self.requests_timeout,
        ) as answer:
            body = await answer.read()
            if answer.status >= 400:
                raise _error(answer.status, body)
            return answer.status, answer.headers, answer.request_info, body

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


class _Reason(msgspec.Struct):
    reason: str = ""


class _ErrorBody(msgspec.Struct):
    message: str = ""
    errors: list[_Reason] = []


class _Answer(msgspec.Struct):
    error: _ErrorBody


def _error(status: int, body: bytes) -> AnswerError:
    try:
        error = msgspec.json.decode(body, type=_Answer).error
    except (msgspec.DecodeError, msgspec.ValidationError):
        return AnswerError(status, "", body[:200].decode("utf-8", "replace"))
    return AnswerError(status, error.errors[0].reason if error.errors else "", error.message)
