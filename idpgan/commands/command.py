"""Turns a function into a command: its options model becomes options, and its answer is printed as text or as JSON.

An options model is a frozen dataclass in the file of its command. It checks its fields; a script fills one in itself.

The one place that reports refusals of the machine in one line: disk full, no permission, no memory, signals.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import inspect
import json
import os
import signal
import sys
import threading
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar

import typer
from typer.core import TyperCommand

from idpgan.errors import InputError
from idpgan.files import PART, naming
from idpgan.progress import shown
from idpgan.ranks import launched, refuse_several

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Quiet = Annotated[bool, typer.Option("--no-progress", help="Show no progress.")]
Device = Annotated[
    str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:1; mps draws samples only (no float64).")
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--sign", metavar="CERT.pem", help="Sign what pictures say of themselves, with --key (idpgan\\[marks])."
    ),
]
PrivateKey = Annotated[Path | None, typer.Option("--key", metavar="KEY.pem", help="Private key of the certificate.")]
RANGE = "Of images that are not bytes: unit [0, 1], symmetric [-1, 1], bytes [0, 255] or auto."
T = TypeVar("T")


class Answer(NamedTuple):
    """The result of a command: a JSON value or an object that has one, a printer of the text, and the exit code."""

    value: Any
    show: Callable[[], None]
    code: int = 0


class Command(TyperCommand):
    """A command that asks at once for all that is missing, and says what each of it is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises `InputError` where an argument or an option is missing."""
        try:
            return super().parse_args(ctx, list(args))
        except typer.BadParameter as error:
            if type(error) is typer.BadParameter:  # a value that is wrong; the missing ones are a subclass
                raise
        given, *_ = self.make_parser(ctx).parse_args(args=list(args))
        wanted = [each for each in self.get_params(ctx) if each.required]
        missing = [each for each in wanted if each.value_is_missing(each.consume_value(ctx, given)[0])]
        words = "; ".join(_what_it_is(each) for each in missing)
        example = (self.help or "").partition("Example: ")[2].partition("Example: ")[0]
        raise InputError(f"{ctx.info_name} needs {words}. Example: {example.strip()}")


def _what_it_is(parameter: Any) -> str:
    """Name an argument or an option, with its help where it has one."""
    name = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar
    return f"{name} ({parameter.help.rstrip('.')})" if parameter.help else name


def command(body: Callable[..., Answer | None]) -> Callable[..., None]:
    """Turn a function that returns an `Answer`, or None for no output, into a command.

    Its parameter ``options`` becomes an option for each field of the model that it is annotated with; a field
    ``tuple[str, ...]`` may be repeated. ``progress`` becomes ``--no-progress``: the body gets what shows the progress.
    ``--json`` is added, unless the body has ``as_json`` itself.
    """
    own = dict(inspect.signature(body, eval_str=True).parameters)
    fields: dict[str, Parameter] = {}
    if "options" in own:
        model = own["options"].annotation
        hints = typing.get_type_hints(model, include_extras=True)
        fields = {field.name: _parameter(field, hints[field.name]) for field in dataclasses.fields(model)}

    @functools.wraps(body)
    def call(**given: Any) -> None:
        as_json = given["as_json"] if "as_json" in own else given.pop("as_json")
        if fields:
            taken = {name: given.pop(name) for name in fields}
            given["options"] = model(
                **{name: tuple(value) if isinstance(value, list) else value for name, value in taken.items()}
            )
        with shown(given.pop("quiet", True) or as_json or launched()[0] > 0) as progress:
            answer = body(**given, **({"progress": progress} if "progress" in own else {}))
        if answer is None:
            return
        if as_json:
            print_json(answer.value.to_json() if hasattr(answer.value, "to_json") else answer.value)
        else:
            answer.show()
        if answer.code:
            raise typer.Exit(answer.code)

    parameters: list[Parameter] = []
    for name, parameter in own.items():
        if name == "progress":
            parameters.append(Parameter("quiet", Parameter.KEYWORD_ONLY, default=False, annotation=Quiet))
        else:
            replaced = fields.values() if name == "options" else [parameter.replace(kind=Parameter.KEYWORD_ONLY)]
            parameters += replaced
    if "as_json" not in own:
        parameters.append(Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=AsJson))
    del call.__wrapped__  # inspect would prefer the wrapped function's signature
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameter(field: dataclasses.Field[Any], hint: Any) -> Parameter:
    """Return the parameter of a field; a tuple of any length is a list there, as typer knows no other repeated kind."""
    kind, *extras = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
    if field.metadata:  # made by `option`
        flags, metavar, text = (field.metadata[name] for name in ("flags", "metavar", "help"))
        own = (f"--{field.name.replace('_', '-')}",) if kind is bool else ()  # or typer adds --no-NAME
        text = text.replace("[", "\\[")  # or the help takes it for markup, and leaves it out
        extras.append(typer.Option(*(flags or own), metavar=metavar, help=text))
    default: Any = Parameter.empty if field.default is dataclasses.MISSING else field.default
    if typing.get_origin(kind) is tuple:
        default = default if default is Parameter.empty else list(default)
        kind = list[typing.get_args(kind)[0]]  # type: ignore[misc]
    annotation = typing.Annotated[kind, *extras] if extras else kind
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def option(default: T, text: str, *flags: str, metavar: str | None = None) -> T:
    """Return the field of an options model that is an option of the command line, with its help.

    Without ``flags`` it is called as the field is.
    """
    found: Any = dataclasses.field(default=default, metadata={"flags": flags, "metavar": metavar, "help": text})
    return found


def completing(*values: str) -> Callable[[str], list[str]]:
    """Return what a shell asks for the values of an option."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def given(options: Any, *names: str) -> list[str]:
    """Return the flags of those fields of an options model that do not have their defaults."""
    fields = {field.name: field for field in dataclasses.fields(options)}
    changed = [fields[name] for name in names if getattr(options, name) != fields[name].default]
    return [(field.metadata.get("flags") or [f"--{field.name.replace('_', '-')}"])[0] for field in changed]


