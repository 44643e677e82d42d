"""Exit codes of the command line."""

import typer

OK = 0
FAILED = 1  # the job ran and failed
INVALID = 2  # the input is wrong
ENVIRONMENT = 3  # this machine cannot do it


def invalid(message: str) -> typer.Exit:
    """Say what is wrong with the input; to be raised."""
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(INVALID)
