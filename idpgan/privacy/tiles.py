r"""Tiles: which row of which batch a drawn record takes, so that its arithmetic hangs on nothing but itself.

A library chooses the code of a matrix product or a convolution by its shape, and may compute the last numbers of a
batch by other code than the first ones. If the number of drawn records were the shape, one coin would change the last
bits of every other record's gradient, and a bit that flips a ReLU changes more than bits. So records are computed in
*tiles* of T rows, *slots*, whatever was drawn; an empty slot holds a null record. All slots of one *kind* run the same
code. A record's kind is that of slot i mod T, i being its position in the data, a public number; it takes any free slot
of that kind. So one coin more or less moves other records between tiles and between slots of one kind, and no more.

Every slot is its own kind (record i takes slot i mod T, no other) unless two things hold. First, every loop over a
chunk's numbers of 4 or 8 bytes ends with whole vectors in every thread (`threads_of`). torch splits a loop over n
numbers into p parts of ceil(n / p), p anything up to the number of threads t: n / 32,768 rounded up, or t. Its vectors
take up to 32 numbers at once, and a scalar function computes the rest. In a chunk of a multiple of 32 lcm(1 .. t) rows
n is a multiple of that too, so whatever p is, each part is a multiple of 32 rows, and holds whole records. So t follows
from the chunk, and other threads rest. Second, on random records, of which each stands in all slots at once, two slots
gave the same bits for every number (`alike`): this finds what products and convolutions do at the borders of blocks.
The second alone would not do: a scalar function differs from the vector's in one number of hundreds, and a trial may
miss it (seen with 37 rows, with 32 rows on 2 threads, with 64 on 3, 4, 7 and 8).

All of this is decided once, before the first private step, and saved with the run's state: `Tiles` says it all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from idpgan import checks
from idpgan.device import computing_on
from idpgan.privacy.precision import Precision, gpu_products

Way = Literal["capture", "graph", "vmap"]
Rows = Iterable[tuple[slice, Tensor]]  # some slots and what they computed, (k, W) floating point

EMPTY = -1  # stands for a position where a slot has no record
_MOST_ROWS = 1024  # of a tile of several chunks
_MOST_ON_A_GPU = 2048  # records whose gradients are in memory at once
_TRIALS = 8  # records that stand in all slots
_VECTORS = 32  # float32 numbers that torch's loops take at once, at most: two vectors of AVX-512
_SPARE = 4  # float64 copies of the weights for what follows a sum: noise, the noisy sum, the optimizer's averages
_MOST_KINDS = 16  # if there are more, every slot is its own kind


def teams_vary() -> bool:
    """Tell whether OpenMP may take fewer threads than it is asked for, by the machine's load: then no sum is repeated.

    ``OMP_THREAD_LIMIT`` bounds them too, but always alike.
    """
    return os.environ.get("OMP_DYNAMIC", "false").strip().lower() != "false"


def all_threads() -> int:
    """Return how many threads compute where no kind of slot bounds them: those of torch, or one if `teams_vary`."""
    return 1 if teams_vary() else torch.get_num_threads()


@dataclass(frozen=True, eq=False)
class Tiles:
    """How the records of a step are computed, decided before a private record is read.

    Attributes:
        rows: T, slots of a tile, whose records are prepared at once.
        kinds: int64 (T,) on the CPU, kind of each slot, 0 .. K - 1; every kind occurs.
        chunk: Slots whose gradients are in memory at once; a chunk without records is left out.
        way: How gradients are found; see `idpgan.privacy.dpsgd.DPSGDPlan.clipped_sum`.
        threads: Of torch, that compute records; see `computing`.
        precision: Of the products of a record's gradient; see `idpgan.privacy.precision`.
    """

    rows: int
    kinds: Tensor
    chunk: int
    way: Way = "capture"
    threads: int = dataclasses.field(default_factory=all_threads)
    precision: Precision = "float32"

    @classmethod
    def fixed(cls, rows: int, way: Way = "capture") -> Tiles:
        """Return tiles of one chunk in which record i takes slot i mod T."""
        return cls(rows, torch.arange(checks.whole(rows, "rows", 1)), rows, way)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Tiles:
        """Return what `state` said."""
        return cls(**{**state, "kinds": torch.tensor(state["kinds"])})

    def state(self) -> dict[str, Any]:
        """Return all of it as plain values, for the state of a run."""
        return {**dataclasses.asdict(self), "kinds": self.kinds.tolist()}

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Let `threads` threads compute in the block, and as many as before after it; see also `products`."""
        with computing_on(self.threads), gpu_products("ieee" if self.precision == "float32" else "tf32"):
            yield

    @functools.cached_property
    def graphs(self) -> dict[Any, Any]:
        """The replay of every `graphs.Chunk` that is one; part of this process, and of no state."""
        return {}

    @functools.cached_property
    def own(self) -> bool:
        """Whether every slot is its own kind, in order."""
        return torch.equal(self.kinds, torch.arange(self.rows))

    def places(self, index: Tensor) -> Tensor:
        """Return which record stands in which slot: positions, int64 (tiles, T), `EMPTY` where there is none.

        Args:
            index: Positions of the drawn records, int64 (B,), ascending.
        """
        rows, num = self.rows, len(index)
        if self.own and num and int(index[0]) % rows == 0 and int(index[-1]) - int(index[0]) == num - 1:
            filled = torch.nn.functional.pad(index, (0, -num % rows), value=EMPTY)  # a run of records, as of all
            return filled.view(-1, rows)
        slots, kinds = self.kinds.to(index.device), self.kinds.to(index.device)[index % self.rows]
        order = torch.argsort(kinds, stable=True)
        index, kinds = index[order], kinds[order]
        drawn, free = (torch.bincount(part, minlength=int(self.kinds.max()) + 1) for part in (kinds, slots))
        number = int(((drawn + free - 1) // free).max())
        rank = torch.arange(len(index), device=index.device) - (drawn.cumsum(0) - drawn)[kinds]  # within its kind
        slot = torch.argsort(slots, stable=True)[(free.cumsum(0) - free)[kinds] + rank % free[kinds]]
        places = torch.full((number, self.rows), EMPTY, dtype=torch.int64, device=index.device)
        places[rank // free[kinds], slot] = index
        return places


def spare(weights: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the memory that noise, the noisy sum and the optimizer take after a sum of gradients."""
    return [torch.empty_like(weight, dtype=torch.float64) for weight in weights.values() for _ in range(_SPARE)]


def rows_at_once(section: Any, device: torch.device) -> int:
    """Return how many records' gradients may be in memory, by ``max_physical_batch`` of a section [method].

    Its default is for a processor. A GPU then takes 2,048, as it is told of so many as fast as of 64; where its memory
    holds fewer, chunks are halved.
    """
    asked: int = section.max_physical_batch
    usual = asked == type(section).model_fields["max_physical_batch"].default
    return _MOST_ON_A_GPU if usual and device.type != "cpu" else asked


def sizes(sample_rate: float, num: int, most: int, device: torch.device) -> tuple[int, int]:
    """Return T and the length of a chunk, at most ``most``: one tile nearly always holds what is drawn of ``num``.

    On a GPU, where empty chunks are computed too, one chunk does if it may.
    """
    expected = sample_rate * num
    likely = expected if sample_rate == 1 else expected + 2 * math.sqrt(expected)
    if sample_rate == 1 or most < _VECTORS:
        chunk = max(1, math.ceil(expected / max(1, math.ceil(expected / most))))
    else:
        wanted = expected if device.type == "cpu" else likely
        chunk = min(most // _VECTORS, max(1, math.ceil(wanted / _VECTORS))) * _VECTORS
    return chunk * max(1, min(math.ceil(likely / chunk), _MOST_ROWS // chunk)), chunk


def threads_of(chunk: int, device: torch.device) -> int:
    """Return the most threads that split all loops over a chunk's numbers at whole vectors; 0 if not even one does.

    On a GPU, where threads of the processor split no loop, that is all of them.
    """
    threads, most = 0, all_threads()
    if device.type != "cpu":
        return most if chunk % _VECTORS == 0 else 0
    while threads < most and chunk % (_VECTORS * math.lcm(*range(1, threads + 2))) == 0:
        threads += 1
    return threads


def tiled(
    records: Sequence[Tensor], rows: int, null: Tensor | None = None
) -> Iterator[tuple[Sequence[Tensor], Tensor]]:
    """Yield records by tiles: row r takes slot r mod T, and the last tile is filled up with null records of zeros.

    Args:
        records: Tensors of B rows each.
        rows: T.
        null: bool (B,), which records are null; None = none.

    Raises:
        ValueError: If the tensors have unequal numbers of rows.
    """
    num = len(records[0])
    if any(len(part) != num for part in records) or (null is not None and null.shape != (num,)):
        raise ValueError("all tensors of the records and the mask of null records must have B rows.")
    null = torch.zeros(num, dtype=torch.bool, device=records[0].device) if null is None else null
    for start in range(0, num, checks.whole(rows, "rows", 1)):
        *chunk, empty = (part[start : start + rows] for part in (*records, null))
        if missing := rows - len(empty):
            *chunk, empty = (torch.cat([part, part.new_zeros(missing, *part.shape[1:])]) for part in (*chunk, empty))
            empty[-missing:] = True
        yield chunk, empty


def alike(rows: int, *parts: tuple[int, Callable[[torch.Generator], Rows]]) -> Tensor:
    """Return the kinds of the slots of a tile, int64 (T,) on the CPU; see `Tiles.kinds`.

    Args:
        rows: T.
        parts: How many rows a part of the computation takes at once, and the part: it puts one random record, drawn
            from the generator, in all these slots, and yields what each gives.
    """
    found = [
        _kinds(length, computed(torch.Generator().manual_seed(trial))).repeat(-(-rows // length))[:rows]
        for length, computed in parts
        for trial in range(_TRIALS)
    ]
    kinds = torch.unique(torch.stack(found, 1), dim=0, return_inverse=True)[1]
    return kinds if int(kinds.max()) < _MOST_KINDS else torch.arange(rows)


def random_like(part: Tensor, draws: torch.Generator) -> Tensor:
    """Return one row of random numbers in [0, 1) like ``part``, or ``part`` itself where it is not floating point."""
    return torch.rand(part[:1].shape, generator=draws).to(part) if part.is_floating_point() else part[:1]


def _kinds(rows: int, computed: Rows) -> Tensor:
    """Return a number per slot, equal for slots that give the same bits."""
    kinds, known = torch.full((rows,), -1), list[Tensor]()
    for some, part in computed:
        bits = part.view({4: torch.int32, 8: torch.int64}[part.element_size()])
        own = torch.full((len(bits),), -1)
        while bool((own < 0).any()) and len(known) <= _MOST_KINDS:
            for number, each in enumerate(known):
                own[(own < 0) & (bits == each).all(1).cpu()] = number
            if bool((own < 0).any()):
                known.append(bits[int(torch.nonzero(own < 0)[0])].clone())
        kinds[some] = own
    return kinds if len(known) <= _MOST_KINDS else torch.arange(rows)
