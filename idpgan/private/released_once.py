"""Methods that read private images once: one release on the ledger, and all that follows is post-processing.

`prepare` pays for the release, `_release` makes it, and `_take_released` goes on from what was released, now or in an
earlier part of the run. Such a method still costs what its steps cost, if it has any that read (diffusion).

Methods whose unit is an image, a person or a photo: their [privacy], and what these units require of the data.

A person is all images of one identity; a photo is all faces that `idpgan prepare --faces` cut out of it. Each is a
public list of rows, so what is proven of a person with at most k images holds of a photo with at most k faces: whatever
one photo shows, found faces and null records alike, stands in its own rows and in no other one (`idpgan.data.eyes`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from idpgan.config import Keys, key
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.errors import ConfigError
from idpgan.privacy import Event, Relation, Unit
from idpgan.training.config import CHOOSE_DELTA
from idpgan.training.method import Method
from idpgan.training.plan import RunPlan, Signal

_SMALLEST = 256  # pixels of what is a picture
_IN_PLACE = ("faces", "handwriting", "pen")  # ways of drawing what lies in one place of all images
_RECORDS = {Unit.PERSON: "people", Unit.PHOTO: "photos"}


KEYS: Keys = {
    "epsilon": key(float, ..., "Of all that is released, whatever is trained from it.", gt=0),
    "delta": key(
        float,
        ...,
        "Below 1/N for N private images, usually `min(1e-5, 1 / (10 N))`; 0 for the pure guarantee of Laplace noise.",
        ge=0,
        lt=1,
        hint=CHOOSE_DELTA,
    ),
    "unit": key(
        Literal[Unit.IMAGE, Unit.PERSON, Unit.PHOTO],
        Unit.IMAGE,
        '"image", "person" where the data names identities, or "photo" where faces were cut out of photos.',
    ),
    "relation": key(Relation, Relation.ZERO_OUT, "How neighbors differ."),
    "most_per_person": key(
        int,
        20,
        "Public cap on the images of a person or photo; further ones are left out, the first by index stay.",
        ge=1,
        le=1_000_000,
    ),
}
"""[privacy] of a release of sums or votes: epsilon, delta, unit and relation are one statement on all of it."""


def cap_of(privacy: Any) -> int | None:
    """Return how many images of one person or photo count, for these units; None for unit image."""
    cap: int = privacy.most_per_person
    return cap if privacy.unit.of_images else None


def terms(privacy: Any) -> dict[str, Any]:
    """Return what a release of sums or votes is calibrated to: the arguments of `CellSums.calibrated`."""
    adjacency = {"unit": privacy.unit, "relation": privacy.relation, "most_per_unit": cap_of(privacy) or 1}
    return {"epsilon": privacy.epsilon, "delta": privacy.delta, **adjacency}


def refuse_other_generator(config: Any, generator: str) -> None:
    """Refuse any generator but the one that the release fills."""
    if config.model.generator != generator:
        raise ConfigError(
            f"model.generator = {config.model.generator}, but method {config.method.name} trains no network: set "
            f'model.generator = "{generator}".'
        )


def refuse_shared_people(config: Any) -> None:
    """Refuse unit person unless everybody has all images in one part: one public image voids the guarantee."""
    unit = config.privacy.unit
    if not unit.of_images:
        return
    if config.data.split_by != "identity":
        raise ConfigError(
            f'privacy.unit = {unit}, but data.split_by = "image" deals the images of one {unit} to several parts, '
            'and nothing protects those in the public one. Set data.split_by = "identity".'
        )
    if unit is Unit.PHOTO:
        return
    if config.data.public_root is not None and not (config.data.confirm_public or config.data.public_disjoint):
        raise ConfigError(
            f"privacy.unit = person with data.public_root = '{config.data.public_root}': people of the private "
            "images who are on public ones too have no guarantee, and nothing here can tell. If nobody of the "
            "private folder is on the public images, declare it with data.public_disjoint = true."
        )


def check_people(plan: RunPlan) -> None:
    """Refuse unit person where the data has no identities, and unit photo where nothing was cut out of photos."""
    if plan.unit is Unit.PERSON and (not plan.shape.has_people or plan.shape.of_photos):
        raise ConfigError(
            "privacy.unit = person, but the data set names no identities. Use one with person labels, or "
            f"unit = {'photo' if plan.shape.of_photos else 'image'}."
        )
    if plan.unit is Unit.PHOTO and not plan.shape.of_photos:
        raise ConfigError(
            "privacy.unit = photo, but the rows of the data set are not faces of photos. Make them so (idpgan "
            "prepare --align eyes --faces 3), or use unit = image."
        )


def capped(config: Any) -> list[str]:
    """Return what a report has to state about the cap on a person's images."""
    cap, unit = cap_of(config.privacy), config.privacy.unit
    return [] if cap is None else [f"the cap of {cap} images of one {unit}"]


