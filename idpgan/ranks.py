"""The processes that `torchrun` starts for one training: shares of rows, sums over all ranks, and messages of rank 0.

One rule for the whole package: **rank 0 coordinates; the other ranks only compute.** Rank 0 alone writes files, charges
the ledger, prints and sends what to do next, numbers of steps (`training.distributed`); every other rank does that, and
ends when rank 0 sends the end. PyTorch is imported only when several processes meet, so that this module is light.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from idpgan.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

END = 0  # message of rank 0; the number of a step is at least 1
_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


class LostRankError(InputError):
    """Another process of the run has ended, or does not answer."""


class Ranks:
    """The processes of one run as seen by one of them; alone, every method does nothing or returns its argument.

    All methods but `share`, `rows` and `weight` are collective: all ranks call the same ones in the same order.

    Attributes:
        rank: 0 .. size - 1; see `first`.
        size: Number of processes.
        busy: Whether the others wait for numbers, and not for a message.
        group: The process group that sends messages, on the CPU.
    """

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None) -> None:
        self.rank, self.size, self.group, self.busy = rank, size, group, False

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is one process only."""
        return self.size == 1

    def share(self, num: int) -> slice:
        """Return this rank's rows of ``num``: runs of rows in the order of the ranks, whose lengths differ by 1.

        Rank 0 has the one row, where it is one.
        """
        return slice(-(-num * self.rank // self.size), -(-num * (self.rank + 1) // self.size))

    def rows(self, num: int) -> int:
        """Return how many rows `share` has."""
        share = self.share(num)
        return int(share.stop - share.start)

    def weight(self, num: int) -> float:
        """Return the weight of a mean over this rank's share in the mean over all ``num`` rows."""
        return self.rows(num) / num

    # Numbers ---------------------------------------------------------------------------------------------------

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Add up tensors of one type and device over all ranks, in place: every rank gets the same bits."""
        self._exchange(tensors, lambda dist, flat: dist.all_reduce(flat))

    def from_first(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors of one type and device by those of rank 0, in place."""
        self._exchange(tensors, lambda dist, flat: dist.broadcast(flat, 0))

    def noisy_sum(self, part: Tensor, noised: Tensor) -> Tensor:
        """Return the sum of all ranks' parts, (P,) float64, to which they have added noise *before*: the same on each.

        So no rank ever holds the sum without its noise. All is NaN unless every rank takes part and every block of
        numbers has got its noise exactly once; where a rank fails, nothing comes back.

        Args:
            part: (P,), float64 or int64; used up.
            noised: (blocks,), how often this rank has added the noise of each block, 0 or 1; -1 voids the sum.
        """
        import torch

        counts = torch.cat([noised.new_ones(1), noised]).to(part.dtype)
        self.sum([part, counts])
        once = (counts[:1] == self.size) & (counts[1:] == 1).all()
        return torch.where(once, part.double(), torch.nan)

    def _exchange(self, tensors: Sequence[Tensor], collective: Callable[[Any, Tensor], Any]) -> None:
        """Run a collective of `torch.distributed` on all tensors at once, in place."""
        if self.alone or not tensors:
            return
        import torch

        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        with self._answering() as dist:
            collective(dist, flat)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.detach().copy_(part.view(tensor.shape))

    # Messages --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def together(self, message: int) -> Iterator[None]:
        """Tell the others what comes next (rank 0); in the block rank 0 does the same as they."""
        if not self.alone:
            self.busy = True
            self._number(message)
        yield
        self.busy = False  # not where the block fails: the others are in the middle of it

    def end(self) -> None:
        """Tell the others that nothing comes next (rank 0), if they wait for a message."""
        if not self.alone and not self.busy:
            self.busy = True
            self._number(END)

    def next_message(self) -> int:
        """Wait for the next message of rank 0 (the others)."""
        return self._number(END)

    def send(self, content: bytes) -> None:
        """Send bytes to all others (rank 0); see `receive`."""
        self._number(len(content))
        self._bytes(bytearray(content))

    def receive(self) -> bytes:
        """Return what rank 0 sends (the others)."""
        return self._bytes(bytearray(self._number(0)))

    def gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in their order, to every rank."""
        if self.alone:
            return [text]
        import torch

        content = text.encode()
        with self._answering() as dist:
            lengths = torch.zeros(self.size, dtype=torch.int64)
            lengths[self.rank] = len(content)
            dist.all_reduce(lengths, group=self.group)
            table = torch.zeros(self.size, max(int(lengths.max()), 1), dtype=torch.uint8)
            table[self.rank, : len(content)] = torch.tensor(list(content), dtype=torch.uint8)
            dist.all_reduce(table, group=self.group)
        return [bytes(row[:n].tolist()).decode() for row, n in zip(table, lengths.tolist(), strict=True)]

    def _number(self, number: int) -> int:
        import torch

        return int(self._sent(torch.tensor([number], dtype=torch.int64)))

    def _bytes(self, content: bytearray) -> bytes:
        import torch

        if content:
            self._sent(torch.frombuffer(content, dtype=torch.uint8))
        return bytes(content)

    def _sent(self, values: Tensor) -> Tensor:
        """Overwrite a tensor on the CPU by that of rank 0, and return it."""
        if values.numel():
            with self._answering() as dist:
                dist.broadcast(values, 0, group=self.group)
        return values

    @contextlib.contextmanager
    def _answering(self) -> Iterator[Any]:
        """Give `torch.distributed`; if another rank does not answer, end the run with one sentence that says so."""
        import torch.distributed

        try:
            yield torch.distributed
        except BaseException as error:
            self.busy = True  # nobody receives messages any more
            if not isinstance(error, RuntimeError):
                raise
            raise LostRankError(
                f"rank {self.rank} of {self.size} stops: another process of this run has ended or does not answer "
                f"({str(error).splitlines()[0][:160]}). What is written is whole; a training goes on with --resume."
            ) from error


ALONE = Ranks()


def launched(environment: Mapping[str, str] = os.environ) -> tuple[int, int, int]:
    """Return rank, number of processes and rank on this machine, as `torchrun` sets them; (0, 1, 0) without it.

    Raises:
        InputError: If the variables do not fit together, or those of another launcher (all but LOCAL_RANK) name several
            processes: each would take itself for the only one.
    """
    if any(name not in environment for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return 0, 1, 0
    if "LOCAL_RANK" not in environment:
        if environment["WORLD_SIZE"] == "1":
            return 0, 1, 0
        raise InputError(
            f"RANK = {environment['RANK']} of WORLD_SIZE = {environment['WORLD_SIZE']} without LOCAL_RANK: this "
            "process cannot tell which device is its own. Start the processes with torchrun, or unset RANK and "
            "WORLD_SIZE for one process."
        )
    texts = [environment[name] for name in _NUMBERS]
    rank, size, local_rank = (int(text) if text.isdecimal() else -1 for text in texts)
    if not (0 <= rank < size and 0 <= local_rank <= rank):
        shown = ", ".join(f"{name} = {text}" for name, text in zip(_NUMBERS, texts, strict=True))
        raise InputError(f"{shown} do not fit together. Start the processes with torchrun, or unset these variables.")
    return rank, size, local_rank


def refuse_several(command: str) -> None:
    """Refuse a command that each of several processes would run and charge separately.

    Raises:
        InputError: On rank 0, if there are several.
        SystemExit: On the others.
    """
    rank, size, _ = launched()
    if rank:
        raise SystemExit(0)  # rank 0 reports it; if this rank failed, torchrun would stop rank 0 before it can
    if size > 1:
        raise InputError(
            f"idpgan {command} is one process, and torchrun started {size}: each would do all of the work, and charge "
            "for it where it reads private images. Start it without torchrun: train alone shares work."
        )
