"""What ``idpgan doctor --benchmark`` measures: the speed of this machine, each figure beside another of the same run.

Contenders take turns, so that other load affects them alike; a figure is the median of the turns after a burn-in.
Nothing here reads a data set: images are random, and what is drawn or released is thrown away.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import softplus

from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.device import synchronize
from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import Critic
from idpgan.models.families import build_generator
from idpgan.models.optimizers import SGD
from idpgan.models.private_classifier import LinearScattering
from idpgan.numerics.svd import batched_svd
from idpgan.privacy import DiscreteLaplace, DPSGDPlan, Noise, Relation, RoundedGaussian, Unit
from idpgan.privacy.tiles import Tiles, tiled
from idpgan.progress import Progress, silent
from idpgan.run import describe_environment
from idpgan.synthesis.dp_gan.loss import CriticLoss
from idpgan.synthesis.evolution.embedding import LEVELS, nearest
from idpgan.training.config import load_method

Call = Callable[[], Any]
MARGIN = 1.05  # a library must be faster by more than this for a verdict
_CLASSES = tuple(map(str, range(10)))
_WARP = {"generator": "warp", "latent_dim": 16, "codes": 20, "warp": 0.7}
_BEFORE = 2  # calls of each contender before timing


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        widths: Of the critics.
        batch: Records of a clipped step, and images of a training step.
        images: Random images that stand for private ones.
        shapes: (N, m, n, rank) of decompositions; rank None = all.
        numbers: Of noise in a call.
        votes: Records and candidates.
        seconds: About so long for each row.
        most_turns: Turns of a row at most; 3 at least, 1 where it is 1.
    """

    widths: tuple[int, ...] = (16, 32, 64)
    batch: int = 256
    images: int = 2000
    shapes: tuple[tuple[int, int, int, int | None], ...] = (
        (400, 112, 92, None), (400, 112, 92, 20), (304, 200, 180, 20), (2000, 48, 48, 8),
    )  # fmt: skip
    numbers: int = 1_000_000
    votes: tuple[int, int] = (10_000, 2_000)
    seconds: float = 15.0
    most_turns: int = 9


QUICK = Size((4,), 8, 20, ((8, 12, 10, None),), 2000, (50, 20), 0.05, 1)


@dataclass(frozen=True)
class Contest:
    """Our code against other code that does the same, or against the least work that it needs.

    Attributes:
        count: Units of work in a call of either.
        per: Name of a unit.
        theirs: None if it is not installed.
        against: Its name.
        library: Whether the other does the same, so that it should be used if it is faster.
    """

    what: str
    count: int
    per: str
    ours: Call
    theirs: Call | None
    against: str
    library: bool


