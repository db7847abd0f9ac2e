"""Generated images as a torch data set, read from an export or drawn now."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from idpgan.checks import typed, whole
from idpgan.data.images import Images, notebook_png, numbered_by, png_bytes, to_float
from idpgan.data.intake import gathered
from idpgan.errors import DataError, InputError
from idpgan.files import MOST_TEXT_BYTES, parse_json, read_plain
from idpgan.metrics.source import kind_of
from idpgan.models.config import Purpose
from idpgan.models.generator import Generator
from idpgan.privacy.guarantee import PrivacyReport
from idpgan.release.contained import report_of_export
from idpgan.release.export import FORMAT, MANIFEST, manifest_of
from idpgan.release.generator import load_generator
from idpgan.release.mark import KEY as MARK
from idpgan.release.mark import DigitalSource, of_pictures
from idpgan.version import made_with

DRAWN = 1000  # default number of images drawn from a generator


class SyntheticDataset(Dataset[Any]):
    """Generated images and their labels, for a torch DataLoader.

    An item is ``(image, label)``, the label an int, or the image alone where there are no classes. All images are held
    in memory, as bytes.

    Args:
        path: What `idpgan sample` wrote, a folder of PNGs or an ``.npz`` file; or a run, a release folder or its
            generator.safetensors, from which images are drawn now, the classes in turn. Or a generator itself.
        transform: Gets an image, uint8 (C, H, W); None = `idpgan.data.images.to_float`, float32 in [-1, 1].
        num: Images to draw from a generator, for training; None = 1,000. An export has its own number.
        seed: Of a generator's images; None = fresh entropy.

    Attributes:
        images: uint8 (N, C, H, W).
        labels: int64 (N,), indices into ``classes``; None where there are none.
        classes: Names.
        privacy: What protects the training images, as the release states it; None where nothing says so.

    Raises:
        InputError: If nothing can be read, or ``num`` or ``seed`` is given for images that are there already.

    Example:
        >>> data = SyntheticDataset("checkpoints/digits-aggregate-eps10", num=20, seed=1)
        >>> image, label = data[3]
        >>> tuple(image.shape), data.classes[label], data.privacy.proven.finite
        ((1, 8, 8), '3', True)
    """

    @typed
    def __init__(
        self,
        path: str | os.PathLike[str] | Generator,
        transform: Callable[[Tensor], Any] | None = None,
        *,
        num: int | None = None,
        seed: int | None = None,
        module: Any = None,
    ) -> None:
        held = path if isinstance(path, Generator) else None
        source = Path() if isinstance(path, Generator) else Path(path)
        drawn = held is not None or kind_of(source) == "generator"
        if not drawn and (num is not None or seed is not None):
            raise InputError(f"{path} holds images already: num and seed are for a generator. Leave them out.")
        self.privacy: PrivacyReport | None
        if drawn:
            generator = held or load_generator(source, module)
            num = DRAWN if num is None else whole(num, "num", 1)
            made, self.privacy = generator.sample_images(num, seed=seed), generator.privacy
            self._made_by = of_pictures(generator.config, False, Purpose.TRAINING)
        else:
            made, self.privacy, self._made_by = _exported(source)
        self.images, self.labels, self.classes = made.images, made.labels, made.classes
        self.transform = to_float if transform is None else transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        """Return ``(image, label)``, or the image where there are no classes."""
        image = self.transform(self.images[index])
        return image if self.labels is None else (image, int(self.labels[index]))

    def as_images(self) -> Images:
        """Return all of them at once."""
        return Images(self.images, self.labels, self.classes)

    def to_dataset(self) -> Any:
        """Return them as a Hugging Face `Dataset`, split "train", with the columns image and label, a ClassLabel.

        Its ``info.description`` says what made the images, and what protects those that taught the generator.

        Raises:
            InputError: If the package datasets is not installed.
        """
        try:
            import datasets
        except ImportError as error:
            raise InputError('to_dataset needs the package datasets: pip install "idpgan[datasets]"') from error
        columns: dict[str, Any] = {"image": [{"bytes": png_bytes(image)} for image in self.images]}
        features: dict[str, Any] = {"image": datasets.Image()}
        if self.labels is not None:
            columns["label"] = self.labels.tolist()
            features["label"] = datasets.ClassLabel(names=list(self.classes))
        made = datasets.Dataset.from_dict(columns, features=datasets.Features(features), split="train")
        known = f"proven {self.privacy.stated}" if self.privacy else "what protects the training images is not known"
        what = f"Images ({self._made_by.uri})" if self._made_by else "Images"
        made.info.description = f"{what}, drawn by idpgan {made_with()}: {known}."
        return made

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.images.shape[1:]))
        classes = f"{len(self.classes):,} classes" if self.classes else "unlabeled"
        proven = f"proven {self.privacy.stated}" if self.privacy else "privacy unknown"
        return f"<SyntheticDataset: {len(self):,} images of {shape}, {classes}, {proven}>"

    def _repr_png_(self) -> bytes | None:
        """Show the first 64 images in a notebook."""
        return notebook_png(self.images)


def _exported(source: Path) -> tuple[Images, PrivacyReport | None, DigitalSource | None]:
    """Read an export: the order of the classes, the report and what made the images stand in its manifest."""
    path = manifest_of(source)
    manifest: dict[str, Any] = {}
    if path.is_file():
        try:
            manifest = parse_json(read_plain(path, MOST_TEXT_BYTES, follow=True))
        except ValueError as error:
            raise InputError(f"{path} is damaged ({error}). Export the images again.") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise InputError(f"{path} is not a manifest of the format {FORMAT!r}. Export the images again.")
    report = report_of_export(manifest, MANIFEST)
    mark = manifest.get(MARK)
    stated = mark.get("digital_source_type") if isinstance(mark, dict) else None
    made_by = next((made for made in DigitalSource if made.uri == stated), None)
    images = gathered(source, private=False)
    counts = manifest.get("classes")
    if images.labels is None or not counts:
        return images, report, made_by
    if not isinstance(counts, dict) or not set(images.classes) <= set(counts):
        raise DataError(f"{path} does not name all classes of the images beside it. Export them again.")
    return numbered_by(images, tuple(counts)), report, made_by  # an export may lack some classes of the manifest
