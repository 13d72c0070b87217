"""The format language of ``consume --format``: known pieces exactly, everything else refused, never a crash."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.cli._format import compile_format, iso_time
from danube.model.errors import InvalidArgumentError


def message(**changes):
    known = {
        "topic": "/default/orders",
        "partition": 3,
        "offset": 42,
        "key_bytes": b"user-7",
        "payload": b"\xff\x00raw",
        "attributes": {"v": "1"},
        "publish_time_us": 1_700_000_000_123_456,
        "attempt": 2,
        "producer": "till",
    }
    return SimpleNamespace(**{**known, **changes})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%v", b"\xff\x00raw\n"),
        ("%t %p %o", b"/default/orders 3 42\n"),
        ("%k=%v", b"user-7=\xff\x00raw\n"),
        ("%T", b"2023-11-14T22:13:20.123456Z\n"),
        ("%n %P %S", b"2 till 5\n"),
        ("100%%", b"100%\n"),
        (r"%o\t%k\n", b"42\tuser-7\n"),
        (r"%o\0", b"42\0"),
        (r"%o\c", b"42"),
        (r"%o\\n", b"42\\n\n"),
        (r"\x41\x7e", b"A~\n"),
        ("%o\n", b"42\n"),
        ("", b"\n"),
        ("größe %o", "größe 42\n".encode()),
    ],
)
def test_formats(text, expected):
    assert compile_format(text)(message()) == expected


def test_attributes_are_json_and_a_missing_key_is_empty():
    shown = compile_format("[%k] %a")(message(key_bytes=None, attributes={}))
    assert shown == b"[] {}\n"
    assert json.loads(compile_format("%a")(message())) == {"v": "1"}


@pytest.mark.parametrize("text", ["%", "%o %", "%z", "\\", "\\q", r"\c%o", r"\x4", r"\xzz", r"\x"])
def test_unknown_escape_sequences_are_refused(text):
    with pytest.raises(InvalidArgumentError, match="format"):
        compile_format(text)


PIECES = {
    "%t": b"/default/orders",
    "%p": b"3",
    "%o": b"42",
    "%k": b"user-7",
    "%v": b"\xff\x00raw",
    "%%": b"%",
    "\\n": b"\n",
    "\\t": b"\t",
    "\\\\": b"\\",
}


@given(
    st.lists(
        st.sampled_from(sorted(PIECES)) | st.text(st.characters(exclude_characters="%\\", exclude_categories=["Cs"]))
    )
)
def test_a_format_prints_its_pieces_in_order(pieces):
    printed = compile_format("".join(pieces) + "\\c")(message())
    assert printed == b"".join(PIECES.get(piece, piece.encode()) for piece in pieces)


@given(st.text(st.sampled_from("%\\tpokvTanxc0 4fZ")))
def test_any_text_compiles_or_is_refused(text):
    try:
        show = compile_format(text)
    except InvalidArgumentError:
        return
    assert isinstance(show(message()), bytes)


@given(st.integers(0, 4_000_000_000_000_000))
def test_times_sort_as_text(time_us):
    assert iso_time(time_us) < iso_time(time_us + 1)
