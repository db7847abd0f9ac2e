"""What a publisher's release was made with: its charges and its report follow from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import pydantic

from idpgan.methods import methods_of
from idpgan.privacy.guarantee import Unit, check_delta
from idpgan.publish.plan import PublicationPlan, checked_options, plan_release
from idpgan.release.settings import ImagesTable


class PublicationTable(ImagesTable):
    """The settings of a release of published images; ``method`` is a name in `METHODS`.

    Attributes:
        epsilon: What was asked for, or what the method claims.
        delta: Of the guarantee.
        unit: What one neighbor changes.
        shape: (m, n) of each image; (3, m, n) for color.
        options: Of the method; one that is left out has its default.
    """

    epsilon: float = pydantic.Field(gt=0)
    delta: float = pydantic.Field(ge=0, lt=1)
    unit: str

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        info = methods_of("publisher").get(self.method)
        if info is None or self.unit not in info.units:
            raise ValueError(f"method = {self.method!a} with unit = {self.unit!a} is not a publisher.")
        if len(self.shape) == 3 and self.shape[0] != 3:
            raise ValueError(f"shape = {self.shape} must be [m, n], or [3, m, n] for color.")
        if not math.isfinite(self.epsilon) or min(self.shape) < 1:
            raise ValueError(f"epsilon = {self.epsilon:g} must be finite, and shape = {self.shape} have pixels.")
        check_delta(self.delta, self.num, "delta")
        return self

    def plan(self) -> PublicationPlan:
        """Return the release, planned and calibrated again."""
        options = checked_options(self.method, self.options)
        return plan_release(self.method, self.shape, Unit(self.unit), self.epsilon, self.delta, options)

    def problems(self, described: Mapping[str, Any]) -> list[str]:
        """Compare number, color and size of the images."""
        *channels, height, width = self.shape
        if (described["num"], described["image_shape"]) != (self.num, [*(channels or [1]), height, width]):
            return [
                f"the images are not {self.num:,} {'color' if channels else 'grey'} ones of {height} x {width} pixels."
            ]
        return []
