"""The command line: ``danube serve | doctor | produce | consume | topics | bench | ...``.

Every command is a small module, which :mod:`danube.cli.app` imports when the command is asked for. The dependencies of
a command (the client, the broker, Rich) are imported when it runs, not before. ``danube serve`` reads its options
without Typer (:mod:`danube.cli._plain_options`): a broker does not carry the client or a terminal library in memory.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit with its exit code."""
    from danube.cli._interrupts import arm

    arm()
    from danube.cli._streams import reopen_closed_streams

    reopen_closed_streams()
    if sys.argv[1:2] == ["serve"]:
        from danube.cli.serve import serve_plainly

        serve_plainly(sys.argv[2:])
    from danube.cli.app import app

    app(prog_name="danube")
