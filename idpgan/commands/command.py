"""Turns a function into a command: its options model becomes options, and its answer is printed as text or as JSON.

An options model is a frozen dataclass in the file of its command. It checks its fields; a script fills one in itself.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from typer.core import TyperCommand

from idpgan.errors import InputError
from idpgan.progress import shown
from idpgan.ranks import launched

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Quiet = Annotated[bool, typer.Option("--no-progress", help="Show no progress.")]
Device = Annotated[
    str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:1; mps draws samples only (no float64).")
]
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
