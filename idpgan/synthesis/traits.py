r"""Traits: portraits of nobody, with the traits, the light and the sharpness that one noisy sum a class asks for.

Simulated moments (McFadden 1989), released once. The only private read is the sum of ``v(x)`` (a count, and 658 numbers
of how edges and light lie in x and how sharp it is, norm at most 1: `models.summary_statistics`) over the photos of
each class, plus rounded Gaussian noise on everything at once (`privacy.sums.CellSums`, where the rest of the proof is).
What follows is post-processing:

- Portraits get weights ``exp(lambda . s)``, the nearest to even ones whose mean of s, the numbers of edges, comes near
  the released one m. With K the class's portraits, lambda minimizes the convex

      log(mean over K of exp(lambda . s)) - lambda . m + ridge / 2 |lambda|^2.

  The ridge is the known variance of the noise and a constant for what photos show and no portrait can: without it a few
  portraits would carry all weight.
- Portraits with traits near those of parents, which are drawn by these weights, are drawn anew.
- They get the mean light of their class's photos, and the mean sharpness of all photos, as far as these stand above the
  known noise (`photographed`). They are all that the release holds: clean pictures, whatever epsilon is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from idpgan.audit.cases import AuditCase, asked_of
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.config import key
from idpgan.data.annotations import Annotations
from idpgan.data.images import Images, to_float, to_uint8
from idpgan.data.load import Split
from idpgan.device import check_memory
from idpgan.models.camera import lit, sharpened
from idpgan.models.checkpoint import build_generator
from idpgan.models.config import ModelConfig
from idpgan.models.initialize import torch_seed
from idpgan.models.pictures import Asked, PicturesGenerator
from idpgan.models.summary_statistics import BLOCKS, Estimates, SummaryStatistics, refuse_few
from idpgan.privacy import Event
from idpgan.privacy.noise import Source
from idpgan.privacy.sums import CellSums
from idpgan.private import released_once
from idpgan.private.released_once import ReleasedOnce
from idpgan.release.generator import GeneratorArtifact
from idpgan.synthesis import product, sums_audit
from idpgan.synthesis.moments import private_moments
from idpgan.synthesis.renderer import Portraits, Renderer, Traits, renderer_of
from idpgan.training.config import DELTA_ABOVE_ZERO, ReleaseConfig, settings
from idpgan.training.method import ReleasedSums
from idpgan.training.plan import RunPlan, Signal

_OUTSIDE = 1.0  # ridge for what photos show and no portrait can; near 0 sixty of 6,000 portraits carry all weight
_NEWTON, _FLAT = 100, 1e-12  # steps of Newton's method at most; decrease of the dual at which it ends
_PARENTS, _DRAWN = 31, 32  # streams of training.seed
_TOLD, _CLEAR, _MOST = 2.0, 3.0, 6  # standard errors, of noise and of weights on few portraits, of a trait named
_AT_ONCE = 500  # pictures
_ROUNDS = 3  # of changes: neighboring sub-bands overlap, and one leaves a third of the difference
_MAP = "map."  # of the names of what is released


def _check_generator(config: Any) -> None:
    released_once.refuse_shared_people(config)
    released_once.refuse_other_generator(config, "pictures")


Settings = settings(
    "traits",
    privacy=[released_once.KEYS, DELTA_ABOVE_ZERO],
    training=[{"steps": key(int, 0, "0: the run ends with the release, and nothing is trained.", ge=0, le=0)}],
    model=ModelConfig(generator="pictures", codes=4000),
    checks=[_check_generator],
)


class Plan(RunPlan):
    """What a run of traits costs: one release of sums, one cell a class."""

    @property
    def reads_public(self) -> bool:  # type: ignore[override]  # it follows from the settings
        """Whether portraits of a folder are looked at: a pen has its own digits."""
        return isinstance(self.renderer, Portraits)

    @functools.cached_property
    def renderer(self) -> Renderer:
        """What draws the pictures."""
        return renderer_of(self.config.data, self.config.model, self.shape.image_shape)

    @functools.cached_property
    def sums(self) -> CellSums:
        """The release, with the least noise that keeps to [privacy]."""
        terms = released_once.terms(self.config.privacy)
        return CellSums.calibrated(self.rows, SummaryStatistics(self.renderer.asked).dimensions, "gaussian", **terms)

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The price of the release, with which the run ends."""
        return (self.sums.event,)

    @property
    def signal(self) -> Signal:
        """The figure of the sums."""
        return released_once.signal_of(self, self.sums.noise_length, "the release")

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Name what was released, and where its noise came from."""
        return f"one release of noisy sums of {', '.join(self.renderer.asked)}; noise: {sources[0].name}"

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the portraits, and what they fix."""
        fixed = f"{self.renderer.what}, and the vector of an image: its bases, centers and radii are theirs"
        return (f"{fixed}, fixed before any private image", *released_once.capped(self.config))

    def check(self) -> None:
        """Refuse what the data cannot give and the machine cannot hold or draw."""
        self.renderer.check(self.shape.classes if self.config.model.conditional else ())
        if self.reads_public:
            refuse_few(self.shape.sizes.public)
        model = self.config.model
        needed = model.codes * self.rows * math.prod(self.shape.image_shape)
        check_memory(2 * needed, f"model.codes = {model.codes:,}", "Lower it.")
        released_once.check_people(self)


