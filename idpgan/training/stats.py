"""The run's record: averages on the device, one line of stats.jsonl per tick. Curator only, not covered by epsilon.

Sample grids: generated images only, on the same latent vectors at every tick.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from idpgan.data.images import GAP_PX, make_grid, png_bytes, to_uint8
from idpgan.errors import InputError
from idpgan.files import PRIVATE_FILE, PRIVATE_FOLDER, append_line, naming, write_bytes_atomic, write_text_atomic
from idpgan.models.generator import Generator
from idpgan.training.method import Stats, Tick

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary


_READABLE_PX = 64  # pixels per side: smaller images are enlarged
_BINS = 30  # of a histogram
_MOST_COLUMNS = 16  # most classes that get columns of their own


def write_samples(path: Path, generator: Generator, *, num: int = 64, seed: int = 0) -> None:
    """Write a PNG grid of generated images, near square: each class has columns of its own, up to 16 classes.

    Images of less than 64 pixels a side are enlarged by the largest whole factor that leaves them within 64.

    Args:
        generator: Labels, if it takes them, cycle through the classes.
        num: Number of images, rounded up to full rows.
        seed: Of the latent vectors: the same seed shows the same vectors at every call.
    """
    write_bytes_atomic(path, png_bytes(sample_grid(generator, num=num, seed=seed)))


def sample_grid(generator: Generator, *, num: int = 64, seed: int = 0) -> Tensor:
    """Return the grid of `write_samples`, uint8 (C, H, W)."""
    rows, columns = _rows_and_columns(generator, num)
    return class_grid(to_uint8(generator.sample(rows * columns, seed=seed)), generator, columns)


def sample_grids(generator: Generator, *, num: int = 64, seed: int = 0) -> Tensor:
    """Return the grids of all candidates of `sample_grid`, uint8 (candidates, C, H, W); only one without a teacher."""
    rows, columns = _rows_and_columns(generator, num)
    images = generator.sample_candidates(rows * columns, seed)
    return torch.stack([class_grid(to_uint8(each), generator, columns) for each in images.unbind(1)])


def cell_maxima(grids: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    """Return the largest number in each cell of grids (G, C, H', W') of images of a shape: (G, rows, columns)."""
    height, width = (side * _enlarged(image_shape) for side in image_shape[1:])
    padded = torch.nn.functional.pad(grids, (0, GAP_PX, 0, GAP_PX))
    cells = padded.unflatten(2, (-1, height + GAP_PX)).unflatten(4, (-1, width + GAP_PX))
    return cells.amax(dim=(1, 3, 5))


def sample_grid_shape(generator: Generator, *, num: int = 64) -> tuple[int, int, int]:
    """Return the shape of `sample_grid`, without drawing anything."""
    rows, columns = _rows_and_columns(generator, num)
    height, width = (side * _enlarged(generator.image_shape) for side in generator.image_shape[1:])
    return generator.image_shape[0], rows * (height + GAP_PX) - GAP_PX, columns * (width + GAP_PX) - GAP_PX


def _rows_and_columns(generator: Generator, num: int) -> tuple[int, int]:
    """Return how many rows and columns hold at least ``num`` images: as many columns for each class, near square."""
    side = math.ceil(math.sqrt(num))
    columns = side
    if 0 < generator.num_classes <= _MOST_COLUMNS:
        columns = generator.num_classes * max(1, round(side / generator.num_classes))
    return -(-num // columns), columns


def class_grid(images: Tensor, generator: Generator, columns: int) -> Tensor:
    """Lay out images whose labels cycle through the classes: the columns of a class beside each other, enlarged."""
    if 0 < generator.num_classes <= _MOST_COLUMNS:  # (rows, columns of a class, classes, C, H, W)
        images = images.unflatten(0, (-1, columns // generator.num_classes, generator.num_classes))
        images = images.transpose(1, 2).flatten(0, 2)
    factor = _enlarged(generator.image_shape)
    return make_grid(images.repeat_interleave(factor, 2).repeat_interleave(factor, 3), columns)


def _enlarged(image_shape: tuple[int, int, int]) -> int:
    return max(1, _READABLE_PX // max(image_shape[1:]))


class SampleGrid:
    """Tick callback that writes `sample_grid` as ``step_000500.png`` into the run's samples/ folder.

    Args:
        folder: It exists.
        num: Number of images, rounded up to full rows.
        seed: Of the latent vectors.
        marked: Returns a generator's picture, a PNG, with a mark that it is artificial; None = without one.

    Attributes:
        shown: The grid of the last tick, uint8 (C, H, W); None before the first.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num: int = 64,
        seed: int = 0,
        marked: Callable[[Generator, bytes], bytes] | None = None,
    ) -> None:
        self.folder, self.num, self.seed, self.marked = folder, num, seed, marked
        self.shown: Tensor | None = None

    def __call__(self, tick: Tick) -> None:
        """Write the grid of one tick."""
        if not isinstance(tick.generator, Generator):
            raise TypeError(f"a sample grid needs a models.Generator, got {type(tick.generator).__name__}.")
        path = self.folder / f"step_{tick.step:06d}.png"
        self.shown = sample_grid(tick.generator, num=self.num, seed=self.seed)
        picture = png_bytes(self.shown)
        if self.marked is not None:
            picture = self.marked(tick.generator, picture)
        write_bytes_atomic(path, picture, mode=PRIVATE_FILE)


