"""How long a run takes on this machine: small runs on random images, and what more images and steps add to them.

The first is whole, from its price to its release, and pays once what every run pays once. Of the others, progress says
how much of each piece of work is done, so that a clock beside it tells what each part costs from what comes before the
first one. Nothing private is read, and nothing is kept.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from idpgan.config import build
from idpgan.data.drawn import count_public, draw_public
from idpgan.data.image_files import decode
from idpgan.data.images import Images, png_bytes
from idpgan.data.load import DataShape, Split
from idpgan.device import resolve_device, synchronize
from idpgan.errors import ConfigError, InputError
from idpgan.models.generator import Generator
from idpgan.progress import duration
from idpgan.trainer import InterruptedTrainingError, train_on
from idpgan.training.config import RunConfig
from idpgan.training.method import Method
from idpgan.training.plan import RunPlan, plan_run
from idpgan.training.samples import sample_grid

SECONDS, SHARE = 3.0, 0.1  # that the small runs may take, or so much of what they expect
clock = time.monotonic
_FEW, _TIMES = 64, {16: 0.3, 4: 1.0}  # random images of the first run; times as many in the next, by its share of time
_SEEN, _TOLD = 0.15, 1.3  # seconds of work that tell what a part costs; what the most may be of the least
_LEAST_STEPS, _MOST_STEPS, _ROUNDS = 3, 60, 12  # of a small run; of a loop in it
_CLEAR = 0.2  # of its time that clearly comes with the images
_ALONE, _ALIKE = 0.2, 0.02  # of its time, that a single work and each of many must take longer to be taken to grow
_LOOPS = {  # pieces of work that are cut short, and the key of [method] that says how often they go round
    "phone steps": "phone_steps",
    "teacher steps": "teacher_steps",
    "pre-training steps": "pretrain_steps",
    "public features, epochs": "embedding_steps",
    "public images, steps": "public_steps",
}
_PHASES = "aggregate_steps", "critic_warmup"  # steps that are followed by others
_STEPS, _TICKS, _BEFORE = "training steps", "ticks", "before the steps"
_DRAWN, _FILES = ("faces", "fonts"), ("folder", "face-folder", "celeba")  # sources that draw, and that decode


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Seconds, and at least and at most so many, as far as small runs tell; of a run, from the start of Python on."""

    seconds: float
    least: float
    most: float

    @classmethod
    def sure(cls, seconds: float) -> Estimate:
        """Return seconds that were measured, or whose every part was."""
        return cls(seconds, seconds, seconds)

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.seconds + other.seconds, self.least + other.least, self.most + other.most)

    def __mul__(self, times: float) -> Estimate:
        return Estimate(self.seconds * times, self.least * times, self.most * times)

    @property
    def told(self) -> bool:
        """Whether one number says it."""
        return self.most <= _TOLD * self.least

    def __str__(self) -> str:
        return f"about {duration(self.seconds)}" if self.told else f"{duration(self.least)} to {duration(self.most)}"


def expected(config: RunConfig, shape: DataShape) -> Estimate:
    """Return how long a run will take.

    Raises:
        InputError: If it cannot be tried, with the refusal of the method or of the machine.
    """
    num = shape.num_private
    try:
        once = _seconds(lambda: plan_run(config, shape).price.epsilon) + start_up() + _reading(config, shape)
        begun = clock()
        first = _SmallRun(config, shape, min(max(_FEW, 4 * len(shape.classes)), num), 2, whole=True)
        steps = int(max(_LEAST_STEPS, min(_MOST_STEPS, _SEEN / max(first.step, 1e-9))))
        low = high = _SmallRun(config, shape, first.num, steps)
        found, longer = _of_run(config, shape, once, first, low, high), low.seconds
        while high.num < num and not (found.told and high is not low):
            budget = max(SECONDS, SHARE * found.seconds) - (clock() - begun)
            times = next(
                (times for times, part in _TIMES.items() if high.seconds + times * longer <= part * budget), None
            )
            if times is None and high is not low:
                break
            before, high = high, _SmallRun(config, shape, min((times or min(_TIMES)) * high.num, num), steps)
            longer = max(high.seconds - before.seconds, 0.0)
            found = _of_run(config, shape, once, first, low, high)
    except RuntimeError as error:  # of torch: no memory, say
        raise InputError(f"{config.method.name} cannot be tried here ({str(error).splitlines()[0]}).") from error
    except InterruptedTrainingError as error:
        raise KeyboardInterrupt from error
    return found


