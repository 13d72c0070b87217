"""The command line: ``danube serve | doctor | produce | consume | topics | bench | ...``.

Every command is a small module that registers itself with the application in :mod:`danube.cli.app`. The dependencies
of a command (the client, the broker, Rich) are imported when the command runs, not before: ``danube --help`` answers
at once, and a broker does not carry the client or a terminal library in its memory.
"""

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit with its exit code."""
    from danube.cli._interrupts import arm

    arm()
    from danube.cli._streams import reopen_closed_streams

    reopen_closed_streams()
    from danube.cli.app import app

    app(prog_name="danube")