@dataclass(frozen=True)
class Row:
    """The result of a `Contest`: median seconds of a call."""

    contest: Contest
    ours: float
    theirs: float | None

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the other ours is."""
        return None if self.theirs is None else self.theirs / self.ours

    @property
    def verdict(self) -> str:
        """The conclusion, if there is one."""
        if self.ratio is None:
            return f"{self.contest.against} is not installed"
        if self.contest.library and self.ratio * MARGIN < 1:
            return f"SLOWER than {self.contest.against}: take that on this machine, and tell us"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        contest = self.contest
        facts = {"what": contest.what, "per_second": contest.count / self.ours, "unit": contest.per}
        facts |= {"seconds": self.ours, "against": contest.against, "against_seconds": self.theirs}
        return {**facts, "ratio": self.ratio, "verdict": self.verdict or None}

    def __str__(self) -> str:
        rate = f"{self.contest.count / self.ours:,.3g} {self.contest.per}/s"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f} x {self.contest.against}"
        return f"{self.contest.what:<34} {rate:>24}   {ratio:<28} {self.verdict}".rstrip()


def benchmark(device: torch.device, size: Size | None = None, progress: Progress = silent) -> list[Row]:
    """Measure everything on a device; noise, releases and their sums are made on the CPU, as always."""
    size, rows = size or Size(), list[Row]()
    contests = [contest for width in size.widths for contest in _clipped(width, size.batch, device)]
    contests += [*_training_steps(size, device), _sampling(size.batch, device)]
    contests += [_svd(*shape, device) for shape in size.shapes]
    contests += [*_noises(size.numbers), _votes(*size.votes, device)]
    progress("benchmark", 0, len(contests))
    for contest in contests:
        rows.append(measure(contest, device, size))
        progress("benchmark", len(rows), len(contests), contest.what)
    return rows


def to_json(rows: list[Row], device: torch.device) -> dict[str, Any]:
    """Return rows, machine and load, JSON-able."""
    machine = {"threads": torch.get_num_threads(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    return {"rows": [row.to_json() for row in rows], "machine": machine, **describe_environment(str(device))}


def measure(contest: Contest, device: torch.device, size: Size) -> Row:
    """Let both take turns and return the medians."""
    calls = [contest.ours] + ([] if contest.theirs is None else [contest.theirs])
    burnt = sum(_seconds(call, device) for call in calls for _ in range(_BEFORE)) / _BEFORE
    turns = max(min(3, size.most_turns), min(size.most_turns, int(size.seconds / max(burnt, 1e-9))))
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(turns):
        for times, call in zip(taken, calls, strict=True):
            times.append(_seconds(call, device))
    medians = [statistics.median(times) for times in taken]
    return Row(contest, medians[0], medians[1] if len(medians) > 1 else None)


def _seconds(call: Call, device: torch.device) -> float:
    synchronize(device)
    started = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - started


def _normal(*shape: int, device: torch.device) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(device)


# DP-SGD --------------------------------------------------------------------------------------------------------------


def _clipped(width: int, batch: int, device: torch.device) -> Iterator[Contest]:
    """Yield the sum of clipped gradients against the plain backward pass, and against Opacus' two engines.

    A record is a real image and its fake, as in `dp-gan`; for fast clipping it is one image, as that engine does not
    know records that pass a layer twice.
    """
    critic = Critic(ModelConfig(width=width), (1, 28, 28), len(_CLASSES)).to(device)
    weights = dict(critic.named_parameters())
    real, fake = _normal(2, batch, 1, 28, 28, device=device).tanh()
    labels = (torch.arange(batch) % len(_CLASSES)).to(device)
    loss = CriticLoss(critic, "non-saturating", penalty=0.0, paired=True)
    plan = DPSGDPlan(sample_rate=0.01, clip_norm=1.0, divisor=batch, noise_multiplier=1.0)
    records, tiles = [real, labels, fake, torch.zeros(batch, device=device), labels], Tiles.fixed(batch)

    def summed(loss: CriticLoss) -> Call:
        return lambda: plan.clipped_sum(loss.of_record, weights, tiled(records, batch), tiles).sums

    ours = summed(loss)

    def plain() -> None:
        scores = critic(torch.cat([real, fake]), torch.cat([labels, labels]))
        total = softplus(-scores[:batch]).sum() + softplus(scores[batch:]).sum()
        torch.autograd.grad(total, list(weights.values()))

    name = f"clipped step, {sum(weight.numel() for weight in weights.values()):,} weights"
    yield Contest(name, batch, "pairs", ours, plain, "plain backward", library=False)
    hooks = _opacus(critic, (real, fake), labels) if importlib.util.find_spec("opacus") else None
    yield Contest(name, batch, "pairs", ours, hooks, "Opacus", library=True)
    single = CriticLoss(critic, "non-saturating", penalty=0.0, paired=False)
    fast = _fast_clipping(critic, real, labels) if importlib.util.find_spec("opacus") else None
    yield Contest(name + ", one image", batch, "records", summed(single), fast, "Opacus, fast clipping", library=True)


def _copy(critic: Critic, device: torch.device) -> Critic:
    copy = Critic(critic.config, critic.image_shape, len(_CLASSES)).to(device)
    copy.load_state_dict(critic.state_dict())
    return copy


def _fast_clipping(critic: Critic, images: Tensor, labels: Tensor) -> Call:
    """Return the sum over single images by Opacus' ghost norms, and a second backward pass; in float32."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    copy = _copy(critic, labels.device)
    with warnings.catch_warnings(action="ignore"):
        model = GradSampleModuleFastGradientClipping(
            copy, loss_reduction="sum", max_grad_norm=1.0, use_ghost_clipping=True
        )

    def call() -> dict[str, Tensor]:
        with warnings.catch_warnings(action="ignore"):
            model.enable_hooks()
            losses = softplus(-model(images, labels))
            losses.sum().backward(retain_graph=True)
            copy.zero_grad(set_to_none=True)
            factors = model.get_clipping_coef()
            model.disable_hooks()
            (factors * losses).sum().backward()
            sums = {name: cast(Tensor, weight.grad) for name, weight in copy.named_parameters()}
            copy.zero_grad(set_to_none=True)
            return sums

    return call


