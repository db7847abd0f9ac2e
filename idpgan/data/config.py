"""The [data] section of a config. Light: the command line reads it without PyTorch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from idpgan.config import Section
from idpgan.errors import ConfigError

Share = Annotated[float, Field(ge=0, lt=1)]


class DataConfig(Section):
    """Which images, and how they are split into public, private, holdout and test.

    Attributes:
        name: A source of `idpgan.data.load.SOURCES`: "digits", "mnist", "folder".
        root: Where the files lie; None means the environment variable IDPGAN_DATA, else ./data. For "folder" it is the
            folder of images itself and must be given.
        public_share: Share, in [0, 1), of the training images that is made public. They get no protection at all.
        confirm_public: Must be true where `public_share` is above 0.
        public_root: A separate folder of public images (layout as in `folder.py`; same classes and size). Nothing is
            then taken out of the private ones.
        holdout_share: Share, in [0, 1), of the training images that is never trained on: the non-members of attacks.
            With 0 there is no holdout and nothing to attack.
        image_size: Height and width in pixels that the images must have (they are never resized); None: as found.
        channels: 1 converts to grey, 3 to RGB (an alpha channel is dropped); None: as found, grey or RGB only.
    """

    name: str = "digits"
    root: Path | None = None
    public_share: Share = 0.0
    confirm_public: bool = False
    public_root: Path | None = None
    holdout_share: Share = 0.1
    image_size: Annotated[int, Field(ge=1)] | None = None
    channels: Literal[1, 3] | None = None

    @model_validator(mode="after")
    def _check_public(self) -> DataConfig:
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
    def data_root(self) -> Path:
        """Folder of the data sets: `root`, else the environment variable IDPGAN_DATA, else ./data."""
        return (self.root or Path(os.environ.get("IDPGAN_DATA") or "data")).expanduser()
