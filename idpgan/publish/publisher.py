"""`release`, the only entry point to all publishers, with its checks and its result."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan.checks import typed
from idpgan.config import build
from idpgan.data.images import notebook_png
from idpgan.errors import InputError
from idpgan.methods import METHODS
from idpgan.privacy import Event, Ledger, Noise, PrivacyReport, Relation, Unit
from idpgan.publish.plan import PublicationPlan, PublicationTable, checked_options, load_publisher, method_info, offer
from idpgan.release.folder import refuse_place, write_release
from idpgan.release.images import ImagesArtifact
from idpgan.release.signature import Signer

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Release:
    """Released images and what is known of their privacy.

    Attributes:
        images: (N, m, n), or (N, 3, m, n) for color; dtype and device of the input, not clamped.
        privacy: Claimed, proven and audited.
        method: Name in `METHODS`.
        events: Events for an accountant; every image is a separate record, so one charge covers all images.
        options: Options of the method, defaults filled in.
        notes: Notes for the curator, one sentence each. They are computed from the images and stay private.
        plan: The plan of the release; None = planned again when needed.
    """

    images: Tensor
    privacy: PrivacyReport
    method: str
    events: tuple[Event, ...]
    options: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    plan: PublicationPlan | None = None

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.images.shape[1:]))
        return f"<Release: {len(self.images):,} images of {shape} by '{self.method}', proven {self.privacy.proven}>"

    def _repr_png_(self) -> bytes | None:
        """Show the first 64 released images in a notebook; ``privacy`` states their guarantee."""
        pixels = self.to_uint8()
        return notebook_png(pixels[:, None] if pixels.ndim == 3 else pixels)

    def to_uint8(self) -> Tensor:
        """Clip to [0, 1] and round to 0 .. 255, uint8 of the same shape: post-processing."""
        return (self.images.clamp(0, 1) * 255).round().to(torch.uint8)

    @typed
    def write(
        self,
        folder: Path,
        data: str = "images",
        names: Sequence[str] | None = None,
        mark: bool = True,
        signer: Signer | None = None,
    ) -> None:
        """Write the released folder: images as 8-bit PNG files, settings, privacy.json and card.

        Args:
            folder: A new folder; `idpgan verify` reads it.
            data: Name of the private images on the card.
            names: Names of the files, ``FOLDER/NAME.png`` at any depth, in the order of the images. They are released
                and must be public. None = the images' numbers.
            mark: Whether pictures say in a form for machines that they are artificial; see `idpgan.release.mark`.
            signer: What signs the pictures; see `idpgan.release.signature`.

        Raises:
            InputError: If the folder exists, or there are too many images. Nothing is written then.
        """
        refuse_place(folder, str(folder))
        if self.privacy.claimed is None and METHODS[self.method].claimed is not None:
            raise InputError("this release states no claimed epsilon, so that nothing can verify it.")
        num, *shape = self.images.shape
        options = self.plan.options if self.plan else checked_options(self.method, self.options)
        facts = {"data": data, "method": self.method, "num": num, "shape": shape, "mark": mark}
        facts["options"] = {name: value for name, value in options.to_json().items() if name not in options.SECRET}
        if claimed := self.privacy.claimed:
            facts |= {"epsilon": claimed.epsilon, "delta": claimed.delta, "unit": str(claimed.unit)}
        table = build(PublicationTable, facts, "the release")
        pixels = self.to_uint8()
        artifact = ImagesArtifact.of(pixels[:, None] if pixels.ndim == 3 else pixels, names)
        write_release(folder, artifact, table.settings(self.plan or table.plan()), self.privacy, self.events, signer)


def release(
    images: Tensor,
    method: str,
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    unit: Unit | str | None = None,
    noise: Noise | None = None,
    ledger: Ledger | None = None,
    accept_unsound: bool = False,
    **options: Any,
) -> Release:
    """Release images under a method of `METHODS`.

    Every image is a separate record and gets its own noise: a guarantee for a pixel, column or image holds for all
    images at the price of one (parallel composition over positions, which are public). A person with k images has k
    epsilon.

    Args:
        images: (N, m, n), or (N, 3, m, n) for color, float32 or float64 in [0, 1], a tensor or an array; not modified.
            Values outside are clamped before anything else, as every proof requires, and NaN is replaced by 0, with a
            warning: an error would reveal something about that image. The channels of a color image are released one by
            one, each under a third of epsilon and of delta.
        method: Name in `METHODS`.
        epsilon: Total per unit, positive and finite. For the published methods it is their claim; None for
            obfuscators, which claim nothing.
        delta: In [0, 1/N); the published methods accept only 0.
        unit: What one neighbor changes; None = the method's first.
        noise: Source of the noise; None = AES-256-CTR under a fresh key of the operating system. A fixed source marks
            the release as not private.
        ledger: Ledger that is charged before noise is drawn; its unit must be ``unit``, its relation replace-one. None
            = a ledger in memory.
        accept_unsound: Must be True for methods without a proof.
        **options: Of the method; ``load_publisher(method).options`` lists them.

    Raises:
        InputError: If an argument is invalid; the message states the limit and a remedy. Nothing is released or charged
            then.
        BudgetError: If the ledger is of another unit or relation, or its target would be exceeded. Nothing
            is released or charged then.

    Example:
        >>> released = release(torch.full((1, 4, 3), 0.5), "lap", epsilon=1.0, unit="column")
        >>> released.images.shape, str(released.privacy.proven)
        (torch.Size([1, 4, 3]), 'epsilon = 1 (unit column, replace-one)')
    """
    info = method_info(method)
    if not info.sound and not accept_unsound:
        raise InputError(
            f"'{method}' proves no privacy at all: {info.reason}. Pass accept_unsound=True to run it all the same, or "
            "use a sound method such as 'lap'."
        )
    kind = load_publisher(method).obfuscator
    if kind is not None and kind.trained:
        raise InputError(
            f"'{method}' is fitted on labels first: make_obfuscator, fit, transform; or idpgan publish FOLDER --keep."
        )
    values = _images(images)
    plan = offer(method, len(values), tuple(values.shape[1:]), epsilon=epsilon, delta=delta, unit=unit, options=options)
    books = Ledger(plan.price.unit, Relation.REPLACE_ONE) if ledger is None else ledger
    books.charge_together(plan.price.events)
    return release_planned(plan, values, Noise.system() if noise is None else noise)


def release_planned(plan: PublicationPlan, values: Tensor, noise: Noise, changed: Tensor | None = None) -> Release:
    """Release images (N, ...) in [0, 1] that fit the plan and are already charged.

    Args:
        changed: What an obfuscator has made of them, where the curator fitted or keeps one.

    Raises:
        ValueError: If something is ``changed`` where the plan proves an epsilon: it has no noise of that plan.
    """
    if changed is not None and any(event.is_private for event in plan.price.events):
        raise ValueError(f"'{plan.method}' releases with its own noise, and not what was made of the images elsewhere.")
    released = (plan.recipe.release(values, noise) if changed is None else changed.view_as(values)).to(values.dtype)
    options, notes = plan.options.public(), plan.recipe.notes(values)
    return Release(released, plan.report(noise.source), plan.method, plan.price.events, options, notes, plan)


def _images(images: Tensor) -> Tensor:
    """Check images and clamp them to [0, 1] pixel by pixel, so that neighbors in one pixel stay neighbors."""
    values = torch.as_tensor(images)
    if values.dtype not in (torch.float32, torch.float64):
        raise InputError(f"images must be float32 or float64 in [0, 1], got {values.dtype}; divide bytes by 255 first.")
    color = values.ndim == 4 and values.shape[1] == 3
    if (values.ndim != 3 and not color) or 0 in values.shape:
        raise InputError(
            f"images must be (N, m, n) or (N, 3, m, n) with at least one pixel, got shape {tuple(values.shape)}."
        )
    if bool(values.isnan().any()):
        _LOG.warning("%d pixels of the images are NaN and stand as 0.", int(values.isnan().sum()))
    return values.detach().nan_to_num(nan=0.0).clamp(0, 1)
