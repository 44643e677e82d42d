"""`ttj`, also `kubectl ttj`: the commands and their options. What a command needs is imported when it runs."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

FAILED, INVALID, ENVIRONMENT = 1, 2, 3

app = typer.Typer(
    name="ttj",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 the job failed, 2 invalid input, 3 this machine cannot, 130 interrupted.",
)


class Output(StrEnum):
    """What `render` writes."""

    YAML = "yaml"
    JSON = "json"


class Report(StrEnum):
    """What other commands write."""

    TEXT = "text"
    YAML = "yaml"
    JSON = "json"


Sources = Annotated[
    list[str],
    typer.Option("--filename", "-f", metavar="FILE", help="YAML file, - for standard input; may be repeated."),
]
Form = Annotated[Report, typer.Option("--output", "-o", help="Form of the output.")]


@app.callback()
def ttj() -> None:
    """PyTorch training jobs on Cloud TPU slices: check them, see what they become, run them here."""


@app.command()
def validate(filename: Sources, output: Form = Report.TEXT) -> None:
    """Check TorchTPUJobs without a cluster: every fault at once, and where it is."""
    from torchtpu_operator.cli import validate as command

    raise typer.Exit(command.validate(filename, output.value))


@app.command()
def render(
    filename: Sources,
    output: Annotated[Output, typer.Option("--output", "-o", help="Form of the output.")] = Output.YAML,
    attempt: Annotated[int, typer.Option(min=1, max=9999, help="Number of the attempt.")] = 1,
    runtime_image: Annotated[str | None, typer.Option(help="Image that carries the runtime.")] = None,
) -> None:
    """Write the RayJobs that TorchTPUJobs become."""
    from torchtpu_operator.cli import render as command

    raise typer.Exit(command.render(filename, output.value, attempt, runtime_image))


@app.command()
def explain(
    accelerator: Annotated[str, typer.Argument(help="v4, v5e, v5p, v6e, v7x, a nickname, or a type as v6e-16.")],
    topology: Annotated[str | None, typer.Argument(help="Chips along each dimension: 4x4, 2x2x4.")] = None,
    chips_per_host: Annotated[int | None, typer.Option(help="Chips of one host, where there is a choice.")] = None,
    slices: Annotated[int, typer.Option(help="Number of slices.")] = 1,
    output: Form = Report.TEXT,
) -> None:
    """Show what a TPU slice is: chips, hosts, ranks, machine type, labels. Or why there is none such."""
    from torchtpu_operator.cli import explain as command

    raise typer.Exit(command.explain(accelerator, topology, chips_per_host, slices, output.value))


@app.command()
def run(
    filename: Sources,
    name: Annotated[str | None, typer.Option(help="Which job, where the input has several.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show ranks and their environments.")] = False,
    output_form: Annotated[Report, typer.Option("-o", help="Form of --dry-run's output.")] = Report.TEXT,
    workdir: Annotated[Path | None, typer.Option(help="Working directory of the ranks; default: the file's.")] = None,
    timeout: Annotated[float | None, typer.Option(min=1, help="Stop the job after so many seconds.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for logs; default: below the state folder.")] = None,
    no_screen: Annotated[bool, typer.Option("--no-screen", help="Plain lines also on a terminal.")] = False,
) -> None:
    """Run one job here: real Ray and torch, simulated TPU hosts, ranks on CPU."""
    from torchtpu_operator.cli import run as command

    if dry_run:
        raise typer.Exit(command.dry_run(filename, name, output_form.value))
    places = command.Places(workdir, output)
    raise typer.Exit(command.run(filename, name, places, timeout, command.screen(not no_screen)))


def main() -> None:
    """Entry point of both console scripts."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to fail
    app()


if __name__ == "__main__":
    main()