class Method(ReleasedOnce):
    """The method as the loop sees it, which has no steps; see `ReleasedOnce`. The sums are exact integers on the CPU.

    Attributes:
        generator: Black pictures until `artifact` has drawn them.
        statistics: Map an image to its vector; None before `prepare`.

    Raises:
        ConfigError: If the config asks for what the data does not have. No private image has been read then.
    """

    plan: Plan
    generator: PicturesGenerator
    statistics: SummaryStatistics | None = None
    _is_drawn = False

    def _set_up(self, split: Split) -> None:
        super()._set_up(split)
        made = build_generator(self._run.model, split.image_shape, len(split.classes)).requires_grad_(False)
        self.generator = cast(PicturesGenerator, made).to(self.device).eval()
        self.generator.classes = split.classes if self.generator.num_classes else ()

    def prepare(self) -> None:
        """Fix what compares photos with portraits, then pay for the release and make it."""
        if self.ledger.released_digest is None:
            images, traits = self._pool
            self.plan.renderer.rows_of(traits, self.generator.classes)  # refuses classes that no picture shows
            self.statistics = SummaryStatistics(self.plan.renderer.asked).learn(images).to(self.device)
        super().prepare()

    def _release(self) -> dict[str, Tensor]:
        """Sum the vectors of the private images."""
        private, cap = self._take_private(), released_once.cap_of(self._run.privacy)
        if self.statistics is None:
            raise RuntimeError("what maps the images is fixed before they are read.")
        vectors = functools.partial(
            private_moments, private, self.statistics, conditional=bool(self.generator.num_classes), cap=cap
        )
        fixed, num = list(self.statistics.state_dict().values()), len(private)
        sums = self.kept.released(self.plan.sums, vectors, num, self.noise, fixed=fixed, progress=self.progress)
        return {"sums": sums} | {_MAP + name: value for name, value in self.statistics.state_dict().items()}

    def _take_released(self, released: dict[str, Tensor]) -> None:
        super()._take_released(released)
        if released:
            learned = {name.removeprefix(_MAP): value for name, value in released.items() if name.startswith(_MAP)}
            self.statistics = SummaryStatistics(self.plan.renderer.asked)
            self.statistics.load_state_dict(learned)
            self.statistics.to(self.device)

    @functools.cached_property
    def _pool(self) -> tuple[Tensor, Traits]:
        return self.plan.renderer.pool(self.progress)

    # What follows is post-processing of the sums --------------------------------------------------------------------

    def artifact(self, config: ReleaseConfig) -> GeneratorArtifact:
        """Return the portraits that are drawn by what was released."""
        if not self._is_drawn and self.statistics is not None:
            self._draw(self.statistics)
            self._is_drawn = True
        return product.artifact(self.generator, self._run, config)

    def _draw(self, statistics: SummaryStatistics) -> None:
        """Put pictures into the generator, those of each class near parents that are weighted by its released mean."""
        (images, traits), num, seed = self._pool, self._run.model.codes, self._run.training.seed
        renderer, estimates = self.plan.renderer, statistics.estimates(self._released["sums"], self.plan.sums.noise_std)
        s, rng = statistics.of("edges", images), torch.Generator().manual_seed(torch_seed(seed, _PARENTS))
        parents, told = [], []
        for row, own in enumerate(renderer.rows_of(traits, self.generator.classes)):
            noise, said = float(estimates.noise["edges"][row]), renderer.told(traits)
            ridge = noise**2 + _OUTSIDE
            weights = tilted(s[own], estimates.means["edges"][row], ridge)
            parents.append(own[torch.multinomial(weights, num, replacement=True, generator=rng)])
            moved = moves(chosen(said, own), s[own], weights, ridge, noise)
            told.append(
                Asked(images=float(estimates.counts[row].round()), images_std=round(estimates.off, 1), traits=moved)
            )
        near, drawn = renderer.near(chosen(traits, torch.cat(parents)), rng), torch_seed(seed, _DRAWN)
        pictures = renderer.draw(near, drawn, self.device, self.progress).view(self.generator.pictures.shape)
        self.generator.pictures.copy_(photographed(pictures, statistics, estimates))
        self.generator.asked = tuple(told)
        if places := renderer.placed(near, drawn):
            self.generator.hold_annotations(Annotations(*(part.unflatten(0, (-1, num)) for part in places)))

    @property
    def released_sums(self) -> ReleasedSums | None:
        """The sums, one row a class; None where none were released."""
        statistics = self.statistics
        if "sums" not in self._released or statistics is None:
            return None

        def vectors(images: Images) -> tuple[Tensor, Tensor]:
            batches = private_moments(images, statistics, conditional=bool(self.generator.num_classes), cap=None)
            of_images, rows, _ = zip(*batches, strict=True)
            return torch.cat(of_images), torch.cat(rows)

        return ReleasedSums(self._released["sums"], self.plan.sums.noise_std, vectors)


