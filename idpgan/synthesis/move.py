r"""Public pictures, moved onto a released law or agreed with by a teacher: post-processing that reads no private image.

A released normal distribution of low frequencies knows the light, the pose and the smile of the private faces, never
the edge of an eye. Public pictures of the same kind have the edges and other moments. So their low DCT coefficients x
are moved, class by class, by the optimal map between two normal distributions (Dowson and Landau, "The Frechet distance
between multivariate normal distributions", 1982)

    x -> x + shift + (T - 1) (x - p),    T = P^(-1/2) (P^(1/2) R P^(1/2))^(1/2) P^(-1/2),

where p and P are mean and covariance of the public pictures of the class and R that of the law; what lies above these
frequencies stays. Where the law is one of registered images, x is that of the picture brought into place on the
released template, followed by the numbers of its displacement, in units of `shape_unit`, and the picture is bent anew.
To align second moments is CORAL's idea for domains (Sun, Feng and Saenko, "Return of frustratingly easy domain
adaptation", 2016); coarse private and fine public images have been joined by other means: a public super-resolver
(arXiv 2602.23262), a denoiser (Meng et al., "SDEdit", 2022).

How far pictures are moved follows from the known noise of the release, and from constants:

- A mean is shifted by what stands above its noise: a gap g of noise s by ``g max(0, 1 - (2 s / g)^2)`` (the nonnegative
  garrote: Breiman 1995). The gap that all classes have in common comes first, then what each has beside it, whose
  noise alone could tell classes apart.
- Along the public covariance the law's is ``1 + D``; the noise moves eigenvalues of D by at most e (`shrinkage`), and D
  is shrunk by that edge. No direction is stretched or squeezed by more than 1.4.
- What noise is left in the shift of a class is one and the same pattern in all of its pictures, which a network learns
  in the place of the class. So every picture that is drawn to train on gets noise of its own on these coefficients,
  2.5 times as large as that of the shift. A coefficient that is not shifted gets none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from idpgan.data.annotations import Annotations
from idpgan.data.config import DataConfig
from idpgan.data.images import Images, to_float, to_uint8
from idpgan.device import check_memory
from idpgan.errors import ConfigError
from idpgan.models.adapters import label_rows
from idpgan.models.checkpoint import build_origin, origin_weights
from idpgan.models.config import ModelConfig, Purpose
from idpgan.models.gaussian import GaussianGenerator, basis_of
from idpgan.models.generator import Generator
from idpgan.models.initialize import torch_seed
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.models.registration import Registration, annotations_anew, bent_anew, bent_back, displaced, shape_unit
from idpgan.models.simulators import OwnSimulator
from idpgan.models.varied import MovedGenerator
from idpgan.own_code import is_own_code
from idpgan.synthesis.moments import NormalsNoise
from idpgan.synthesis.shrinkage import shrunk
from idpgan.training.plan import RunPlan

_ABOVE = 2.0  # standard deviations of noise that a gap has to stand above
_MOST_GAIN = 1.4
_SMEAR = 2.5  # times the noise that is left in a shift
_SURE = 0.5  # the least probability of its class that all are alike from
_AT_ONCE = 1000  # images that are registered
_RIDGE = 1e-3  # of the mean variance, on a public covariance
_PRIOR_CLASSES = 20  # fewest public pictures of a class: below, its covariance is that of noise


class Law(NamedTuple):
    """Moments of low DCT coefficients, float64.

    Attributes:
        mean: (rows, q).
        covariance: (rows, q, q).
    """

    mean: Tensor
    covariance: Tensor


class Coordinates:
    """The numbers of an image that a law speaks of: low DCT coefficients, and those of a displacement.

    Args:
        generator: Of the law.
        template: (T, C, H, W), onto which the law's images were brought, one for all or one a class; None: as they lie.
    """

    def __init__(self, generator: Generator, template: Tensor | None = None) -> None:
        self.basis, self.template = basis_of(generator.image_shape, generator.config.latent_dim), template
        self._pixels, self.size = self.basis.shape  # (C H W, q)
        self._count = 0 if template is None else generator.config.drawn.shape
        self._unit = shape_unit(self._count, self._pixels) if self._count else 1.0

    @property
    def units(self) -> Tensor:
        """What 1 of each number is in the generator's law, (q + 2 shape,) float64."""
        return torch.tensor([1.0] * self.size + [self._unit] * (2 * self._count), dtype=torch.float64)

    def of(self, images: Tensor, row: int = 0) -> Tensor:
        """Return the numbers of images (B, C, H, W) in [-1, 1] of a class, (B, q + 2 shape) float64."""
        return torch.cat([self._of(part, row) for part in images.split(_AT_ONCE)])

    def _of(self, images: Tensor, row: int) -> Tensor:
        if self.template is None:
            return images.flatten(1).double() @ self.basis
        template = self.template[row % len(self.template)].to(images)
        shapes = Registration(images.shape[1:], self._count)(images, template)
        texture = displaced(images, shapes).flatten(1).double() @ self.basis
        return torch.cat([texture, shapes.double() / self._unit], 1)

    def moved(self, images: Tensor, numbers: Tensor, offset: Tensor) -> Tensor:
        """Return images whose `numbers` have changed by an offset, not within [-1, 1] yet."""
        texture, bend = offset.split([self.size, 2 * self._count], 1)
        added = (texture @ self.basis.T).view(images.shape).float()
        if self.template is None:
            return images + _lit(added, images)
        before, after = self._bends(numbers, bend)
        bent = bent_anew(images, before, after)
        return bent + _lit(bent_back(added, after), bent)

    def _bends(self, numbers: Tensor, bend: Tensor) -> tuple[Tensor, Tensor]:
        """Return the displacements of images before and after their numbers change, float32 (B, 2 shape)."""
        before = self._unit * numbers[:, self.size :]
        return before.float(), (before + self._unit * bend).float()

    def annotated(self, annotations: Annotations, numbers: Tensor, offset: Tensor) -> Annotations:
        """Return where the parts of the images of `moved` lie; light and texture move none, and pose stays as drawn."""
        if self.template is None:
            return annotations
        return annotations_anew(annotations, *self._bends(numbers, offset[:, self.size :]))


