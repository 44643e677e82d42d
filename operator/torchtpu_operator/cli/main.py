"""The commands. Each imports what it needs when it runs, so that `ttj --help` is quick."""

import sys
from enum import StrEnum
from typing import Annotated

import typer

from torchtpu_operator import __version__

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    help="PyTorch on Cloud TPU slices: check, render, explain and run TorchTPUJobs.",
)


class Output(StrEnum):
    """Forms of machine-readable output."""

    YAML = "yaml"
    JSON = "json"


File = Annotated[str, typer.Option("--file", "-f", metavar="FILE", help="YAML or JSON file, - for standard input.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def validate(
    file: File,
    output: Annotated[Output | None, typer.Option("--output", "-o", help="Faults as data.")] = None,
) -> None:
    """Say everything that is wrong with the jobs of a file. Exit code 2 if anything is."""
    from torchtpu_operator.cli import documents

    raise typer.Exit(documents.validate(file, output))


@app.command()
def render(
    file: File,
    output: Annotated[Output, typer.Option("--output", "-o", help="Form of the objects.")] = Output.YAML,
    attempt: Annotated[int, typer.Option(min=1, max=9999, help="Number of the attempt.")] = 1,
    runtime_image: Annotated[str | None, typer.Option(help="Image that carries the runtime.")] = None,
) -> None:
    """Write the KubeRay objects that the jobs of a file become."""
    from torchtpu_operator.cli import documents

    raise typer.Exit(documents.render(file, output, attempt, runtime_image))


@app.command()
def explain(
    accelerator: Annotated[str, typer.Argument(help="v4, v5e, v5p, v6e, v7x, or a name such as trillium or v6e-16.")],
    topology: Annotated[str | None, typer.Argument(help="As GKE writes it: 4x4, 2x2x4.")] = None,
    chips_per_host: Annotated[int | None, typer.Option(help="For 2x4: one host of 8 (default) or two of 4.")] = None,
    slices: Annotated[int, typer.Option(help="Number of slices.")] = 1,
    output: Annotated[Output | None, typer.Option("--output", "-o", help="As data.")] = None,
) -> None:
    """Say what a TPU slice is: hosts, chips, devices, machine, labels. Numbers are totals over all slices."""
    from torchtpu_operator.cli import slices as command

    raise typer.Exit(command.explain(accelerator, topology, chips_per_host, slices, output))


def main() -> None:
    """Entry point of `ttj` and `kubectl ttj`."""
    try:
        app()
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        raise SystemExit(0) from None


if __name__ == "__main__":
    main()
