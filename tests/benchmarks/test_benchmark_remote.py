"""The benchmark of durability ``remote`` runs, and prints a row for each case."""

from __future__ import annotations

import sys

from benchmarks import remote


def test_it_prints_a_row_for_each_case(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.remote", "--seconds", "0.1", "--latency-ms", "1"])
    remote.main()
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("|")[2].strip() for row in rows[2:]] == ["one in flight", "1 MB/s", "full rate"]
    assert all("MB/s" in row for row in rows[2:])
