"""The packages in which mutants are planted, and the tests that may detect them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .sources import Source

__all__ = ["ELSEWHERE", "PACKAGES", "ROOT", "TESTS", "own_tests", "package_of", "sources_of"]

ROOT = Path(__file__).parent.parent.parent

PACKAGES: dict[str, tuple[str, ...]] = {
    "log": ("danube/log/*.py",),
    "dispatch": ("danube/dispatch/*.py",),
    "history": ("danube/history/*.py", "danube/history/remote/*.py"),
    "intake": (
        "danube/broker/intake/intake.py",
        "danube/broker/intake/composer.py",
        "danube/broker/intake/packing.py",
        "danube/broker/stages/*.py",
        "danube/broker/runtime/stage_disk.py",
    ),
    "client": ("danube/client/_outbox.py", "danube/client/_acks.py", "danube/client/_feed.py"),
    "wire": (
        "danube/wire/connection.py",
        "danube/wire/_abuse.py",
        "danube/wire/_core.py",
        "danube/wire/_grpc.py",
        "danube/wire/_hpack.py",
        "danube/wire/_outgoing.py",
        "danube/wire/_receiving.py",
        "danube/wire/_repeated.py",
        "danube/wire/_stream.py",
    ),
    "cluster": ("danube/cluster/*.py",),
    "compat": ("danube/compat/consumer_ids.py", "danube/compat/consumer_index.py", "danube/compat/producers.py"),
    "peers": ("danube/peers/*.py",),
    "security": ("danube/security/*.py",),
}

TESTS = (
    "tests/model",
    "tests/log",
    "tests/dispatch",
    "tests/history",
    "tests/client",
    "tests/loop",
    "tests/wire",
    "tests/compat",
    "tests/cluster",
    "tests/peers",
    "tests/security",
    "tests/broker",
    "tests/simulation/test_simulation_found.py",
    "tests/simulation/test_simulation_staging.py",
)
"""Where tests are that run the product in their own process, where the mistakes are planted."""

ELSEWHERE = {
    "tests/broker/test_broker_memory.py",
    "tests/broker/runtime/test_memory.py",
    "tests/broker/test_process.py",
    "tests/client/test_client_at_exit.py",
}
"""These run it in processes of their own, which know nothing of a mistake."""


def own_tests(package: str) -> str:
    """How the ids of a package's own tests begin."""
    return "tests/broker/" if package == "intake" else f"tests/{package}/"


def sources_of(packages: Iterable[str]) -> list[Source]:
    """The modules of packages, in order."""
    paths = [path for name in packages for pattern in PACKAGES[name] for path in sorted(ROOT.glob(pattern))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [Source(n, p) for n, p in zip(names, paths, strict=True) if p.name != "__init__.py"]


def package_of(module: str) -> str:
    """The package, as :data:`PACKAGES` names it, of a module."""
    path = Path(*module.split(".")).with_suffix(".py")
    return next(name for name, patterns in PACKAGES.items() if any(path.match(pattern) for pattern in patterns))