def chosen(traits: Traits, rows: Tensor) -> dict[str, Tensor]:
    """Return the traits of some pictures."""
    return {name: column[rows] for name, column in traits.items()}


def tilted(s: Tensor, mean: Tensor, ridge: float) -> Tensor:
    """Return weights of portraits, (N,) float64 that add up to 1, whose mean of s comes near a given one.

    Args:
        s: (N, k) float64.
        mean: (k,).
        ridge: Above 0: the dual is strictly convex, and what cannot be reached is not chased.
    """
    dual = torch.zeros_like(mean)

    def value(dual: Tensor) -> float:
        return float(torch.logsumexp(s @ dual, 0) - dual @ mean + ridge / 2 * dual @ dual)

    for _ in range(_NEWTON):
        weights = torch.softmax(s @ dual, 0)
        average = weights @ s
        slope, centered = average - mean + ridge * dual, s - average
        curvature = centered.T @ (centered * weights[:, None]) + ridge * torch.eye(len(mean)).to(s)
        step, length = torch.linalg.solve(curvature, slope), 1.0
        if float(slope @ step) < _FLAT:
            break
        known = value(dual)
        while length > _FLAT and value(dual - length * step) > known - 1e-4 * length * float(slope @ step):
            length /= 2
        dual = dual - length * step
    return torch.softmax(s @ dual, 0)


