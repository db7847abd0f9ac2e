"""What draws pictures from traits, for method `traits`: portraits of `idpgan people`, or digits of the pen."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from idpgan import portraits
from idpgan.data import fonts
from idpgan.data.annotations import MASKS, Annotations
from idpgan.data.config import DataConfig
from idpgan.data.drawn import PAPERS, PUBLIC_SEED
from idpgan.data.images import to_uint8
from idpgan.device import zeros
from idpgan.errors import ConfigError
from idpgan.models.config import ModelConfig
from idpgan.models.simulators import FontSimulator, uniform_of
from idpgan.progress import Progress, silent

Traits = Mapping[str, Tensor]  # (N, ...) each

_STEP = 0.06  # of the uniform numbers behind the traits of a picture that is drawn anew near another
_DIGITS = 20_000  # of the pen, in the pool
_AT_ONCE = 500


class Renderer(abc.ABC):
    """A public program that draws pictures, and those that it has drawn.

    Attributes:
        what: The pool is, in words.
        asked: The statistics (`models.summary_statistics`) that its pictures answer.
    """

    what: str
    asked: tuple[str, ...]

    def __init__(self, data: DataConfig, image_shape: tuple[int, int, int]) -> None:
        self.data, self.image_shape = data, image_shape

    @abc.abstractmethod
    def check(self, classes: Sequence[str]) -> None:
        """Raise `ConfigError` for what cannot be drawn, or is of no use; draws nothing."""

    @abc.abstractmethod
    def pool(self, progress: Progress = silent) -> tuple[Tensor, Traits]:
        """Return pictures, uint8 (N, C, H, W), and their traits."""

    @abc.abstractmethod
    def rows_of(self, traits: Traits, classes: Sequence[str]) -> list[Tensor]:
        """Return which pictures serve each class, int64; without classes, or where none says its look, all of them.

        Raises:
            ConfigError: If nothing says what a class looks like, or no picture looks so.
        """

    @abc.abstractmethod
    def near(self, traits: Traits, rng: torch.Generator) -> Traits:
        """Return traits near given ones; what is chosen of a few things stays."""

    @abc.abstractmethod
    def draw(self, traits: Traits, seed: int, device: torch.device, progress: Progress = silent) -> Tensor:
        """Draw pictures, uint8 (N, C, H, W)."""

    @abc.abstractmethod
    def told(self, traits: Traits) -> portraits.Traits:
        """Return the traits that a card tells in words, (N,) each."""

    def placed(self, traits: Traits, seed: int) -> Annotations | None:
        """Return where the parts of pictures lie that `draw` draws; None where the pool does not say it."""
        return None


class Portraits(Renderer):
    """The folder `data.public_root`, which `idpgan people` has drawn."""

    what, asked = "the portraits", ("edges", "light", "sharpness")

    @property
    def _root(self) -> Path:
        return (self.data.public_root or Path()).expanduser()  # `check` refuses a run without

    def check(self, classes: Sequence[str]) -> None:
        """Refuse images that no portrait is like, and a machine that draws none."""
        (channels, height, width), (least, most) = self.image_shape, portraits.SIZES
        if self.data.public_root is None or not self._root.is_dir():
            raise ConfigError(
                "method traits needs portraits with their traits: draw a folder (idpgan people PORTRAITS --num 12000 "
                f"--size {height}{' --color' if channels == 3 else ''}) and name it as data.public_root. Digits are "
                'drawn by model.simulator = "fonts".'
            )
        if height != width or not least <= height <= most:
            raise ConfigError(
                f"method traits draws squares of {least} to {most} px, and the images are {height} x {width}. Bring "
                "them to one (idpgan prepare PHOTOS NEW --size 48 --align eyes)."
            )
        portraits.sample(1)

    def pool(self, progress: Progress = silent) -> tuple[Tensor, Traits]:
        """Read the folder."""
        return portraits.read(self._root, self.image_shape, progress)

    def rows_of(self, traits: Traits, classes: Sequence[str]) -> list[Tensor]:
        """Choose by the looks of data.public_labels, or by attributes."""
        data, everything = self.data, torch.arange(len(traits["smiling"]))
        if not classes or data.looks == {}:
            return [everything] * max(len(classes), 1)
        if data.attributes:
            bits = sum((traits[name].long() << at for at, name in enumerate(_known(data.attributes))), everything * 0)
            found = [bits == row for row in range(len(classes))]
            looks: Sequence[str] = classes
        else:
            given = data.looks or {}
            looks = [given.get(name, "") for name in data.classes or classes]
            columns = [traits[name].bool() for name in _known([look.removeprefix("not ") for look in looks])]
            found = [column != look.startswith("not ") for look, column in zip(looks, columns, strict=True)]
        for look, own in zip(looks, found, strict=True):
            if not own.any():
                raise ConfigError(f"none of the {len(everything):,} portraits is '{look}'. Draw more: idpgan people.")
        return [torch.nonzero(own)[:, 0] for own in found]

    def near(self, traits: Traits, rng: torch.Generator) -> Traits:
        """See `portraits.near`."""
        return portraits.near(dict(traits), _STEP, rng)

    def draw(self, traits: Traits, seed: int, device: torch.device, progress: Progress = silent) -> Tensor:
        """See `portraits.draw`."""
        channels, side, _ = self.image_shape
        return portraits.draw(dict(traits), side, channels, seed, device=device, progress=progress)

    def told(self, traits: Traits) -> portraits.Traits:
        """Return all."""
        return dict(traits)

    def placed(self, traits: Traits, seed: int) -> Annotations | None:
        """See `portraits.place`; for a folder that was drawn with landmarks."""
        return portraits.place(dict(traits), self.image_shape[1], seed) if (self._root / MASKS).is_file() else None


class Pen(Renderer):
    """Digits of the simulator "fonts"; their traits are the numbers that it draws them from."""

    what, asked = PAPERS["fonts"], ("edges",)  # the mean light of a digit is a ghost

    def check(self, classes: Sequence[str]) -> None:
        """Refuse sizes and classes that are no digits', and public images, of which none is looked at."""
        FontSimulator(self.image_shape)
        self._known(classes)
        given = [f"data.{name}" for name in ("public", "public_root") if getattr(self.data, name) is not None]
        if given:
            raise ConfigError(f'{given[0]} is of no use: model.simulator = "fonts" draws its own digits. Leave it out.')

    def pool(self, progress: Progress = silent) -> tuple[Tensor, Traits]:
        """Draw the same digits for every data set."""
        rng = torch.Generator().manual_seed(PUBLIC_SEED)
        traits = {"numbers": torch.randn(_DIGITS, FontSimulator.numbers, generator=rng)}
        return self.draw(traits, 0, torch.device("cpu"), progress), traits

    def rows_of(self, traits: Traits, classes: Sequence[str]) -> list[Tensor]:
        """Choose by the digit that a class is called."""
        pen, numbers = FontSimulator(self.image_shape), traits["numbers"]
        found = [torch.nonzero(pen.has_look(numbers, look))[:, 0] for look in self._known(classes)]
        return found or [torch.arange(len(numbers))]

    def near(self, traits: Traits, rng: torch.Generator) -> Traits:
        """Vary the numbers, of which normal ones have uniform ones behind them: the step is that in their middle."""
        numbers, pen = traits["numbers"], FontSimulator(self.image_shape)
        fresh = torch.randn(numbers.shape, generator=rng)
        return {"numbers": pen.vary(numbers, fresh, _STEP * math.sqrt(2 * math.pi))}

    def draw(self, traits: Traits, seed: int, device: torch.device, progress: Progress = silent) -> Tensor:
        """Draw the digits: their numbers say everything, and the seed nothing."""
        pen, numbers = FontSimulator(self.image_shape).to(device), traits["numbers"].to(device)
        images = zeros((len(numbers), *self.image_shape), torch.uint8, device)
        for start in range(0, len(numbers), _AT_ONCE):
            images[start : start + _AT_ONCE] = to_uint8(pen(numbers[start : start + _AT_ONCE]))
            progress("draw digits", min(start + _AT_ONCE, len(numbers)), len(numbers))
        return images

    def told(self, traits: Traits) -> portraits.Traits:
        """Return how the hand is: slant, thickness and so on."""
        return fonts.hand_of(uniform_of(traits["numbers"]))

    def _known(self, classes: Sequence[str]) -> Sequence[str]:
        """Refuse a class that is no digit."""
        if odd := sorted({*classes} - {*FontSimulator.looks}):
            raise ConfigError(
                f"'{odd[0]}' is no digit, as model.simulator = \"fonts\" draws them. Faces are drawn by portraits: "
                "leave it out, and name a folder of portraits as data.public_root."
            )
        return classes


def renderer_of(data: DataConfig, model: ModelConfig, image_shape: tuple[int, int, int]) -> Renderer:
    """Return what draws the pictures of a run: the pen for simulator "fonts", else portraits."""
    return (Pen if model.simulator == FontSimulator.name else Portraits)(data, image_shape)


def _known(names: Sequence[str]) -> Sequence[str]:
    """Refuse a look that is no yes or no of portraits."""
    for odd in set(names) - set(portraits.YES_OR_NO):
        raise ConfigError(
            f"'{odd}' is no look of portraits, which are {', '.join(portraits.YES_OR_NO)}. Say in data.public_labels "
            'what each class looks like, for example {happy = "smiling", neutral = "not smiling"}; {}: all serve each.'
        )
    return names
