"""Counts the instructions of a part of this process with Valgrind's tool Callgrind.

Callgrind slows a program down by 50 while it counts and by 6 while it does not, so only the part in question is
counted. The program itself says where it begins and ends, with Valgrind's *client requests*: a sequence of machine
instructions that does nothing on a real processor, and that Valgrind recognises. C programs get it from
``valgrind.h``; here it is a function of 30 bytes.

    48 89 f8     mov rax, rdi     the address of six words: request, arguments
    31 d2        xor edx, edx     the result outside Valgrind: 0
    48 c1 c7 03  rol rdi, 3   \
    48 c1 c7 0d  rol rdi, 13   |  128 bits in all: rdi is what it was,
    48 c1 c7 3d  rol rdi, 61   |  and Valgrind knows that it is meant
    48 c1 c7 33  rol rdi, 51  /
    48 87 db     xchg rbx, rbx    "execute the request"
    48 89 d0     mov rax, rdx
    c3           ret
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["Requests", "command", "read_counts", "unavailable"]

_CODE = bytes.fromhex("4889f8 31d2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")
_RUNNING_ON_VALGRIND = 0x1001
_CALLGRIND = ord("C") << 24 | ord("T") << 16
_ZERO_STATS, _DUMP_STATS_AT, _START, _STOP = (_CALLGRIND + number for number in (1, 3, 4, 5))

_DESCRIPTION = re.compile(r"^desc: Trigger: Client Request: (.*)$", re.MULTILINE)
_TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


_RIGHT_MACHINE = sys.platform == "linux" and platform.machine() == "x86_64"


def unavailable() -> str | None:
    """Why instructions cannot be counted here, and the remedy; None if they can."""
    if not _RIGHT_MACHINE:
        return f"instructions are counted on Linux on x86-64 only, not on {sys.platform} on {platform.machine()}"
    if shutil.which("valgrind") is None:
        return "valgrind was not found; apt-get install valgrind"
    return None


class Requests:
    """Requests of this process to Callgrind. They do nothing unless the process runs under it."""

    def __init__(self) -> None:
        self._function: Callable[[int], int] = lambda address: 0
        if not _RIGHT_MACHINE:
            return
        self._memory = mmap.mmap(-1, len(_CODE), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(_CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._function = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(address)

    def _request(self, number: int, argument: int = 0) -> int:
        words = (ctypes.c_uint64 * 6)(number, argument)
        return self._function(ctypes.addressof(words))

    @property
    def answered(self) -> bool:
        """Whether the process runs under Valgrind."""
        return self._request(_RUNNING_ON_VALGRIND) > 0

    def start(self) -> None:
        """Count from here on."""
        self._request(_ZERO_STATS)
        self._request(_START)

    def stop(self, name: str) -> None:
        """Stop counting, and write what was counted under a name; see :func:`read_counts`."""
        self._request(_STOP)
        text = ctypes.create_string_buffer(name.encode())
        self._request(_DUMP_STATS_AT, ctypes.addressof(text))


def command(program: Sequence[str], output: Path) -> list[str]:
    """The command that runs a program under Callgrind; its files are ``output`` and ``output.NUMBER``."""
    return [
        "valgrind",
        "--tool=callgrind",
        "--quiet",
        "--instr-atstart=no",
        "--cache-sim=no",
        "--branch-sim=no",
        "--dump-line=no",
        f"--callgrind-out-file={output}",
        *program,
    ]


def read_counts(output: Path) -> dict[str, int]:
    """Read the files that :meth:`Requests.stop` made Callgrind write: instructions by name."""
    found = {}
    for path in sorted(output.parent.glob(f"{output.name}.*")):
        text = path.read_text()
        name, total = _DESCRIPTION.search(text), _TOTALS.search(text)
        if name and total:
            found[name[1]] = int(total[1])
    return found