def _opacus(critic: Critic, pairs: tuple[Tensor, Tensor], labels: Tensor) -> Call:
    """Return the same sum by Opacus: hooks, per-record gradients, clipping; in float32."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    copy = _copy(critic, labels.device)
    with warnings.catch_warnings(action="ignore"):  # Opacus' import and hooks warn about torch's hooks
        model = GradSampleModule(copy, loss_reduction="sum")
        optimizer = DPOptimizer(
            SGD(model.parameters(), lr=0.0),
            noise_multiplier=0.0,
            max_grad_norm=1.0,
            expected_batch_size=len(labels),
        )

    def call() -> dict[str, Tensor]:
        with warnings.catch_warnings(action="ignore"):
            real, fake = (model(images, labels) for images in pairs)
            (softplus(-real).sum() + softplus(fake).sum()).backward()
            optimizer.clip_and_accumulate()
            sums = {name: cast(Any, weight).summed_grad for name, weight in copy.named_parameters()}
            optimizer.zero_grad()
            return sums

    return call


# Training steps ------------------------------------------------------------------------------------------------------


def _training_steps(size: Size, device: torch.device) -> Iterator[Contest]:
    """Yield steps of a method against a pass of its generator alone, which is what a step of any method needs."""
    batch = max(size.batch // len(_CLASSES), 1) * len(_CLASSES)
    aggregate = {
        "model": _WARP,
        "method": {"name": "idp-gan-aggregate", "metric": "none"},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
        "training": {"batch_size": batch},
    }
    yield _stepping("aggregate, 28 x 28", aggregate, size.images, batch, device)
    dp_gan = {
        "model": {**_WARP, "width": 16},
        "method": {"name": "dp-gan", "critic_width": 16, "critic_steps_per_generator_step": 1},
        "privacy": {"epsilon": 10.0, "delta": 1e-5, "sample_rate": size.batch / (2 * size.images)},
        "training": {"batch_size": size.batch, "steps": 1000},
    }
    yield _stepping("dp-gan, 28 x 28", dp_gan, 2 * size.images, size.batch, device)


def _stepping(what: str, table: dict[str, Any], num: int, batch: int, device: torch.device) -> Contest:
    """Return the contest of a method on random images of MNIST's size; what it releases of them is thrown away."""
    pixels = torch.randint(0, 256, (num, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    whole = Images(pixels, torch.arange(num) % len(_CLASSES), _CLASSES)
    none = whole.select(torch.arange(0))
    loaded = load_method(table["method"]["name"])
    config = loaded.Config.model_validate({"data": {"name": "mnist"}, **table})
    split = Split(public=none, private=whole, holdout=none, test=none)
    method = loaded.of(config, split, device=device)
    method.prepare()
    generator, steps = method.networks.newest, iter(range(1, 1_000_000))
    labels = (torch.arange(batch) % len(_CLASSES)).to(device)

    def step() -> None:
        method.step_event()
        method.step(next(steps))

    def alone() -> None:
        images = generator(torch.randn(batch, generator.latent_dim, device=device), labels)
        weights = [weight for weight in generator.parameters() if weight.requires_grad]
        torch.autograd.grad(images.square().sum(), weights)

    return Contest(what, 1, "steps", step, alone, "generator alone", library=False)


# Sampling ------------------------------------------------------------------------------------------------------------


def _sampling(num: int, device: torch.device) -> Contest:
    """Return the contest of the images that a teacher chooses, of four drawn for each, against as many drawn once."""
    generator = build_generator(ModelConfig.model_validate(_WARP), (1, 28, 28), len(_CLASSES)).to(device)
    teacher = LinearScattering((1, 28, 28), _CLASSES)
    teacher.weight.data = _normal(*teacher.weight.shape, device=device)
    taught = generator.taught_by(teacher, 4)

    def ours() -> Tensor:
        return taught.sample(num, seed=1)

    def alone() -> Tensor:
        return generator.sample(num, seed=1)

    what = "sampling with a teacher, 28 x 28"
    return Contest(what, num, "images", ours, alone, "generator alone", library=False)


# Linear algebra, noise, votes ----------------------------------------------------------------------------------------


def _svd(count: int, m: int, n: int, rank: int | None, device: torch.device) -> Contest:
    """Return the contest on matrices whose singular values fall as those of photographs of faces do."""
    order = torch.arange(1, n + 1)
    left = _normal(count, m, n, device=device) * (0.15 / order * torch.exp(-order / 45)).to(device)
    matrices = left @ _normal(n, n, device=device) + 0.5
    cut = "" if rank is None else f", rank {rank}"

    def library() -> Any:
        factors = torch.linalg.svd(matrices, full_matrices=False)
        return factors.U[..., :rank], factors.S[:, :rank], factors.Vh[:, :rank]

    what = f"svd {count} x {m} x {n}{cut}"
    ours = functools.partial(batched_svd, matrices, rank)
    return Contest(what, count, "matrices", ours, library, "torch.linalg.svd", library=True)


def _noises(numbers: int) -> Iterator[Contest]:
    """Yield exact noise under a secret key against what torch draws from a Mersenne Twister, which hides nothing."""
    steps, noise = torch.zeros(numbers, dtype=torch.int64), Noise.system()
    laplace = DiscreteLaplace(1, 1000, Unit.IMAGE, Relation.ZERO_OUT)
    gaussian = RoundedGaussian(1.0, 1000, Unit.IMAGE, Relation.ZERO_OUT)
    twister = torch.Generator().manual_seed(3)
    plain = torch.empty(numbers, dtype=torch.float64)
    for name, mechanism, theirs, against in (
        ("discrete Laplace noise", laplace, plain.exponential_, "torch.exponential_"),
        ("rounded Gaussian noise", gaussian, plain.normal_, "torch.normal_"),
    ):
        ours, theirs = functools.partial(mechanism, steps, noise), functools.partial(theirs, generator=twister)
        yield Contest(name, numbers, "numbers", ours, theirs, against, library=False)


def _votes(records: int, candidates: int, device: torch.device) -> Contest:
    """Return the contest of finding the nearest candidate of each record, which is what a vote is."""
    few, many = (
        (LEVELS * _normal(num, 200, device=device).tanh()).to(torch.int8).contiguous() for num in (candidates, records)
    )

    def theirs() -> Tensor:
        return torch.cdist(many.float(), few.float()).argmin(1)

    ours = functools.partial(nearest, many, few)
    return Contest(f"votes among {candidates:,}", records, "votes", ours, theirs, "torch.cdist", library=True)
