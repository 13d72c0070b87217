"""A scan of the ports by sslyze: no old protocol, no weak cipher, no known attack.

sslyze is installed in an environment of its own (see ``extended`` in tox.ini), because it wants an older version of a
library than ours.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from brokers import BrokerProcess
from certificates import make_files

pytestmark = pytest.mark.extended

VARIABLE = "DANUBE_TLS_SCANNER"
REFUSED = ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1")
TOLERATED = {
    "certificate_path_validation",  # the certificate is of the test's own authority
    "tls_curves",  # OpenSSL's curves, which include two strong ones that Mozilla does not list: checked below
}
STRONG_CURVES = {"X25519", "X448", "secp256r1", "secp384r1", "secp521r1", "X25519MLKEM768"}


def scanner() -> str:
    program = os.environ.get(VARIABLE, "")
    if not os.access(program, os.X_OK):
        pytest.skip(
            f"{VARIABLE} is {program!r}, and not the program sslyze; make one with 'python -m venv scanner &&"
            f" scanner/bin/pip install sslyze' and {VARIABLE}=scanner/bin/sslyze"
        )
    return program


def test_a_scan_of_the_client_port_finds_nothing(tmp_path: Path) -> None:
    program, report = scanner(), tmp_path / "report.json"
    cert, key = make_files(tmp_path).pair("server")
    with BrokerProcess(tmp_path / "data", "--tls-cert", cert, "--tls-key", key) as broker:
        done = subprocess.run(
            [program, "--mozilla_config=intermediate", f"--json_out={report}", f"localhost:{broker.port}"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert "COMPLIANCE AGAINST TLS CONFIGURATION" in done.stdout, done.stdout + done.stderr
    complaints = {
        line.strip().removeprefix("* ").split(":")[0]
        for line in done.stdout.partition("COMPLIANCE AGAINST TLS CONFIGURATION")[2].splitlines()
        if line.strip().startswith("* ")
    }
    assert complaints <= TOLERATED, done.stdout[-2000:]

    (server,) = json.loads(report.read_text())["server_scan_results"]
    found: dict[str, Any] = server["scan_result"]
    failed = {name: result for name, result in found.items() if result and result["status"] == "ERROR"}
    assert not failed

    def result(name: str) -> Any:
        assert found[name]["status"] == "COMPLETED", name
        return found[name]["result"]

    for version in REFUSED:
        assert not result(f"{version}_cipher_suites")["accepted_cipher_suites"], version
    for version in ("tls_1_2", "tls_1_3"):
        accepted = result(f"{version}_cipher_suites")["accepted_cipher_suites"]
        assert accepted
        for each in accepted:
            assert each["cipher_suite"]["key_size"] >= 128
            assert each["ephemeral_key"] is not None, f"without forward secrecy: {each['cipher_suite']['name']}"
    curves = {each["name"] for each in result("elliptic_curves")["supported_curves"]}
    assert curves <= STRONG_CURVES
    assert not result("tls_compression")["supports_compression"]
    assert not result("openssl_ccs_injection")["is_vulnerable_to_ccs_injection"]
    assert not result("heartbleed")["is_vulnerable_to_heartbleed"]
    assert result("robot")["robot_result"].startswith("NOT_VULNERABLE")
    assert not result("session_renegotiation")["is_vulnerable_to_client_renegotiation_dos"]
    assert result("tls_fallback_scsv")["supports_fallback_scsv"]
    assert result("tls_extended_master_secret")["supports_ems_extension"]
