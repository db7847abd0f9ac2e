"""The answers of a stream as an artifact: a table of running counts, one row per value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pydantic

from idpgan.config import Section, build
from idpgan.errors import InputError
from idpgan.files import write_bytes_atomic
from idpgan.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

ANSWERS = "answers.csv"
MOST_NUMBERS = 1 << 27  # most numbers in a table
_WIDEST = 26  # most characters of a number and its comma
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_REAL = re.compile(r"-?[0-9]{1,17}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,3})?")


class _Described(Section):
    """The entry "stream" of config.json."""

    values: int = pydantic.Field(ge=1, le=MOST_NUMBERS)
    series: int = pydantic.Field(ge=1, le=MOST_NUMBERS)
    integer: bool


class AnswersArtifact:
    """All answers of a stream so far; an `idpgan.release.artifact.Artifact`.

    A later folder of the same stream begins with the same rows: the stream is one release, however long it grows.

    Attributes:
        values: T, the number of values answered.
        series: S, the number of series.
        answers: int64 or float64 (S, T) on the CPU; None until `read`.
    """

    kind: ClassVar[str] = "stream"
    card: ClassVar[str] = "answers"

    def __init__(self, values: int, series: int, integer: bool, answers: Tensor | None = None) -> None:
        if values * series > MOST_NUMBERS:
            raise InputError(f"{values:,} answers of {series:,} series are more than fit into one table.")
        self.values, self.series, self.integer, self.answers = values, series, integer, answers

    @classmethod
    def of(cls, answers: Tensor) -> Self:
        """Return the artifact of all answers of a stream, at least one, (T,) or (..., T), int64 or float64."""
        if answers.dtype not in (torch.int64, torch.float64) or answers.ndim == 0 or not answers.numel():
            raise InputError(
                f"answers to give away are int64 or float64 (..., T), got {answers.dtype} {tuple(answers.shape)}."
            )
        table = answers.reshape(-1, answers.shape[-1]).cpu()
        return cls(table.shape[1], table.shape[0], answers.dtype == torch.int64, table)

    def files(self) -> Mapping[str, int]:
        """Return the name of the table with the most bytes it can have."""
        return {ANSWERS: (self.values + 1) * (self.series + 1) * _WIDEST}

    def describe(self) -> dict[str, Any]:
        """Return the numbers of values and series, and whether the answers are whole."""
        return {"values": self.values, "series": self.series, "integer": self.integer}

    def write(self, folder: Path) -> None:
        """Write the table."""
        if self.answers is None:
            raise ValueError("these answers are described, not read.")
        write_bytes_atomic(folder / ANSWERS, self._table(self.answers.T.tolist()).encode())

    def _table(self, rows: Sequence[Sequence[float]]) -> str:
        names = ["answer"] if self.series == 1 else [f"answer_{number}" for number in range(self.series)]
        lines = [",".join(["index", *names])]
        lines += [",".join([str(index), *map(repr, row)]) for index, row in enumerate(rows, start=1)]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_description(cls, described: Any) -> Self:
        """Check the numbers; the answers are None until `read`."""
        checked = build(_Described, described, "stream of config.json")
        return cls(checked.values, checked.series, checked.integer)

    def read(self, files: Mapping[str, bytes]) -> list[str]:
        """Read the numbers, write the table again from them, and compare it byte for byte."""
        cell, number = (_WHOLE, int) if self.integer else (_REAL, float)
        try:
            lines = files[ANSWERS].decode("ascii").split("\n")[1:-1]
            cells = [line.split(",")[1:] for line in lines]
            if not all(cell.fullmatch(text) for row in cells for text in row):
                raise ValueError
            rows = [[number(text) for text in row] for row in cells]
            if len(rows) != self.values or {len(row) for row in rows} != {self.series}:
                return [f"{ANSWERS} does not hold {self.values:,} answers of {self.series:,} series."]
            if self._table(rows).encode() != files[ANSWERS]:
                raise ValueError
            self.answers = torch.tensor(rows, dtype=torch.int64 if self.integer else torch.float64).T
        except (ValueError, RuntimeError, OverflowError):  # a number beyond 64 bits
            return [f"{ANSWERS} is damaged, or is not written as a release writes it."]
        return []
