"""Training by several processes of `torchrun`: one run, one ledger, one noise source, the work of each step shared.

Rank 0 coordinates (`idpgan.ranks`). It resumes or prepares as if it were alone and sends its state to the others, which
start like a run resumed from that state: they never read data for `prepare`. Then the loop of rank 0 charges a step and
broadcasts its number, and all ranks do that step together:

- *Private steps* (`privacy.dpsgd`). Rank 0 tosses the coins of all records; every rank clips and sums the records of
  its share and adds the noise of its share of the numbers, under a key of that step that rank 0 sends; then the parts
  add up on all ranks. None ever holds the sum without noise, so none can step before it is there. The clipped records
  of all shares and the noise are the same as with one process, and so are sensitivity, event and epsilon.
- *Everything else* reads what was released: each rank draws images of its own, and gradients add up over the ranks.

Weights are the same on every rank, since all ranks start from rank 0's and take equal steps; at each save their hashes
are compared. A lost rank ends the run on all ranks; the last saved state can be resumed, with any number of ranks.

How a run is stopped from outside.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import io
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from idpgan.errors import InputError
from idpgan.ranks import ALONE, END, LostRankError, Ranks, launched
from idpgan.training.method import Method
from idpgan.training.state import tensors_of

MINUTES = 10  # a rank that is silent for this long within a step is lost; a killed rank is noticed at once
HOURS = 12  # how long the others wait for the next message: rank 0 may read, prepare and show in between
_CONFIG, _STATE, _COMPARE = -1, -2, -3  # messages other than the numbers of steps
_BAD = 2  # exit code for refused input


class RanksDifferError(InputError):
    """The ranks do not hold the same weights, data or code."""


@contextlib.contextmanager
def joined(*, minutes: float = MINUTES) -> Iterator[Ranks]:
    """Connect to the other processes of `torchrun` for the time of a block; give `ALONE` without `torchrun`.

    Tensors on the CPU go by gloo, those on a GPU by NCCL, and each process takes the GPU of its rank on the machine.
    When rank 0 leaves the block, also by an exception, it tells the others if they wait for a message.

    Args:
        minutes: How long a rank may be silent within a step.

    Raises:
        LostRankError: If the processes do not meet.
    """
    rank, size, local_rank = launched()
    if size == 1:
        yield ALONE
        return
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if local_rank < gpus:
        torch.cuda.set_device(local_rank)
    try:
        backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
        dist.init_process_group(backend, timeout=datetime.timedelta(minutes=minutes))
        group = dist.new_group(backend="gloo", timeout=datetime.timedelta(hours=HOURS))
    except (RuntimeError, ValueError) as error:
        raise LostRankError(
            f"the {size} processes of torchrun do not meet ({str(error).splitlines()[0][:160]}). Check its addresses."
        ) from error
    ranks = Ranks(rank, size, group=group)
    try:
        yield ranks
    finally:
        if ranks.first:
            with contextlib.suppress(LostRankError):
                ranks.end()
    dist.destroy_process_group()  # not after an error, as it may wait for a rank that is lost


def check_own_gpu(device: torch.device, ranks: Ranks) -> None:
    """Refuse two processes on one GPU.

    Raises:
        InputError: If this process has no GPU of its own.
    """
    if device.index is not None and not ranks.alone:
        raise InputError(
            f"{device} is one GPU, and torchrun started {ranks.size} processes. Say cuda: each takes its own."
        )
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and not ranks.alone and launched()[2] >= count:
        raise InputError(
            f"torchrun started more processes than this machine has GPUs. Give it --nproc-per-node {count}, or "
            "compute on the CPU: --device cpu."
        )


@contextlib.contextmanager
def send_config(ranks: Ranks, text: str) -> Iterator[None]:
    """Send the config to the others (rank 0); in the block all ranks use it."""
    with ranks.together(_CONFIG):
        if not ranks.alone:
            ranks.send(text.encode())
        yield


def receive_config(ranks: Ranks) -> str | None:
    """Return the config that rank 0 sends (the others); None if rank 0 ends before."""
    return None if ranks.next_message() == END else ranks.receive().decode()


@contextlib.contextmanager
def agreed(ranks: Ranks) -> Iterator[None]:
    """Run on all ranks what may be refused; if one rank refuses, all end, and rank 0 says why.

    Raises:
        InputError: On rank 0, with the first rank's reason.
        SystemExit: On the others, without a word.
    """
    reason = ""
    try:
        yield
    except InputError as error:
        if ranks.alone:
            raise
        reason = str(error) or "no reason given"
    reasons = [(rank, text) for rank, text in enumerate(ranks.gather(reason)) if text]
    if reasons:
        rank, text = reasons[0]
        if not ranks.first:
            raise SystemExit(_BAD)
        raise InputError(text if rank == 0 else f"rank {rank}: {text}")


def agree_on(what: str, value: str, ranks: Ranks) -> None:
    """Refuse to go on if a rank has another value than rank 0.

    Raises:
        RanksDifferError: On rank 0.
        SystemExit: On the others, without a word.
    """
    values = ranks.gather(value)
    other = [rank for rank, text in enumerate(values) if text != values[0]]
    if other and not ranks.first:
        raise SystemExit(_BAD)
    if other:
        raise RanksDifferError(
            f"rank {other[0]} has other {what} than rank 0. All processes must run the same code on copies of the same "
            "data, on machines of one kind."
        )


class Leader:
    """Rank 0's side: what the loop tells the others. Without other ranks it only calls the method."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._begun = False

    def begin(self, method: Method) -> None:
        """Send the state from which all ranks continue."""
        if not self.ranks.alone:
            buffer = io.BytesIO()
            torch.save(_without_keys(method.state()), buffer)
            with self.ranks.together(_STATE):
                self.ranks.send(buffer.getvalue())
        self._begun = True

    def step(self, method: Method, step: int) -> dict[str, Tensor]:
        """Do a step, which has been charged, together with all other ranks."""
        with self.ranks.together(step):
            return method.step(step)

    def compare(self, state: dict[str, Any]) -> None:
        """Refuse to save where another rank holds other weights.

        Raises:
            RanksDifferError: If one does.
        """
        if self.ranks.alone or not self._begun:
            return
        with self.ranks.together(_COMPARE):
            digests = self.ranks.gather(_digest(state))
        other = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if other:
            raise RanksDifferError(
                f"rank {other[0]} holds other weights than rank 0, so the run stops; the state saved last is kept. "
                "Use machines of one kind, and report it if they are."
            )


