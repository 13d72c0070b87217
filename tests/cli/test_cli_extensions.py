"""Commands of other packages: found by entry points, and missed politely."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import typer
from typer.testing import CliRunner

from danube.cli import _extensions
from danube.cli.app import app

runner = CliRunner()
brewer = typer.Typer(help="Brew things.")


@brewer.command()
def tea(cups: int = 1) -> None:
    """Make tea."""
    typer.echo(f"{cups} cups")


@brewer.command()
def coffee() -> None:
    """Make coffee."""


@pytest.fixture
def packages(monkeypatch):
    """Let exactly these commands be installed."""

    def install(**targets: str) -> None:
        points = [EntryPoint(name, target, _extensions.GROUP) for name, target in targets.items()]

        def entry_points(group, name=None):
            assert group == _extensions.GROUP
            return [point for point in points if name in (None, point.name)]

        monkeypatch.setattr(_extensions, "entry_points", entry_points)

    return install


def test_a_command_of_another_package_is_listed_and_run(packages):
    packages(brew=f"{__name__}:brewer")
    assert "Brew things." in runner.invoke(app, ["--help"]).output
    result = runner.invoke(app, ["brew", "tea", "--cups", "2"])
    assert (result.exit_code, result.output) == (0, "2 cups\n")
    assert runner.invoke(app, ["brew", "milk"]).exit_code == 2
    assert runner.invoke(app, ["brw"]).exit_code == 2


def test_built_in_commands_cannot_be_replaced(packages):
    packages(version=f"{__name__}:brewer")
    assert runner.invoke(app, ["version", "-o", "json"]).exit_code == 0


@pytest.mark.parametrize("arguments", [[], ["export", "/default/t", "--once"], ["--help"]])
def test_without_the_package_the_command_says_what_to_install(packages, arguments):
    packages()
    result = runner.invoke(app, ["pipeline", *arguments])
    assert result.exit_code == 65
    assert "pip install 'pyspark-danube[pipeline]'" in result.stderr
    assert "(get it with: pip install" in runner.invoke(app, ["--help"]).output


def test_a_package_that_cannot_be_imported_harms_only_its_own_command(packages):
    packages(broken="danube_no_such_module:app")
    assert "broken" in runner.invoke(app, ["--help"]).output
    assert "danube_no_such_module" in runner.invoke(app, ["broken", "now"]).stderr
    assert runner.invoke(app, ["version"]).exit_code == 0
