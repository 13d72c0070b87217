"""The comparison of storage clients runs, and its table has every work and every client."""

from __future__ import annotations

import pytest

from benchmarks import storage_clients
from benchmarks.storage_clients import CLIENTS, WORKS


def test_every_work_is_done_with_every_client(capsys: pytest.CaptureFixture[str]) -> None:
    assert storage_clients.main(["--repetitions", "1", "--scale", "0.01"]) == 0
    heading, line, *rows = capsys.readouterr().out.splitlines()
    assert heading.count("|") == line.count("|") == 5
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [(row[0], row[1]) for row in cells] == [(work.title, client) for work in WORKS for client in CLIENTS]
    for row in cells:
        assert all(float(cell.split()[0]) > 0 for cell in row[2:])