def run_worker(method: Method, ranks: Ranks) -> None:
    """Do what rank 0 sends until it sends the end: the main loop of every other rank.

    Only rank 0 handles signals. The sources of noise get keys of their own: they give the coins of the records in this
    rank's share. Noise on a sum comes from rank 0's (`Noise.handed_on`).
    """
    with StopSignals():
        while (message := ranks.next_message()) != END:
            if message == _STATE:
                state = torch.load(io.BytesIO(ranks.receive()), map_location="cpu", weights_only=True)
                method.load_state(state)
                method.settle(False)  # for this rank's share
                for noise in method.noises:
                    noise.rekey()
            elif message == _COMPARE:
                ranks.gather(_digest(method.state()))
            elif message < END:
                raise RuntimeError(f"rank 0 sends {message}, which means nothing here.")
            else:
                method.step(message)
                for noise in method.noises:
                    noise.ratchet()
    for noise in method.noises:
        noise.erase()


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, ranks: Ranks) -> Tensor:
        total = part.clone()
        ranks.sum([total])
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def sum_over_ranks(part: Tensor, ranks: Ranks) -> Tensor:
    """Return the sum of a tensor over all ranks, whose gradient is that of this rank's part alone.

    A loss computed from this sum has the same value on every rank, and its gradients add up over the ranks.
    """
    return part if ranks.alone else _SumOverRanks.apply(part, ranks)


def _digest(state: dict[str, Any]) -> str:
    """Return the SHA-256 (hex) of all tensors of a state except the released ones, which never change."""
    sha = hashlib.sha256()
    for name, tensor in tensors_of({key: value for key, value in state.items() if key != "prepared"}):
        values = tensor.detach().cpu().contiguous()
        sha.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        sha.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def _without_keys(value: Any) -> Any:
    """Return a state without the secret keys of noise, which stay on rank 0. A fixed seed is not secret."""
    if type(value) is not dict:  # the state dict of a network holds no key
        return value
    secret = "source" in value and value.get("private")
    return {name: None if secret and name == "key" else _without_keys(item) for name, item in value.items()}


class StopSignals:
    """Context in which Ctrl-C and SIGTERM only ask to stop, so that a step is never cut in two.

    A second Ctrl-C raises `KeyboardInterrupt` at once. Outside the main thread, where Python allows no handlers,
    nothing is changed.

    Args:
        at_once: Raise `KeyboardInterrupt` at the first signal, whichever it is.

    Attributes:
        received: Name of the signal that came, or None.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self._at_once = at_once
        self.received: str | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = self.received is not None and number == signal.SIGINT
        self.received = signal.Signals(number).name
        if self._at_once or again:
            raise KeyboardInterrupt