def in_words(config: RunConfig, shape: DataShape) -> str:
    """Say how long a run takes here, or why that is not known."""
    try:
        return f"{expected(config, shape)} on this machine"
    except InputError as error:
        return f"how long is not known ({str(error).rstrip('.')})"


@functools.cache
def start_up() -> float:
    """Return the seconds that Python, PyTorch and the package take to start, which every command pays."""
    return _seconds(lambda: subprocess.run([sys.executable, "-c", "import idpgan.trainer"], check=False))


def _seconds(work: Callable[[], object]) -> float:
    begun = clock()
    work()
    return clock() - begun


# Small runs ----------------------------------------------------------------------------------------------------------


class _SmallRun:
    """A run on few random images with few steps, and a clock beside its progress.

    Attributes:
        seconds: Of all of it, but for its price, which is not that of the whole run.
        method: After the last step.
        tick: Seconds of what is saved and shown at a tick.
    """

    def __init__(self, config: RunConfig, shape: DataShape, num: int, steps: int, *, whole: bool = False) -> None:
        split = _random(shape, num)
        self.num, self.cut = num, _cut(config, split, steps)
        self._device, self._told = resolve_device(config.training.device), dict[str, list[tuple[float, int, int]]]()
        _ = plan_run(self.cut, split.shape).price.epsilon  # is kept
        begun = self._last = clock()
        self.method: Method = train_on(self.cut, split, self, whole=whole)
        self("the rest", 1, 1)
        self.seconds = clock() - begun
        product, self.tick = self.method.product, self.spent(_TICKS)
        if whole and self.cut.training.steps and isinstance(product, Generator):
            self.tick += _seconds(lambda: sample_grid(product, num=config.release.samples))

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None:
        """Note how long it took since the last word; a note comes with a tick."""
        synchronize(self._device)
        if what == _STEPS and note:
            what = _TICKS if done else _BEFORE
        self._told.setdefault(what, []).append((clock() - self._last, done, total))
        self._last = clock()

    @property
    def works(self) -> tuple[str, ...]:
        """Pieces of work, but for the steps."""
        return tuple(what for what in self._told if what not in (_STEPS, _TICKS, _BEFORE))

    def total(self, what: str) -> int:
        """Return of how many parts a piece of work is."""
        return self._told[what][-1][2] if what in self._told else 0

    def spent(self, what: str, first: int = 0) -> float:
        """Return the seconds of a piece of work, from a word on it on."""
        return sum(seconds for seconds, _, _ in self._told.get(what, [])[first:])

    def part(self, what: str) -> float | None:
        """Return the seconds of a part, the first ones left out, which pay for more; None where one word was said."""
        told = self._told.get(what, [])
        parts = told[-1][1] - told[0][1] if told else 0
        return self.spent(what, 1) / parts if parts > 0 else None

    def times(self, what: str) -> list[float]:
        """Return the seconds of each part where a word was said of each, without those that begin something."""
        found, begins = self._told.get(what, []), (0, _setting(self.cut, "aggregate_steps", 0))
        kept = [seconds for place, (seconds, _, _) in enumerate(found) if place not in begins]
        return kept or [seconds for seconds, _, _ in found]

    @property
    def step(self) -> float:
        """Mean seconds of a step."""
        return statistics.fmean(self.times(_STEPS) or [0.0])