def refuse_below(options: Any, **least: int) -> None:
    """Refuse the fields of an options model that lie below a limit; a field that is None is not checked."""
    for name, limit in least.items():
        value = getattr(options, name)
        if value is not None and value < limit:
            raise InputError(f"--{name.replace('_', '-')} {value} must be at least {limit}.")


def print_json(value: Any) -> None:
    """Print one JSON value on stdout."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_lines(lines: Sequence[str]) -> None:
    """Print sentences that a terminal may break, each on a line of its own."""
    from rich.console import Console

    console = Console(markup=False)
    for line in lines:
        console.print(line, soft_wrap=True)


def print_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
    *,
    frame: bool = True,
) -> None:
    """Print a table; without a frame no column breaks its lines."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title) if frame else Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in head:
        table.add_column(heading, no_wrap=not frame)
    for row in rows:
        table.add_row(*row)
    Console(markup=False).print(table)


@contextmanager
def kept(result: Mapping[str, Any]) -> Iterator[None]:
    """Print a result that took minutes to compute on stdout, if the block fails to write it."""
    try:
        yield
    except OSError:
        print_json(result)
        raise


BAD = 2  # exit code for bad input and for refusals of the machine
INTERRUPTED, PIPE_CLOSED, TERMINATED = (128 + number for number in (2, 13, 15))  # exit codes of signals, as in shells

_WAYS_OUT = {
    errno.ENOSPC: "Make room there, or write to another disk.",
    errno.EDQUOT: "Make room there, or write to another disk.",
    errno.EROFS: "Write to another place.",
    errno.EACCES: "Change its permissions, or name another place.",
    errno.EPERM: "Change its permissions, or name another place.",
    errno.EMFILE: "Allow more open files (ulimit -n).",
    errno.ENFILE: "Close other programs, or allow more open files.",
    errno.EIO: "The disk or network drive fails: copy the file elsewhere, and check the drive.",
    errno.ENOMEM: "Close other programs, or ask for less: smaller batches, fewer or smaller images.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ELOOP: "A link there leads back to itself: remove it.",
    errno.ENOENT: "Check the name.",
    errno.EISDIR: "Name a file, not a folder.",
    errno.ENOTDIR: "Name a folder, not a file.",
}
_NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")
_NOT_WRITTEN = ("file write failed", "failed writing")  # messages of torch's zip writer


