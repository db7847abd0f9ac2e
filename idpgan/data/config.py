"""The [data] section of a config. This module does not import PyTorch, so that the command line starts fast."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from idpgan.config import Section
from idpgan.errors import ConfigError

Share = Annotated[float, Field(ge=0, lt=1)]
License = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 .,:/()+-]{0,99}$")]  # a name, such as cc-by-4.0
MOST_ATTRIBUTES = 6  # in data.label: 2^6 = 64 classes
MOST_SIDE = 16_384  # px of an image side; limits decompression bombs
MOST_IMAGES = 100_000_000
WHERE_FILES_LIE = ("root", "public_root", "public_generator")  # paths on the curator's machine: never released
WALKED = ("folder", "face-folder")  # sources that read whatever lies below their root
OWN_KEYS = {  # key -> the sources that accept it
    "layout": ("face-folder",),
    "classes": ("folder", "arrays"),
    "num_images": ("faces", "folder", "face-folder", "fonts", "arrays"),
    "num_people": ("faces", "folder", "face-folder", "arrays"),
}


def folders_of(data: Mapping[str, Any]) -> list[Path]:
    """Return the folders of images that [data] names, of which every file is read."""
    named = data.get("root") if data.get("name") in WALKED else None, data.get("public_root")
    return [Path(root).expanduser() for root in named if root]


class DataConfig(Section):
    """Which images, and how they are split into public, private, holdout and test.

    What is public about a folder of images (``num_images``, ``image_size``, ``channels``, ``classes``, ``num_people``)
    is declared here and never derived from the images. "folder" and "face-folder" need these keys, and refuse a folder
    that contradicts them. Other sources know them as constants of their format.

    Attributes:
        name: A source: a file of `idpgan.data.sources`, "_" being "-"; `idpgan doctor` lists those that need no root.
        root: Where the files lie; None means the environment variable IDPGAN_DATA, else ./data. For "folder" it is the
            folder of images itself and must be given; for "arrays", the file that `idpgan.fit` wrote.
        public_share: Share, in [0, 1), of the training images that is made public. They get no protection at all.
            Refused where nothing reads them.
        confirm_public: Must be true where `public_share` is above 0. Of a `public_root` and unit person older configs
            say by it that nobody is in both folders; say so by `public_disjoint`.
        public_disjoint: Declares that nobody of the private images is on those of `public_root`, or among those that a
            release was made from which is named as public. Without it the charges of such a release count; see
            docs/reference/totals.md.
        public_root: A separate folder of public images (layout as in `folder.py`; same classes and size), or an npz.
            Nothing is then taken out of the private ones. Images that this package released or drew are known by the
            files beside them.
        public_license: License of the images of ``public_root``, as whoever owns them states it: printed before they
            are used, and on the card.
        public_generator: Folder of a released generator of this package: the simulator of ``model.simulator =
            "generator"``, or what is adapted with ``model.trained``, which a folder of `diffusers` may be too.
        public: "faces" draws the public images, in the size of the private ones: nobody's privacy, and nothing is taken
            out of the private ones. "fonts" are digits of a simulated pen, "dead-leaves" shapes on one another, for
            photos of everything.
        public_images: Drawn public images, one of each person; None: 6,000.
        public_crop: Of "faces": side of what is kept around the face, as a share of the drawn picture's; None: 1, the
            whole.
        public_labels: What a public picture of each class looks like, for example ``{happiness = "smiling", neutral =
            "not smiling"}``: an attribute of drawn `faces`, a digit, a column of 1 and 0 in the metadata.csv of
            `public_root` (`idpgan people` writes such ones), or "not" and one of these; or which class of
            `public_generator` it is. {}: a `public_root` whose pictures serve every class. None: drawn ones are
            unlabeled, but for "fonts" beside classes that are called as digits; a `public_root` has the same classes.
        holdout_share: Share, in [0, 1), of the training images that is never trained on: the non-members of attacks.
            With 0 there is no holdout and nothing to attack.
        image_size: Height and width in pixels that the images must have, one number for both or [height, width]. Files
            are never resized: one of another size stands as a null record. None: the source's own. Of "mnist": 32
            puts black around.
        channels: 1 converts to grey, 3 to RGB (an alpha channel is dropped); None: the source's own.
        classes: Names of the class folders of a "folder", or values of the column `label` of its metadata.csv, in the
            order of the labels; [] for unlabeled images. An image of another class stands as a null record.
        taken: What of a folder or of images in memory nobody declared, so that `idpgan.fit` took it from them.
        keep_names: Whether classes that seem to be people (they share names with the people of the set, are as many,
            are the folders of a known face database, or are names that their files repeat, as in LFW) keep their names
            in a release, which calls them class-0, ... else.
        label: A column of metadata.csv, with its `classes`; or, without them, attributes (1 or 0) whose combinations
            are the classes, at most 6. Empty: the source's own classes, which in a metadata.csv are those of the column
            ``label``.
        split_by: "image" deals images out to the parts, "identity" people: nobody is then in two parts, and the shares
            are shares of people. With "image" and several images a person, holdout and test show people who are in
            the private part too: with ``privacy.unit = "person"`` they are not non-members.
        layout: Layout of a "face-folder", None: recognized; see `idpgan.data.sources.face_folder`.
        num_images: Image files of a folder, those of its ``test/`` not counted. Of "faces" and "fonts": to draw, None:
            10,000.
        license: License of the private images, as whoever owns them states it, for the card; None = unknown.
        num_people: People in a "face-folder", or in the column ``person`` of a metadata.csv, or photos in its column
            ``cut_from``. Of "faces": to draw,
            None: 1,000.
    """

    name: str = "digits"
    root: Path | None = None
    public_share: Share = 0.0
    confirm_public: bool = False
    public_disjoint: bool = False
    public_root: Path | None = None
    public_license: License | None = None
    public_generator: Path | None = None
    public: Literal["faces", "fonts", "people", "dead-leaves"] | None = None  # "people": see `drawn`
    public_images: Annotated[int, Field(ge=1, le=MOST_IMAGES)] | None = None
    public_crop: Annotated[float, Field(ge=0.25, le=1)] | None = None
    public_labels: dict[str, str] | None = None
    holdout_share: Share = 0.1
    image_size: int | tuple[int, int] | None = None
    channels: Literal[1, 3] | None = None
    classes: tuple[str, ...] | None = None
    taken: tuple[Literal["label column", "classes", "size", "channels"], ...] = ()
    keep_names: bool = False
    label: tuple[str, ...] = ()
    split_by: Literal["image", "identity"] = "image"
    layout: str | None = None
    num_images: Annotated[int, Field(ge=1, le=MOST_IMAGES)] | None = None
    num_people: Annotated[int, Field(ge=1, le=MOST_IMAGES)] | None = None
    license: License | None = None

    @field_validator("label", mode="before")
    @classmethod
    def _read_label(cls, label: Any) -> Any:
        """Accept one name for a list of one."""
        return (label,) if isinstance(label, str) else label

    @model_validator(mode="after")
    def _check_labels_and_shape(self) -> DataConfig:
        if len(self.label) > MOST_ATTRIBUTES:
            raise ConfigError(
                f"label names {len(self.label)} attributes, which makes {2 ** len(self.label)} classes. Name at most "
                f"{MOST_ATTRIBUTES} ({2**MOST_ATTRIBUTES} classes)."
            )
        twice = sorted({name for name in self.label if self.label.count(name) > 1})
        if twice:
            raise ConfigError(f"label names '{twice[0]}' twice. Name each attribute once.")
        if self.classes and len(self.label) > 1:
            raise ConfigError(
                f"label names {len(self.label)} attributes, whose combinations are the classes, and classes lists "
                f"{len(self.classes)} values. Name one column as label, or leave classes out."
            )
        for key, names in OWN_KEYS.items():
            if getattr(self, key) is not None and self.name not in names:
                owners = " or ".join(f"'{name}'" for name in names)
                raise ConfigError(
                    f"{key} = {getattr(self, key)} is a key of name = {owners}, not of '{self.name}'. Leave it out."
                )
        if self.sides is not None and not all(1 <= side <= MOST_SIDE for side in self.sides):
            raise ConfigError(
                f"image_size = {self.image_size} is not a size: write a side, 1 .. {MOST_SIDE} px, or [height, width]."
            )
        twice = sorted({name for name in self.classes or () if (self.classes or ()).count(name) > 1})
        if twice:
            raise ConfigError(f"classes names '{twice[0]}' twice. Name each class once.")
        return self

    @model_validator(mode="after")
    def _check_public(self) -> DataConfig:
        named = self.public_generator or self.public_root
        keys = ["public_images", "public_crop", *([] if named else ["public_labels"])]
        own = [key for key in keys if getattr(self, key) is not None]
        if own and self.public is None:
            drawn = '"faces", "fonts" or "dead-leaves"'
            raise ConfigError(f"{own[0]} is for drawn images, public = {drawn}. Set that, or leave {own[0]} out.")
        if self.public_license is not None and self.public_root is None:
            raise ConfigError("public_license is that of the images of public_root. Set that, or leave it out.")
        if self.public not in (None, "faces") and self.public_crop is not None:
            raise ConfigError(f'public_crop is for public = "faces": {self.public} are cut already. Leave it out.')
        if self.public is not None and (self.public_share > 0 or self.public_root is not None):
            other = "public_share" if self.public_share > 0 else "public_root"
            raise ConfigError(f'public = "{self.public}" and {other} exclude each other. Leave one of them out.')
        if self.public_share > 0 and not self.confirm_public:
            raise ConfigError(
                f"public_share = {self.public_share:g} makes that share of the private images public: these images get "
                "no protection at all. If that is what you want, set confirm_public = true; otherwise set "
                "public_share = 0, or name a separate folder of public images as public_root."
            )
        if self.public_share > 0 and self.public_root is not None:
            raise ConfigError(
                f"public_share = {self.public_share:g} and public_root = '{self.public_root}' exclude each other: "
                "with a separate folder of public images none is taken out of the private ones. Set public_share = 0."
            )
        if self.public_share + self.holdout_share >= 1:
            raise ConfigError(
                f"public_share + holdout_share = {self.public_share + self.holdout_share:g} must be below 1: "
                "no private image would be left. Lower one of them."
            )
        return self

    @property
    def looks(self) -> Mapping[str, str] | None:
        """What pictures of a `public_root` look like; None where they have classes."""
        return self.public_labels if self.public_root and not self.public_generator else None

    @property
    def as_found(self) -> str:
        """What holds because of `taken`; empty where all was declared."""
        shown = ", ".join(self.taken)
        return shown and f"taken from the images: {shown}; the guarantee holds for data sets that agree in them"

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names in `label` whose combinations are the classes; none for one column with declared `classes`."""
        return () if self.classes else self.label

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width of `image_size`."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    @property
    def data_root(self) -> Path:
        """Folder of the data sets: `root`, else the environment variable IDPGAN_DATA, else ./data."""
        return (self.root or Path(os.environ.get("IDPGAN_DATA") or "data")).expanduser()
