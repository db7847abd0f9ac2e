"""What every generator has in common: classes, labels and reproducible sampling."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from idpgan import checks
from idpgan.data.images import SHOWN, SHOWN_COLUMNS, Images, notebook_png, to_uint8
from idpgan.data.labels import distinct, numbers, position_of
from idpgan.device import check_memory, check_room, let_go, zeros
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.models.config import ModelConfig, Purpose, classes_of, labels_error
from idpgan.models.initialize import torch_seed
from idpgan.models.private_classifier import PrivateClassifier, log_odds
from idpgan.privacy.guarantee import PrivacyReport
from idpgan.progress import Progress, silent

MOST_CANDIDATES = 100  # that are drawn for one image
_BATCH = 512  # images per forward pass, whole tiles of a teacher's features
LATENT_BLOCK = 1024  # rows of z drawn per call, whatever the batch size: the same z for any batch size


class Generator(nn.Module):
    """Map latent vectors, and classes if conditional, to images in [-1, 1]. Families build on it; see `families.py`.

    Args:
        image_shape: (C, H, W) in px.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        latent_dim: Standard normal numbers per image.

    Attributes:
        num_classes: Classes that the generator is conditioned on, 0 for none.
        classes: Their names, "0", "1", ... until a loaded checkpoint or the caller names them.
        teacher: A classifier of the same classes, which chooses among candidates; None = each image is drawn once.
        candidates: Images that are drawn for each one that `sample` returns: the one that the teacher finds most like
            the requested class. 1 without a teacher.
        privacy: What protects the training images, a `idpgan.privacy.PrivacyReport`, where it was loaded from a release
            by `idpgan.load_generator`; else None. The report covers the weights as loaded: set it to None before they
            are trained on other private images.
        annotated: Whether it holds where the parts of its pictures lie; see `models.pictures`.
        choosing: Positions of the latent numbers that make a discrete choice, such as of a member: a small change of
            one may give another image.
        shared: Positions of the latent numbers that all candidates of an image have in common.

    Raises:
        ConfigError: If classes are asked for and there are none.
    """

    annotated = False

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, latent_dim: int) -> None:
        super().__init__()
        self.config = config
        self.image_shape = (int(image_shape[0]), int(image_shape[1]), int(image_shape[2]))
        self.latent_dim = latent_dim
        self.num_classes = classes_of(config, num_classes)
        self.classes: tuple[str, ...] = tuple(map(str, range(self.num_classes)))
        self.teacher: PrivateClassifier | None = None
        self.choosing: tuple[int, ...] = ()
        self.shared: tuple[int, ...] = ()
        self.candidates = 1
        self.privacy: PrivacyReport | None = None

    def taught_by(self, teacher: PrivateClassifier, candidates: int) -> Self:
        """Return this generator, the same weights and no copy of them, with a teacher.

        Its ``privacy`` is None: the generator's report does not cover the data that the teacher was trained on.

        Raises:
            InputError: If there are fewer than one candidates, or the two do not have the same classes.
        """
        checks.whole(candidates, "candidates", 1)
        if not self.num_classes or len(teacher.classes) != self.num_classes:
            raise InputError(
                f"A teacher of {len(teacher.classes)} classes has nothing to choose for a generator of "
                f"{self.num_classes}. They must have the same classes."
            )
        taught = copy.copy(self)
        taught._modules = dict(self._modules)  # copy.copy shares this dict: both would get the teacher
        taught.teacher, taught.candidates, taught.privacy = teacher, candidates, None
        return taught

    def extra_repr(self) -> str:
        """Return what stands in front of the layers in ``repr``."""
        classes = f"classes=({', '.join(self.classes[:10])}{', ...' if self.num_classes > 10 else ''})"
        proven = f", proven {self.privacy.stated}" if self.privacy else ""
        return f"image_shape={self.image_shape}, {classes if self.num_classes else 'unconditional'}{proven}"

    def _repr_png_(self) -> bytes | None:
        """Show 64 generated images in a notebook, at every call those of seed 0: a column per class, at most 8."""
        columns = min(self.num_classes, SHOWN_COLUMNS)
        names = [self.classes[index % columns] for index in range(SHOWN)] if columns else None
        pixels = to_uint8(self.sample(SHOWN, names, seed=0))
        return notebook_png(pixels, columns or SHOWN_COLUMNS)

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        """Generate one image per latent vector: (B, C, H, W) in [-1, 1].

        Args:
            z: (B, latent_dim), standard normal.
            labels: (B,) int64 in [0, num_classes) if conditional, else None.

        Raises:
            InputError: If labels are missing, or given to an unconditional generator.
        """
        if (labels is None) == bool(self.num_classes):
            raise labels_error("generator", self.num_classes)
        return self.images(z, labels)

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Generate images as `forward` does; the arguments are checked already."""
        raise NotImplementedError

    def shows_public(self, z: Tensor) -> Tensor:
        """Return of which latent numbers (B, latent_dim) an image is a public picture that is held, (B,) bool."""
        return torch.zeros(len(z), dtype=torch.bool)

    @own_state()
    def sample_labels(self, num: int) -> Tensor | None:
        """Return the labels of ``sample(num)``, (num,) int64 on the CPU; None for an unconditional generator.

        They are the classes in turn, each by the number that it is called by; where not all are called by numbers,
        each by its position in ``classes``.
        """
        positions = self.positions(num)
        return None if positions is None else torch.tensor(numbers(self.classes))[positions]

    def positions(self, num: int) -> Tensor | None:
        """Return 0, 1, ..., num_classes - 1, 0, 1, ..., (num,) int64 on the CPU; None for an unconditional generator.

        They are uniform: the class frequencies of the private images would be a release of their own.
        """
        return torch.arange(checks.whole(num, "num")) % self.num_classes if self.num_classes else None

    @checks.typed
    def sample(
        self,
        num: int,
        labels: Tensor | Sequence[int] | Sequence[str] | int | str | None = None,
        seed: int | None = None,
        batch_size: int = _BATCH,
        progress: Progress = silent,
        *,
        purpose: Purpose = Purpose.LOOKING,
    ) -> Tensor:
        """Generate images, in eval mode and without gradients.

        One seed gives one sequence of latent vectors on every device: ``sample(n)`` starts with the images of
        ``sample(m)``, m < n, whatever the batch size. Pixels of different batch sizes or devices may differ by
        floating-point rounding (about 1e-6). The caller's random state is neither read nor changed.

        Args:
            labels: Classes of the images, each by its name or its number (`idpgan.data.labels`), or as "position 0" in
                ``classes``: ``num`` of them, or one for all; None = ``sample_labels(num)``.
            seed: 0 .. 2^63 - 1; None = fresh entropy from the operating system.
            batch_size: Images per forward pass, >= 1; it bounds the memory.
            purpose: "looking" draws with `Drawing.truncation`, where it is set; "training", for what trains or
                measures something, always with `Drawing.temperature`, and `Drawing.coolest`.

        Returns:
            (num, C, H, W) float32 in [-1, 1], on the CPU.
        """
        checks.whole(num, "num")
        check_memory(4 * num * math.prod(self.image_shape), f"{num:,} images", "Draw fewer at once, with other seeds.")
        images = torch.empty(num, *self.image_shape)
        for rows, drawn in self._drawn(num, labels, seed, batch_size, purpose, progress):
            images[rows] = drawn
        return images

    @checks.typed
    def sample_images(self, num: int, *, seed: int | None = None, progress: Progress = silent) -> Images:
        """Generate labeled images to train on or to measure, on the CPU: those of `sample`, as bytes.

        They need a quarter of its memory, and of many (`memory.LARGEST`) none.

        Raises:
            InputError: If pixels are not finite, or neither memory nor disk has room.
        """
        checks.whole(num, "num")
        check_room(num * math.prod(self.image_shape), 1, f"{num:,} images", "Draw fewer.")
        pixels = zeros((num, *self.image_shape), torch.uint8)
        for rows, drawn in self._drawn(num, None, seed, _BATCH, Purpose.TRAINING, progress):
            if not bool(drawn.isfinite().all()):
                raise InputError("this generator makes pixels that are not finite: its training diverged.")
            pixels[rows] = to_uint8(drawn)
            let_go(pixels)
        return Images(pixels, self.positions(num), self.classes if self.num_classes else ())

    def _drawn(
        self,
        num: int,
        labels: Tensor | Sequence[int] | Sequence[str] | int | str | None,
        seed: int | None,
        batch_size: int,
        purpose: Purpose,
        progress: Progress,
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield positions and images, (B, C, H, W) on the CPU: of each the candidate that the teacher chooses."""
        checks.whole(batch_size, "batch_size", 1)
        chosen = self.positions(num) if labels is None else self._checked_labels(labels, num)
        done = 0
        for drawn in self._batches(num, chosen, seed, batch_size, purpose):
            best = torch.zeros(len(drawn), dtype=torch.int64)
            if self.teacher is not None and chosen is not None and self.candidates > 1:
                many = chosen[done : done + len(drawn)].repeat_interleave(self.candidates)
                odds = log_odds(self.teacher.logits(drawn.flatten(0, 1)), many)
                best = odds.view(len(drawn), -1).argmax(1).cpu()
            yield slice(done, done + len(drawn)), drawn[torch.arange(len(drawn)), best]
            done += len(drawn)
            progress("images drawn", done, num)

    @own_state()
    def sample_candidates(self, num: int, seed: int | None = None) -> Tensor:
        """Return all candidates of the images of ``sample(num, seed=seed)``, (num, candidates, C, H, W)."""
        return torch.cat(list(self._batches(num, self.positions(num), seed, _BATCH, Purpose.LOOKING)))

    def _batches(
        self, num: int, labels: Tensor | None, seed: int | None, batch_size: int, purpose: Purpose
    ) -> Iterator[Tensor]:
        """Yield candidates of images, (B, candidates, C, H, W) on the CPU, in eval mode and without gradients."""
        device, rng = next(self.parameters()).device, torch.Generator()
        if seed is None:
            rng.seed()
        else:
            rng.manual_seed(torch_seed(seed))
        temperature, cooled = self.temperatures(purpose), self._cooled(purpose)
        for start in range(0, num, LATENT_BLOCK):  # blocks of fixed size, so that row i never depends on ``num``
            latent = torch.randn(LATENT_BLOCK, self.candidates * self.latent_dim, generator=rng)[: num - start]
            factors = temperature.expand(len(latent), -1)
            if cooled is not None:
                factors = factors * (1 - cooled * torch.rand(LATENT_BLOCK, 1, generator=rng)[: num - start])
            for rows in torch.arange(start, start + len(latent)).split(max(batch_size // self.candidates, 1)):
                each = latent[rows - start].view(len(rows), self.candidates, self.latent_dim)
                each[:, :, self.shared] = each[:, :1, self.shared]
                z = (each * factors[rows - start, None]).flatten(0, 1)
                part = None if labels is None else labels[rows].repeat_interleave(self.candidates).to(device)
                modes = [(module, module.training) for module in self.modules()]
                self.eval()
                try:
                    with torch.no_grad():
                        images = self(z.to(device), part)
                finally:  # restores the mode of every submodule
                    for module, training in modes:
                        module.training = training
                yield images.view(len(rows), self.candidates, *self.image_shape).cpu()

    def temperature(self, purpose: Purpose) -> float:
        """Return how widely images are drawn for a purpose, in multiples of the spread that was trained."""
        taught = self.teacher is not None and self.image_shape[0] == 1
        return self.config.temperature_for(purpose, taught=taught)

    def temperatures(self, purpose: Purpose) -> Tensor:
        """Return the factors on the latent numbers of images that are drawn for a purpose, (latent_dim,)."""
        factors = torch.full((self.latent_dim,), self.temperature(purpose))
        factors[list(self.choosing)] = 1.0
        return factors

    def _cooled(self, purpose: Purpose) -> Tensor | None:
        """Return by how much of themselves the factors fall at most, (latent_dim,); None: each image has the same."""
        coolest = self.config.drawn.coolest
        if purpose != Purpose.TRAINING or coolest == 1:
            return None
        most = torch.full((self.latent_dim,), 1 - coolest)
        most[list(self.choosing)] = 0.0
        return most

    def _checked_labels(self, labels: Tensor | Sequence[int] | Sequence[str] | int | str, num: int) -> Tensor:
        """Return the positions of the classes that labels mean."""
        if not self.num_classes:
            raise labels_error("generator", 0)
        one = isinstance(labels, str) or not hasattr(labels, "__len__") or getattr(labels, "ndim", 1) == 0
        order, values = distinct([labels] if one else labels, 1 if one else num, "labels")
        return torch.tensor([position_of(value, self.classes) for value in values])[order].expand(num)