class MachineError(Exception):
    """What the machine refused, as one sentence, with the exit code of the command."""

    def __init__(self, message: str, code: int = BAD) -> None:
        super().__init__(message)
        self.code = code


class Terminated(BaseException):
    """A signal, raised so that every block that cleans up does so."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.word = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        self.code = 128 + number


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command raise a `MachineError` for what the machine refuses; every other exception stays what it is."""

    @functools.wraps(command)
    def guard(*arguments: Any, **options: Any) -> None:
        if command.__name__ != "train":  # which alone shares work
            refuse_several(command.__name__)
        try:
            command(*arguments, **options)
        except (Exception, KeyboardInterrupt, Terminated) as error:
            fault = explain(behind(error))
            if fault is None:
                raise
            raise fault from error

    return guard


def explain(error: BaseException) -> MachineError | None:
    """Return what the machine refused as one sentence; None if the error is a defect."""
    if isinstance(error, KeyboardInterrupt):
        error = Terminated(signal.SIGINT)
    if isinstance(error, Terminated):
        return MachineError(f"stopped by {error.word}; what is written is whole.", error.code)
    if isinstance(error, BrokenPipeError):
        return MachineError("whoever read the output has closed it.", PIPE_CLOSED)
    if isinstance(error, OSError):
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
        folder, last = os.path.split(names[-1]) if names else ("", "")  # of a rename, users know the target
        part = PART.fullmatch(last)
        name = os.path.join(folder, part[1] if part else last)
        reason = error.strerror or str(error) or type(error).__name__
        said = f"{name}: {reason}" if names else f"the system refused a call that names no file: {reason}"
        return MachineError(f"{said}. {_WAYS_OUT.get(error.errno or 0, '')}".rstrip())
    text, first = str(error), f" ({str(error).splitlines()[0][:200]})" if str(error) else ""
    of_torch = isinstance(error, RuntimeError)
    if isinstance(error, MemoryError) or (of_torch and any(phrase in text for phrase in _NO_MEMORY)):
        return MachineError(f"there is not enough memory{first}. {_WAYS_OUT[errno.ENOMEM]}")
    if of_torch and any(phrase in text for phrase in _NOT_WRITTEN):
        return MachineError(f"a file could not be written{first}. {_WAYS_OUT[errno.ENOSPC]}")
    return None


def one_line(text: str) -> str:
    """Return a message as one printable line; names of files may hold line breaks, escapes and half characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.splitlines()))


def say(message: str, code: int) -> int:
    """Print one line on stderr, if anybody still reads it; return the exit code."""
    with contextlib.suppress(OSError, ValueError):
        print(f"idpgan: {one_line(message)}", file=sys.stderr, flush=True)
    return code


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Make SIGTERM and Ctrl-C exceptions in the main thread, so that temporary files go; training has its own way.

    A signal that is ignored, as Ctrl-C is in the background, stays ignored.
    """
    _came.clear()
    previous = dict[int, Any]()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, _terminate)
    try:
        yield
    finally:
        for changed, handler in previous.items():
            signal.signal(changed, signal.SIG_DFL if handler is None else handler)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    _came.append(Terminated(number))
    raise _came[-1]


def behind(error: BaseException) -> BaseException:
    """Return the signal behind an error, if one came: imports make other errors of exceptions in their midst."""
    return _came[-1] if _came else error


_came: list[Terminated] = []


def open_missing_streams() -> None:
    """Let each standard stream that the caller closed (``>&-``) be the null device.

    Its number would otherwise go to the next file that is opened, a ledger say, and whatever is printed into that.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number: the stream's own, where it was closed
            setattr(sys, name, os.fdopen(null, "w" if number else "r", encoding="utf-8"))


def flush_output() -> int:
    """Write what is still held back for stdout; return the exit code, 0 where it went well."""
    try:
        with naming("the output"):
            sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # or Python tries again at exit, with a traceback
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fault = explain(error)
        return say(str(fault), fault.code) if fault else BAD
    return 0
