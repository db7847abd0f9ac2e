"""The command line: one file per command that parses, calls and prints. Heavy imports wait inside the functions."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from idpgan.cli.attack import attack
from idpgan.cli.audit import audit
from idpgan.cli.doctor import doctor
from idpgan.cli.evaluate import evaluate
from idpgan.cli.methods import methods
from idpgan.cli.sample import sample
from idpgan.cli.train import train
from idpgan.cli.verify import verify
from idpgan.errors import InputError

app = typer.Typer(
    name="idpgan",
    help="Publish and generate images under differential privacy: claimed, proven and audited.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (train, sample, evaluate, attack, audit, methods, verify, doctor):
    app.command()(command)


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    """Refuse names that are no text: they can be neither printed nor written into a result."""
    for argument in arguments:
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(f"{argument!a} is not UTF-8 text. Rename the file or folder.") from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; bad input ends with one line on stderr and exit code 2, anything else is a defect."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _refuse_undecodable(given)
        app(given)
    except InputError as error:
        print(f"idpgan: {error}", file=sys.stderr)
        sys.exit(2)