def _lit(added: Tensor, images: Tensor) -> Tensor:
    """Return what is added to images with less color where they are dark: black hair has none to change."""
    grey = added.mean(1, keepdim=True)
    return grey + (added - grey) * (1 + images.mean(1, keepdim=True)).clamp(max=1)


def law_of(generator: GaussianGenerator, coordinates: Coordinates) -> Law:
    """Return the moments of a generator's law."""
    mean, factor = (part.detach().cpu().double() for part in (generator.mean, generator.factor))
    units = coordinates.units
    return Law(mean / units, factor @ factor.mT / (units[:, None] * units))


def move(
    generator: GaussianGenerator,
    public: Images,
    noise: NormalsNoise,
    template: Tensor | None = None,
    *,
    seed: int,
    annotations: Annotations | None = None,
) -> MovedGenerator:
    """Return a generator that draws public pictures moved onto a law, beside the law's own images.

    Args:
        generator: Of the law, on the CPU or a GPU; its config says how many pictures of each class are moved.
        public: Of the same shape; without labels, all pictures serve every class.
        noise: Known noise of the law's normal distributions.
        template: Of the release, (T, C, H, W), where it was one of registered images.
        seed: Of which pictures are taken.
        annotations: Of the public pictures, which move with them.
    """
    num, rows = generator.config.moved, max(generator.num_classes, 1)
    coordinates = Coordinates(generator, template)
    law, units = law_of(generator, coordinates), coordinates.units
    device, q = next(generator.parameters()).device, coordinates.size
    mean_std, variance_std = noise.mean[:, : len(units)] / units, noise.variance[:, : len(units)] / units.square()
    result = MovedGenerator(generator, num).to(device)
    pools = [pool_of(public, row) for row in range(rows)]
    x = [coordinates.of(to_float(pool), row) for row, pool in enumerate(pools)]
    means = torch.stack([each.mean(0) for each in x])
    shift, residual = shifts(law.mean - means, mean_std)
    rng, one = torch.Generator().manual_seed(seed), torch.eye(len(units), dtype=torch.float64)
    parts: list[Annotations] = []
    for row, pool in enumerate(pools):
        chosen = torch.randperm(len(pool), generator=rng)[:num]
        linear = gains(x[row].T.cov(), law.covariance[row], variance_std[row])
        offset = shift[row] + (x[row][chosen] - means[row]) @ (linear - one)
        bends = _SMEAR * residual[row, q:]  # the generator smears texture alone
        offset[:, q:] += bends * torch.randn(num, len(bends), generator=rng, dtype=torch.float64)
        moved = coordinates.moved(to_float(pool[chosen]), x[row][chosen], offset).clamp(-1, 1)
        result.pictures[row] = to_uint8(moved).to(device)
        if annotations is not None:
            there = Annotations(*(part[_serving(public, row)][chosen] for part in annotations))
            parts.append(coordinates.annotated(there, x[row][chosen], offset))
    if annotations is not None:
        result.hold_annotations(Annotations(*map(torch.stack, zip(*parts, strict=True))))
    result.smear.copy_(_SMEAR * residual[:, :q])
    return result.eval().requires_grad_(False)