class Recorder:
    """Averages statistics on the device and writes them once per tick.

    Args:
        path: stats.jsonl, one JSON object per line.
        batch_size: Real images per step, for the throughput.

    Attributes:
        tick_step: Step of the last tick.
    """

    def __init__(self, path: Path, batch_size: int) -> None:
        self.path = path
        self.batch_size = batch_size
        self.tick_step = 0
        self._sums: dict[str, Tensor] = {}  # float64, on the device
        self._counts: dict[str, int | Tensor] = {}
        self._seconds_before = 0.0  # training time before the last resume
        self._tick_seconds = 0.0
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Training time over all resumed parts."""
        return self._seconds_before + time.monotonic() - self._started

    def add(self, stats: Stats) -> None:
        """Add the statistics of one step, 0-d tensors; nothing waits for the device.

        A statistic that a step may lack without the host's knowing is two numbers: (value, 1), or zeros.
        """
        for name, value in stats.items():
            if not isinstance(value, Tensor) or value.shape not in ((), (2,)):
                raise TypeError(f"statistic '{name}' must be a 0-d tensor, or a value and its count, got {value!r}.")
            added, count = value.detach().double().unbind() if value.dim() else (value.detach().double(), 1)
            total, so_far = self._sums.get(name), self._counts.get(name, 0)
            # a sum that was loaded lies on the CPU until it is used
            self._sums[name] = added.clone() if total is None else total.to(value.device) + added
            self._counts[name] = (so_far.to(value.device) if isinstance(so_far, Tensor) else so_far) + count

    def tick(self, step: int, *, epsilon: float, delta: float, generator: nn.Module) -> Tick:
        """Close the interval since the last tick: move the averages to the host and start anew. Writes nothing."""
        names = list(self._sums)
        first = max(self._sums.values(), key=lambda total: total.device.type != "cpu", default=torch.zeros(()))
        parts = [*self._sums.values(), *map(torch.as_tensor, self._counts.values())]
        sums = torch.stack([part.to(first) for part in parts]).view(2, -1).T.tolist() if names else []  # one wait
        seconds = self.seconds
        speed = (step - self.tick_step) / max(seconds - self._tick_seconds, 1e-9)
        tick = Tick(
            step=step,
            epsilon=epsilon,
            delta=delta,
            seconds=seconds,
            steps_per_second=speed,
            images_per_second=speed * self.batch_size,
            stats={name: total / count for name, (total, count) in zip(names, sums, strict=True) if count},
            generator=generator,
        )
        self._sums, self._counts = {}, {}
        self.tick_step, self._tick_seconds = step, seconds
        return tick

    def write(self, tick: Tick) -> None:
        """Append the line of a tick, durably."""
        append_line(self.path, json.dumps(tick.to_json(), allow_nan=False))

    def state(self) -> dict[str, Any]:
        """Return the record for `load_state`, the unfinished averages included: a run may stop between two ticks."""
        return {
            "tick_step": self.tick_step,
            "tick_seconds": self._tick_seconds,
            "seconds": self.seconds,
            "sums": dict(self._sums),
            "counts": dict(self._counts),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue a saved record: restore averages and clock, and cut off lines written after it was saved."""
        self.tick_step = state["tick_step"]
        self._tick_seconds = state["tick_seconds"]
        self._seconds_before, self._started = state["seconds"], time.monotonic()
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        self.truncate(self.tick_step)

    def truncate(self, step: int) -> None:
        """Drop the lines of ticks after `step`, which are run again; a damaged line before raises `InputError`."""
        if self.path.exists():
            kept = [line for line in read_stats(self.path) if line["step"] <= step]
            write_text_atomic(self.path, "".join(json.dumps(line) + "\n" for line in kept), mode=PRIVATE_FILE)