def _cut(config: RunConfig, split: Split, steps: int) -> RunConfig:
    """Return the config for a small split, with few steps and one tick; phases have their shares of the steps."""
    table, training, num = config.model_dump(mode="json", exclude_none=True), config.training, len(split.private)
    steps = min(steps, training.steps)

    def shorten(section: dict[str, Any]) -> None:
        for key, value in section.items():
            if isinstance(value, dict):
                shorten(value)
            elif key in _PHASES and value:
                section[key] = min(max(round(value * steps / training.steps), 1), steps - 1)
            elif key in _LOOPS.values():
                section[key] = min(value, _ROUNDS)

    shorten(table["method"])
    table["training"] |= {"steps": steps, "tick_steps": max(steps, 1)}
    table["privacy"].pop("sample_rate", None)  # follows from the batch
    if "delta" in table["privacy"]:
        table["privacy"]["delta"] = min(table["privacy"]["delta"], 0.1 / num)
    try:
        cut = build(type(config), table, "a small run")
        plan_run(cut, split.shape).check()
    except ConfigError:  # so few images fill no batch
        table["training"]["batch_size"] = min(training.batch_size, num)
        cut = build(type(config), table, "a small run")
    return cut


def _setting(config: RunConfig, key: str, default: float) -> float:
    """Return a setting of [method] or of one of its parts."""
    parts = (config.method, *(getattr(config.method, name, None) for name in ("aggregate", "dp_gan")))
    return next((getattr(part, key) for part in parts if hasattr(part, key)), default)


def _random(shape: DataShape, num: int) -> Split:
    """Return a split of random images, each of one person, who is on one side only."""
    private, test = _noise(shape, num), _noise(shape, num, first=num)
    public = _noise(shape, min(shape.sizes.public, num), first=2 * num)
    return Split(public, private, private.select(torch.arange(0)), test, of_photos=shape.of_photos)


def _noise(shape: DataShape, num: int, first: int = 0) -> Images:
    """Return random images of a shape, of people from number ``first`` on."""
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (num, *shape.image_shape), generator=rng, dtype=torch.uint8)
    labels = torch.arange(num) % len(shape.classes) if shape.classes else None
    images = Images(pixels, labels, shape.classes)
    return dataclasses.replace(images, identities=first + torch.arange(num)) if shape.has_people else images


# What they say of the whole run --------------------------------------------------------------------------------------


def _of_run(
    config: RunConfig, shape: DataShape, once: float, first: _SmallRun, low: _SmallRun, high: _SmallRun
) -> Estimate:
    """Return how long the run takes: what is done before it, the first small one, and what comes on top."""
    training, found = config.training, Estimate.sure(once + first.seconds)
    for what in high.works:
        found += _loop(config, shape, what, low, high) if what in _LOOPS else _work(shape.num_private, what, low, high)
        found += Estimate.sure(-(first if what in _LOOPS else low).spent(what))
    step = Estimate.sure(high.step)
    if _reads(high.method):
        records = (_records(planned) for planned in (low.method.plan, high.method.plan, plan_run(config, shape)))
        step = _line(low.times(_STEPS), high.times(_STEPS), *records)
    ticks = max(math.ceil(training.steps / training.tick_steps) - 1, 0)
    return found + step * training.steps + Estimate.sure(ticks * first.tick - first.cut.training.steps * first.step)


def _work(num: int, what: str, low: _SmallRun, high: _SmallRun) -> Estimate:
    """Return how long a piece of work takes with all images."""
    part, total = high.part(what), high.total(what)
    if part is not None and total == high.num:
        return _carried_on(high.spent(what), part * (num - high.num), high.spent(what, 1))
    if part is not None and total == low.total(what):  # of as many parts, however many images there are
        return Estimate.sure(low.spent(what))
    return _line([low.spent(what)], [high.spent(what)], low.num, high.num, num)