def moves(traits: Traits, s: Tensor, weights: Tensor, ridge: float, noise: float) -> dict[str, list[float]]:
    r"""Return the traits that weights move most: name -> mean before and after, and the noise on the latter.

    Noise e on the released mean moves a weighted mean of a trait t, to first order, by
    ``cov(t, s) (cov(s) + ridge)^-1 e``, with covariances under the weights. A trait is named that moves by more than
    twice the standard deviation of that, and by more than three times what weights like these would move a trait that
    has nothing to do with s, ``sd(t) |weights|``; six at most.

    Args:
        traits: Of N portraits, one number each.
        s: (N, k) float64.
        weights: (N,), of `tilted` with this ridge.
        noise: Standard deviation on each number of the mean.
    """
    columns = torch.stack(list(traits.values()), 1).double()
    before, after, spread = columns.mean(0), weights @ columns, columns.std(0).clamp(min=1e-6)
    centered = s - weights @ s
    curvature = (centered * weights[:, None]).T @ centered + ridge * torch.eye(s.shape[1]).to(s)
    slopes = torch.linalg.solve(curvature, (centered * weights[:, None]).T @ (columns - after))
    stds, moved = noise * slopes.norm(dim=0), (after - before).abs()
    clear = (moved > _TOLD * stds) & (moved > _CLEAR * weights.norm() * spread)
    order = [i for i in (moved / spread).argsort(descending=True).tolist() if clear[i]][:_MOST]
    names = list(traits)
    return {names[i]: [round(float(one[i]), 3) for one in (before, after, stds)] for i in order}


def photographed(pictures: Tensor, statistics: SummaryStatistics, estimates: Estimates) -> Tensor:
    """Return pictures (rows, N, C, H, W), uint8, with the mean light of the photos, and their sharpness.

    Only what stands above the noise changes (`above_noise`): light of all rows alike, then of each row; sharpness of
    all alike, since it tells no class.
    """
    share, shown = estimates.counts.clamp(min=1) / estimates.counts.clamp(min=1).sum(), pictures
    for name, how in (("light", lit), ("sharpness", sharpened)):
        if name not in statistics.asked:
            continue

        def means(pictures: Tensor, name: str = name) -> Tensor:
            return torch.stack([statistics.of(name, own).mean(0) for own in pictures])

        noise = estimates.noise[name]
        missing, begun = share @ (estimates.means[name] - means(shown)), shown
        kept = above_noise(missing, (share.square() @ noise.square()).sqrt(), BLOCKS[name])
        asked = means(shown) + kept * missing
        if name == "light":
            left = estimates.means[name] - asked
            asked = asked + left * torch.stack(
                [above_noise(*row, BLOCKS[name]) for row in zip(left, noise, strict=True)]
            )
        change = torch.zeros_like(asked)
        for _ in range(_ROUNDS):
            change = change + statistics.part(name).back(asked - means(shown))
            change = change if name == "light" else (share @ change).expand_as(change)
            shown = torch.stack([_changed(*row, how) for row in zip(begun, change, strict=True)])
    return shown


def _changed(pictures: Tensor, change: Tensor, how: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return torch.cat([to_uint8(how(to_float(part), change.to(part.device))) for part in pictures.split(_AT_ONCE)])


def above_noise(difference: Tensor, noise: Tensor, blocks: Sequence[int]) -> Tensor:
    """Return the shares (k,), in [0, 1), of differences that stand above noise of a known standard deviation.

    James and Stein's rule in blocks that lie together ("Estimation with quadratic loss", 1961; Cai's blocks, 1999). Of
    a block whose squares are not one standard deviation more than noise alone makes them the share is 0.
    """
    kept = []
    for part in difference.split(list(blocks)):
        size, energy = len(part), float((part / noise).square().sum())
        kept.append(torch.full_like(part, 1 - size / energy if energy > size + math.sqrt(2 * size) else 0.0))
    return torch.cat(kept)


# The audit: the sums of a small release, or those of a run -----------------------------------------------------------


def _audit(request: Request) -> AuditCase:
    terms = sums_audit.terms_of(request)
    released = CellSums.calibrated(sums_audit.CLASSES, SummaryStatistics().dimensions, "gaussian", **terms)
    return sums_audit.sums_case("traits", released, request)


def _audit_of_run(config: Any, facts: RunFacts) -> AuditCase:
    return sums_audit.sums_case("traits", Plan(config, facts.shape).sums, asked_of(config), facts.claimed)


AUDIT = Entry(_audit, sums_audit.UNITS, sums_audit.RELATIONS, delta=1e-5, of_run=_audit_of_run)
