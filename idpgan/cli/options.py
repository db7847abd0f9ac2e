"""The adapter between an options model (`idpgan.jobs.options`) and the command line: each option is written once."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from inspect import Parameter
from typing import Any


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has the fields of a model as parameters in place of its parameter ``options``.

    A field ``tuple[str, ...]`` becomes an option that may be repeated. Help and flags stand in the field's annotation.
    """
    own = dict(inspect.signature(command, eval_str=True).parameters)
    model = own["options"].annotation
    hints = typing.get_type_hints(model, include_extras=True)
    fields = {field.name: _parameter(field, hints[field.name]) for field in dataclasses.fields(model)}

    @functools.wraps(command)
    def call(**given: Any) -> None:
        taken = {name: given.pop(name) for name in fields}
        options = model(**{name: tuple(value) if isinstance(value, list) else value for name, value in taken.items()})
        command(options=options, **given)

    parameters: list[Parameter] = []
    for name, parameter in own.items():
        parameters += fields.values() if name == "options" else [parameter.replace(kind=Parameter.KEYWORD_ONLY)]
    del call.__wrapped__  # else its signature would count
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameter(field: dataclasses.Field[Any], hint: Any) -> Parameter:
    """Return the parameter of a field; a tuple of any length is a list there, as typer knows no other repeated kind."""
    kind, *extras = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
    default: Any = Parameter.empty if field.default is dataclasses.MISSING else field.default
    if typing.get_origin(kind) is tuple:
        default = default if default is Parameter.empty else list(default)
        kind = list[typing.get_args(kind)[0]]  # type: ignore[misc]
    annotation = typing.Annotated[kind, *extras] if extras else kind
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