def _loop(config: RunConfig, shape: DataShape, what: str, low: _SmallRun, high: _SmallRun) -> Estimate:
    """Return how long a loop takes that was cut short, whose rounds read at most a batch."""
    batch, key, found = _setting(config, "teacher_batch_size", math.inf), _LOOPS[what], high.times(what)
    sizes = (min(num, batch) for num in (low.num, high.num, shape.num_private))
    alike = low.total(what) == high.total(what)  # else a round is longer, and there are fewer
    word = _line(low.times(what), found, *sizes) if alike else Estimate.sure(statistics.fmean(found))
    return word * (high.total(what) * _setting(config, key, 0) / _setting(high.cut, key, 1))


def _reads(method: Method) -> bool:
    """Whether the steps of a method read private images."""
    return method.step_event() is not None or bool(method.paid_ahead(0))


def _records(planned: RunPlan) -> float:
    """Return how many private images a step reads."""
    event, num = max(planned.events, key=lambda event: event.count), planned.shape.num_private
    if event.kind == "non-private":  # batches of a fixed size
        return float(min(num, planned.config.training.batch_size))
    return num * (event.sample_rate or 1.0)


def _line(low: Sequence[float], high: Sequence[float], at_low: float, at_high: float, at: float) -> Estimate:
    """Return the mean of ``high`` carried on along a line, by how much longer each took than its like of ``low``.

    Where fewer than three in four took longer, or all hardly, they are taken not to grow, and may do so at most as
    much as would have been told.
    """
    if not low or not high:
        return Estimate.sure(0.0)
    longer, mean = sorted(more - less for less, more in zip(low, high, strict=False)), statistics.fmean(high)
    if at_high <= at_low or at <= at_high:
        return Estimate.sure(mean)
    least, ahead = (_ALONE if len(longer) == 1 else _ALIKE) * statistics.fmean(low), (at - at_high) / (at_high - at_low)
    if longer[len(longer) // 4] <= least:
        return Estimate(mean, mean, mean + least * ahead)
    more = statistics.median(longer)
    if more < _CLEAR * mean:  # what else the machine does may be all of it
        return Estimate(mean + more * ahead, mean, mean + 2 * more * ahead)
    return _carried_on(mean, more * ahead, sum(longer))


def _carried_on(measured: float, more: float, seen: float) -> Estimate:
    """Return what was measured and what comes on top, which is known where so many seconds of it were seen."""
    doubt = 0.0 if seen >= _SEEN else 0.5
    return Estimate(measured + more, measured + more * (1 - doubt), measured + more * (1 + doubt))


# What is read and drawn before a run ---------------------------------------------------------------------------------


def _reading(config: RunConfig, shape: DataShape) -> float:
    """Return the seconds of reading files like those of the data, and of drawing what the config has drawn."""
    data, sizes = config.data, shape.sizes
    own = sizes.private + sizes.holdout + sizes.test
    own += 0 if data.public or data.public_root else sizes.public
    files = own if data.name in _FILES else 0
    files += sizes.public if data.public_root is not None and not data.public_root.suffix else 0
    seconds = files * _decoding(shape) if files else 0.0
    drawn = {data.name: own} if data.name in _DRAWN else {}
    for kind, num in [*drawn.items(), *([(data.public, count_public(data))] if data.public else [])]:
        few, more = (_drawing(config, shape, kind, num) for num in (_FEW // 4, _FEW))
        seconds += num * max(more - few, 0.0) / (_FEW - _FEW // 4)
    return seconds


def _decoding(shape: DataShape) -> float:
    """Return the seconds of decoding a file by one thread."""
    channels, *sides = shape.image_shape
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "0.png")
        path.write_bytes(png_bytes(_noise(shape, 1).images[0]))
        return _seconds(lambda: [decode(path, channels, (sides[0], sides[1])) for _ in range(_FEW)]) / _FEW


def _drawing(config: RunConfig, shape: DataShape, kind: str, num: int) -> float:
    """Return the seconds of drawing some pictures, the second time."""
    asked = config.data.model_copy(update={"public": kind, "public_images": num, "public_labels": {}})
    return [_seconds(lambda: draw_public(asked, shape.image_shape, ())) for _ in range(2)][1]