def read_stats(path: Path) -> list[dict[str, Any]]:
    """Read stats.jsonl, one dict per tick; an infinite epsilon is the string "inf".

    A kill may cut off the last line, which then has no line break and is left out.

    Raises:
        InputError: If another line is not a JSON object with a step.
    """
    text = path.read_text(encoding="utf-8", errors="backslashreplace")  # the loop reports a damaged byte
    *lines, _ = text.split("\n")  # what follows the last line break is not whole
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            step = row["step"]
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{path}, line {number} is damaged: {line[:80]!r}. Delete the line, then resume."
            ) from error
        if type(step) is not int:
            raise InputError(f"{path}, line {number} is damaged: step = {step!r}. Delete the line, then resume.")
        records.append(row)
    return records


class TensorBoard:
    """Tick callback for TensorBoard: numbers, sample grid, weights, gradient norms, settings with their end.

    All of it is for the curator: the folder lies beside ``release/``. Weights are those of the product, gradients those
    of the generator on the batches that it generated; nothing else is read. The first tick after a resume purges the
    numbers that an earlier part wrote for that step or later, so curves join.

    Args:
        folder: Of the event files.
        grid: Was called with the same tick before: what it drew is shown; None = no images.
        optimizers: Of the generator; a step has the gradient of one generated batch.
    """

    def __init__(
        self, folder: Path, grid: SampleGrid | None = None, optimizers: Iterable[torch.optim.Optimizer] = ()
    ) -> None:
        self.folder, self.grid = folder, grid
        self._file: _EventFile | None = None
        self._norms: list[Tensor] = []  # of the gradients since the last tick, on the device
        self._hooks = [optimizer.register_step_pre_hook(self._watch) for optimizer in optimizers]
        self._last: dict[str, float] = {}

    def _watch(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Keep the norm of a gradient that is about to be taken; nothing waits for the device."""
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        self._norms.append(nn.utils.get_total_norm([each.grad for each in weights if each.grad is not None]))

    def __call__(self, tick: Tick) -> None:
        """Write one tick."""
        from torch.utils.tensorboard import summary  # takes a quarter of a second

        if self._file is None:
            self.folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            self._file = _EventFile(self.folder)
            self._file.begin(tick.step)
        numbers = {**tick.to_json(), "epsilon": tick.epsilon}
        self._last = {name: value for name, value in numbers.items() if name not in ("step", "delta")}
        parts = [summary.scalar(name, value) for name, value in self._last.items()]
        if self.grid is not None and self.grid.shown is not None:
            parts.append(summary.image("samples", self.grid.shown, dataformats="CHW"))
        drawn = {f"weights/{name}": weight.detach() for name, weight in tick.generator.named_parameters()}
        if self._norms:
            drawn["gradient norms of generated batches"] = torch.stack(self._norms)
            self._norms = []
        for name, values in drawn.items():
            if bool(values.isfinite().all()):  # of others there is no histogram
                parts.append(summary.histogram(name, values.cpu().numpy(), _BINS))
        self._file.add(parts, tick.step)

    def end(self, sections: Mapping[str, Any]) -> None:
        """Write the settings of a run, section by section, beside the measures of its last tick, if it had one."""
        if self._file is None or not self._last:
            return
        from torch.utils.tensorboard.summary import hparams, scalar

        settings = {
            f"{section}.{key}": value if isinstance(value, bool | int | float) else str(value)
            for section, values in sections.items()
            if isinstance(values, Mapping)
            for key, value in values.items()
        }
        measures = {f"final/{name}": value for name, value in self._last.items()}
        self._file.add([*hparams(settings, measures), *(scalar(name, value) for name, value in measures.items())])

    def close(self) -> None:
        """Close the event file."""
        for hook in self._hooks:
            hook.remove()
        if self._file is not None:
            self._file.close()
            self._file = None


class _EventFile:
    """A file of TensorBoard, written here and now: its own writer has a thread, where a full disk is a traceback."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        seconds, rest = divmod(time.time_ns(), 10**9)
        self._path = folder / f"events.out.tfevents.{seconds:010d}.{rest:09d}.{os.getpid()}"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        self._file = os.fdopen(descriptor, "wb")
        self._records = RecordWriter(self._file)

    def begin(self, step: int) -> None:
        """Say what the file is, and purge what other files of the folder have from this step on."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._write(file_version="brain.Event:2")
        self._write(step=step, session_log=SessionLog(status=SessionLog.START))

    def add(self, parts: Iterable[Summary], step: int = 0) -> None:
        """Write summaries of a step."""
        for part in parts:
            self._write(step=step, summary=part)
        with naming(self._path):
            self._file.flush()

    def _write(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        with naming(self._path):
            self._records.write(Event(wall_time=time.time(), **content).SerializeToString())

    def close(self) -> None:
        """Close the file."""
        with naming(self._path):
            self._file.close()
