"""The command line: one file a command, which holds its options, what it does and how it is shown.

Heavy imports wait inside the functions, so that ``--help`` is there at once.
"""

from __future__ import annotations

import functools
import importlib
import io
import logging
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from idpgan.commands.command import Command
from idpgan.commands.faults import (
    BAD,
    TERMINATED,
    MachineError,
    Terminated,
    flush_output,
    guarded,
    open_missing_streams,
    say,
    sigterm_raises,
)
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.removed import gone_arguments


def _print_version(wanted: bool) -> None:
    if wanted:
        from idpgan.version import made_with

        print(f"idpgan {made_with()}")
        raise typer.Exit


app = typer.Typer(
    name="idpgan",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version, as cards name it.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """Publish and generate images under differential privacy: claimed, proven and audited."""


_COMMANDS = (
    "prepare", "people", "init", "train", "sample", "evaluate", "attack", "recognize", "audit", "report",
    "publish", "stream", "ledger", "methods", "verify", "doctor",
)  # fmt: skip
for _name in _COMMANDS:  # each is a function in the file of its name; the package's attribute stays the file
    app.command(cls=Command)(guarded(getattr(importlib.import_module(f"{__name__}.{_name}"), _name)))
_group = functools.cache(functools.partial(typer.main.get_command, app))  # of all options: 50 ms each time
_UsageError: type[Any] = typer.BadParameter.__mro__[1]  # click's, wherever this version of typer has it from


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and end with its exit code.

    Bad input and what the machine refuses (disk full, no permission, no memory) end with one line on stderr and exit
    code 2, signals with 128 and their number. Anything else is a defect.
    """
    open_missing_streams()
    for output in (sys.stdout, sys.stderr):  # a character that the terminal lacks is printed as its number
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="backslashreplace")
    root = logging.getLogger()
    if (
        not root.handlers and logging.lastResort is not None
    ):  # without this the import of Opacus adds a time stamp to every warning
        root.addHandler(logging.lastResort)
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        for argument in given:
            if argument.encode("utf-8", "ignore").decode() != argument:
                raise InputError(f"{argument!a} is not UTF-8 text. Rename the file or folder.")
        if went := gone_arguments(given):
            raise InputError(went)
        with sigterm_raises(), own_state():  # PYTHONWARNINGS=error ends no run
            code = _group()(given, standalone_mode=False) or 0
    except _UsageError as error:  # an unknown command or option
        what = error.format_message().rstrip(".") or "A command is missing"  # empty after the help
        code = say(f"{what}. See --help.", BAD)
    except InputError as error:
        code = say(str(error), BAD)
    except MachineError as fault:
        code = say(str(fault), fault.code)
    except Terminated:  # SIGTERM before the command began
        code = say("stopped by SIGTERM; nothing was begun.", TERMINATED)
    sys.exit(flush_output() or code)