def signal_of(plan: RunPlan, noise: float, source: str, std: float | None = None) -> Signal:
    """Return the signal-to-noise figure of a release, by the noise on a class.

    Of second moments it also says how many numbers q of an image stand above the noise: with its variance shared evenly
    among them, ``1 / q = sqrt(2 q R) s / N`` for R classes (`synthesis.starter`).

    Args:
        noise: Its expected length.
        std: Its standard deviation on each number of a class, in records; None where no moments are released.

    A person's images weigh as much as one image, so with a cap of k there are at least N / k records.
    """
    cap = cap_of(plan.config.privacy)
    records, model = plan.shape.num_private / (cap or 1) / plan.rows, plan.config.model
    pixels = math.prod(plan.shape.image_shape[1:])
    known = std and pixels >= _SMALLEST and model.drawing != "public-photos"  # those are pictures, whatever the noise
    numbers = (records * math.sqrt(plan.rows / 2) / std) ** (2 / 3) if known and std else None
    in_place = model.drawing in _IN_PLACE or model.moved > 0
    record = "images" if cap is None else _RECORDS[plan.unit]
    return Signal(records, plan.rows, noise, source, record, numbers=numbers, in_place=in_place)


def shares(private: Images, cap: int | None) -> tuple[Tensor, Tensor | None]:
    """Return the index of the images that count, and every image's share of its person (None for unit image).

    A person's first ``cap`` positions count, each for 1 / (number of them): a rule within the person, so that no
    person's shares depend on anybody else's images. Positions and their people are public; null records have positions
    too, so that the shares of the others do not depend on which images are there.
    """
    everything = torch.arange(len(private))
    if cap is None or private.identities is None:
        return everything, None
    _, person, counts = private.identities.cpu().unique(return_inverse=True, return_counts=True)
    order = person.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(order)
    rank[order] = everything - starts[person[order]]  # 0 for a person's first image
    return everything[rank < cap], counts.clamp(max=cap).double().reciprocal()[person]


def refuse_people_in_two_parts(unit: Unit, split: Split) -> None:
    """Raise a `ConfigError` for unit person if one of the private part's people has images elsewhere.

    The guarantee would not cover that person. Null records count too.
    """
    private = split.private.identities
    for name in ("public", "holdout", "test"):
        others = getattr(split, name).identities
        if not unit.of_images or private is None or others is None:
            continue
        shared = int(torch.isin(private.unique(), others.unique()).sum())
        if shared:
            raise ConfigError(
                f"privacy.unit = {unit}, but {shared} {_RECORDS[unit]} of the private part have images in the {name} "
                'part too, where nothing protects them. Set data.split_by = "identity".'
            )


class ReleasedOnce(Method):
    """A method whose `prepare` pays for one release of what is read of the private images, and keeps its result.

    Args:
        split: The private part is read in `prepare` and dropped there; the public part is read freely.
        ledger: Charged once, together with what that read releases.
        noise: Source of noise and coins; None = the operating system's.
    """

    _private: Images | None

    def _set_up(self, split: Split) -> None:
        refuse_people_in_two_parts(self.plan.unit, split)
        self._private, self._public = split.private, split.public
        self._released: dict[str, Tensor] = {}

    @property
    def release_events(self) -> Sequence[Event]:
        """The price of the release: all that is planned, where nothing else is."""
        events: Sequence[Event] = self.plan.events
        return events

    def prepare(self) -> None:
        """Release what `release_events` pay for, drop the private images, and go on from what was released."""
        released = self.ledger.release(self.release_events, self._release, noise=self.noise)
        self.noise.ratchet()
        self._take_released(released)

    def _release(self) -> dict[str, Tensor]:
        """Read the private images, and return what is released of them."""
        raise NotImplementedError

    def _take_private(self) -> Images:
        """Hand the private images over, once."""
        private, self._private = self._private, None
        if private is None:
            raise RuntimeError("the private images were dropped after the release.")
        return private

    def _take_released(self, released: dict[str, Tensor]) -> None:
        """Take what was released, now or in an earlier part of the run; the private images are no longer needed."""
        self._released, self._private = released, None

    def state(self) -> dict[str, Any]:
        """Return what was released, if anything, whether it is private, and what `SAVED` names."""
        return {**super().state(), "prepared": self._released or None, "private_noise": self.noise.private}

    def load_state(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned, and refuse a release that is less private than this run says.

        Raises:
            ConfigError: If the saved release was made with a fixed noise seed, and this run's noise is secret.
        """
        self._take_released(state.get("prepared") or {})
        super().load_state(state)
        if self.noise.private and not state.get("private_noise", True):
            raise ConfigError("the saved release was made with a fixed noise seed and is not private; start a new run.")
