"""The command line: one file a command, which holds its options, what it does and how it is shown.

Heavy imports wait inside the functions, and a command's file until it is called, so that ``--help`` is there at once.
"""

from __future__ import annotations

import functools
import importlib
import io
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from idpgan.commands.command import (
    BAD,
    Command,
    MachineError,
    Terminated,
    behind,
    flush_output,
    guarded,
    open_missing_streams,
    say,
    signals_raise,
)
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.removed import gone_arguments


def _print_version(wanted: bool) -> None:
    if wanted:
        from idpgan.version import made_with

        print(f"idpgan {made_with()}")
        raise typer.Exit


class _Loaded(Mapping[str, Any]):
    """The commands by name; the file of one is imported when the command is asked for, and of no other."""

    def __getitem__(self, name: str) -> Any:
        """Return the command, or raise a KeyError."""
        if name not in _COMMANDS:
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


@functools.cache
def _command(name: str) -> Any:
    """Return one command, a function in the file of its name."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(cls=Command)(guarded(getattr(importlib.import_module(f"{__name__}.{name}"), name)))
    return typer.main.get_command(alone)


class _Group(TyperGroup):
    """All commands; its help takes the first line of each from the source, so that nothing is imported for it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        commands: Any = _Loaded()
        self.commands = commands

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises `InputError`, after the help, where there is not even a command."""
        if not args and not ctx.resilient_parsing:
            print(ctx.get_help())
            raise InputError("A command is missing. See --help.")
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of use."""
        return list(_COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with the first line of its help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(name)) for name in _COMMANDS])


def _summary(name: str) -> str:
    """Return the first line of a command's docstring."""
    text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    line = re.search(rf'\ndef {name}\(.*?"""(.*?)\n', text, re.DOTALL)
    return line[1] if line else ""


app = typer.Typer(
    name="idpgan",
    cls=_Group,
    rich_markup_mode=None,  # rich takes longer to import than all else of the help
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
_group = functools.cache(functools.partial(typer.main.get_command, app))  # of all options: 50 ms each time
_UsageError: type[Any] = typer.BadParameter.__mro__[1]  # click's, wherever this version of typer has it from


def main(arguments: Sequence[str] | None = None, script: str | None = None) -> None:
    """Run the command line, and end with its exit code; ``script`` is the file that the first argument stands for.

    Bad input and what the machine refuses (disk full, no permission, no memory) end with one line on stderr and exit
    code 2, signals with 128 and their number. Anything else is a defect.
    """
    try:
        with signals_raise():
            code = _run(sys.argv[1:] if arguments is None else list(arguments), script)
    except (Exception, Terminated) as error:  # before the command began
        stopped = behind(error)
        if not isinstance(stopped, Terminated):
            raise
        code = say(f"stopped by {stopped.word}; nothing was begun.", stopped.code)
    sys.exit(flush_output() or code)


def _run(given: list[str], script: str | None) -> int:
    """Run the command that the arguments name; return its exit code."""
    open_missing_streams()
    for output in (sys.stdout, sys.stderr):  # a character that the terminal lacks is printed as its number
        if isinstance(output, io.TextIOWrapper):
            to_file = output is sys.stdout and not output.isatty()  # configs and JSON are UTF-8, whatever the console
            output.reconfigure(encoding="utf-8" if to_file else None, errors="backslashreplace")
    root = logging.getLogger()
    if (
        not root.handlers and logging.lastResort is not None
    ):  # without this the import of Opacus adds a time stamp to every warning
        root.addHandler(logging.lastResort)
    try:
        for argument in given:
            if argument.encode("utf-8", "ignore").decode() != argument:
                raise InputError(f"{argument!a} is not UTF-8 text. Rename the file or folder.")
        if went := gone_arguments(given):
            raise InputError(went)
        with own_state():  # PYTHONWARNINGS=error ends no run
            if script is not None:  # its help begins with its own name
                return _command(given[0])(given[1:], prog_name=script, standalone_mode=False) or 0
            return _group()(given, standalone_mode=False) or 0
    except _UsageError as error:  # an unknown command or option
        return say(f"{error.format_message().rstrip('.')}. See --help.", BAD)
    except InputError as error:
        return say(str(error), BAD)
    except MachineError as fault:
        return say(str(fault), fault.code)
