"""How the scripts connect. A job has url, and maybe ca, cert, key (files), token, or token_file (read each time)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from danube import DanubeClientBuilder


def builder_of(job: dict[str, Any]) -> Any:
    """Return what builds the client of a job."""
    builder = DanubeClientBuilder().service_url(job["url"])
    if "cert" in job:
        builder = builder.with_mtls(job["ca"], job["cert"], job["key"])
    elif "ca" in job:
        builder = builder.with_tls(job["ca"])
    if "token_file" in job:
        return builder.with_token_supplier(Path(job["token_file"]).read_text)
    return builder.with_token(job["token"]) if "token" in job else builder