def shifts(gap: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Return by how much the mean of each class is shifted, and the noise that is left in what it has of its own.

    Args:
        gap: Mean of the law minus that of the public pictures, (rows, q).
        std: Of the noise of the release on it, (rows, q).
    """
    rows = len(gap)
    common, beside = gap.mean(0), gap - gap.mean(0)

    def of_common(std: Tensor) -> Tensor:
        return std.square().sum(0).sqrt() / rows

    def of_own(std: Tensor) -> Tensor:
        return (std.square() * (1 - 2 / rows) + std.square().sum(0) / rows**2).clamp(min=0).sqrt()

    kept = _kept(beside, of_own(std))
    return _kept(common, of_common(std)) * common + kept * beside, kept * of_own(std)


def _kept(gap: Tensor, std: Tensor) -> Tensor:
    """Return the share of each gap that stands above its noise, in [0, 1]."""
    return (1 - (_ABOVE * std / gap).square()).nan_to_num(0.0).clamp(0, 1)


def gains(public: Tensor, released: Tensor, variance_std: Tensor) -> Tensor:
    """Return T, (q, q), symmetric: the optimal map from a public covariance onto a released one, held by its noise.

    Args:
        public: (q, q).
        released: (q, q).
        variance_std: Of the noise on each released variance, (q,).
    """
    size, one = len(public), torch.eye(len(public), dtype=public.dtype)
    public = public + _RIDGE * public.diagonal().mean() * one
    values, vectors = torch.linalg.eigh(public)
    root, inverse = ((vectors * values**power) @ vectors.T for power in (0.5, -0.5))
    edge = math.sqrt(2 * size) * float((variance_std / public.diagonal()).mean())
    target = root @ _positive(one + shrunk(inverse @ released @ inverse - one, edge)) @ root
    gain = inverse @ _positive(root @ target @ root, 0.5) @ inverse
    values, vectors = torch.linalg.eigh(gain)
    return (vectors * values.clamp(1 / _MOST_GAIN, _MOST_GAIN)) @ vectors.T


def _positive(matrix: Tensor, power: float = 1.0) -> Tensor:
    """Return a power of a symmetric matrix without its negative eigenvalues."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0) ** power) @ vectors.T


# Pictures that a private teacher agrees with -------------------------------------------------------------------------


def agreed(law: Generator, public: Images, teacher: PrivateClassifier, *, seed: int) -> MovedGenerator:
    """Return a generator that draws public pictures beside what a law draws, `Drawing.agreed` of each class.

    A program that draws digits, or a public folder, has edges and shapes that no released law has, and draws some
    things that are unlike the private images. The teacher has learned from these what each class looks like, so it
    chooses: of the public pictures of a class those that it finds to be of it, likelier than not. Without labels, all
    public pictures are asked of every class. The pictures stay as they are, which serves where they are of the same
    kind as the private images: what is moved onto the law loses what it knew of edges.

    Args:
        law: Of the same classes as the teacher.
        public: Of the same shape. Of a class whose pictures the teacher mostly refuses, the likeliest are taken.
        seed: Of which are taken, where more are agreed with.
    """
    num, rng = law.config.drawn.agreed, torch.Generator().manual_seed(seed)
    result = MovedGenerator(law, num).to(next(law.parameters()).device)
    for row in range(law.num_classes):
        pool = pool_of(public, row)
        pool = pool[torch.randperm(len(pool), generator=rng)]
        sure = teacher.probabilities(pool)[:, row].cpu().clamp(max=_SURE)
        result.pictures[row] = pool[sure.argsort(descending=True, stable=True)[:num]]
    return result.eval().requires_grad_(False)


# What is asked of a run ---------------------------------------------------------------------------------------------


def assumed(model: ModelConfig) -> tuple[str, ...]:
    """Return what is taken as public where pictures are moved, or agreed with."""
    if not (num := model.moved or model.drawn.agreed):
        return ()
    how = "were moved" if model.moved else "the teacher agreed with"
    shown = f"the {num:,} public images of each class that {how}: whoever is on one is seen in what is drawn"
    if not (model.moved and is_own_code(model.simulator)):
        return (shown,)
    stated = f"license {model.license}" if model.license else "no license was stated"
    seen = "whoever made this release says that it has seen no private image"
    return shown, f"{model.simulator} ({stated}), which drew them: {seen}"


def drawn_public(
    model: ModelConfig, data: DataConfig, image_shape: Sequence[int], classes: tuple[str, ...], seed: int
) -> Images:
    """Let the user's simulator, or the public generator, draw as many pictures of each class as are moved.

    Args:
        classes: Of the generator; empty without.
    """
    rows, num = max(len(classes), 1), max(model.moved, _PRIOR_CLASSES)
    if model.origin is not None and model.simulator == "generator":
        generator = build_origin(model.origin, image_shape).eval()
        generator.load_state_dict(origin_weights(data.public_generator, model.origin))
        known = label_rows(model.origin.classes, classes, data.public_labels or {}) or [None]  # None: of any class
        parts = [generator.sample(num, row, seed + n, purpose=Purpose.TRAINING) for n, row in enumerate(known)]
        pixels = to_uint8(torch.cat(parts))
    else:
        simulator, rng = OwnSimulator(model, image_shape, len(classes)), torch.Generator().manual_seed(torch_seed(seed))
        pixels = torch.cat([simulator.pictures(simulator.start(num, row, rng)) for row in range(rows)])
    return Images(pixels, torch.arange(rows).repeat_interleave(num) if classes else None, classes)


def check(plan: RunPlan) -> None:
    """Refuse to move, or to choose among, pictures that are not there or that memory does not hold; none was read."""
    _check_moved(plan)
    _check_agreed(plan)


def _check_moved(plan: RunPlan) -> None:
    model, shape, public = plan.config.model, plan.shape, plan.shape.sizes.public
    pictures = max(plan.classes, 1) * math.prod(shape.image_shape)
    check_memory(model.moved * pictures, f"model.moved = {model.moved:,}", "Lower it.")
    if model.draws_own and model.origin is not None:
        build_origin(model.origin, shape.image_shape)
    elif model.draws_own:
        few = model.model_copy(update={"moved": 1})
        drawn_public(few, plan.config.data, shape.image_shape, shape.classes if plan.classes else (), 0)
    elif model.moved and public < model.moved:
        raise ConfigError(
            f"model.moved = {model.moved:,} public images of each class are moved, and there are {public:,} public "
            "images. Name some as data.public_root, draw them with data.public, by a released generator "
            '(model.simulator = "generator") or by code of yours, or lower model.moved (0: none are moved).'
        )


def _check_agreed(plan: RunPlan) -> None:
    num, public, shape = plan.config.model.drawn.agreed, plan.shape.sizes.public, plan.shape.image_shape
    what = f'model.drawing = "{plan.config.model.drawing}"'
    check_memory(num * max(plan.classes, 1) * math.prod(shape), what, 'Set model.drawing = "handwriting".')
    if num > public:
        raise ConfigError(
            f"{what} chooses {num:,} public images of each class, and there are {public:,} public images. Name some as "
            'data.public_root, draw more with data.public, or set model.drawing = "handwriting".'
        )


def check_pools(public: Images, model: ModelConfig, rows: int) -> None:
    """Refuse a class with fewer public pictures than are moved, or agreed with."""
    key = "moved" if model.moved else "drawing"
    least = max(model.moved, _PRIOR_CLASSES) if model.moved else model.drawn.agreed
    for row in range(rows):
        if (num_public := len(pool_of(public, row))) < least:
            name = f"of class '{public.classes[row]}'" if public.classes else "in all"
            raise ConfigError(
                f"model.{key} = {getattr(model, key)} needs at least {least:,} public images of each class, and there "
                f"are {num_public:,} {name}. Give more of them, or set another model.{key}."
            )


def pool_of(public: Images, row: int) -> Tensor:
    """Return the public pictures that serve a class, uint8 (n, C, H, W)."""
    return public.images.cpu()[_serving(public, row)]


def _serving(public: Images, row: int) -> Tensor | slice:
    return slice(None) if public.labels is None else public.labels.cpu() == row
