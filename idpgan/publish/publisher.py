"""`release`: the one way in to all publishers, with its checks, and what comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idpgan.checks import typed
from idpgan.config import build, nearest_hint
from idpgan.errors import InputError
from idpgan.methods import MethodInfo
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit, check_delta
from idpgan.privacy.noise import Noise
from idpgan.publish import matrix, sound
from idpgan.publish.registry import METHODS

_Published = Callable[[Tensor, float, Any, Noise], Tensor]
PUBLISHED: Mapping[str, tuple[_Published, type[matrix.Options]]] = {
    "lap-published": (matrix.lap_published, matrix.Options),
    "lra": (matrix.lra, matrix.LraOptions),
    "sra": (matrix.sra, matrix.SraOptions),
    "esra": (matrix.esra, matrix.EsraOptions),
    "lrm": (matrix.lrm, matrix.LrmOptions),
    "mm": (matrix.mm, matrix.Options),
}
_PUBLIC = ("number, size and order of the images", "pixel range [0, 1]")


@dataclass(frozen=True, eq=False)
class Release:
    """Released images and what is known of their privacy.

    Attributes:
        images: (N, m, n), dtype and device of the input, not clamped.
        privacy: Claimed, proven and audited.
        method: Name in `METHODS`.
        event: What an accountant is told; every image is a record of its own, so it is paid once for all of them.
        options: Of the method, defaults filled in.
        notes: What a curator has to know, one sentence each. They are computed from the images: not to be given away.
    """

    images: Tensor
    privacy: PrivacyReport
    method: str
    event: Event
    options: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def to_uint8(self) -> Tensor:
        """Clip to [0, 1] and round to 0 .. 255, uint8 (N, m, n): post-processing."""
        return (self.images.clamp(0, 1) * 255).round().to(torch.uint8)


@typed
def release(
    images: Tensor,
    method: str,
    *,
    epsilon: float,
    delta: float = 0.0,
    unit: Unit | str | None = None,
    noise: Noise | None = None,
    accept_unsound: bool = False,
    **options: Any,
) -> Release:
    """Release images under a method of `METHODS`.

    Every image is a record of its own and gets its own noise: a guarantee for a pixel, column or image holds for all
    images at the price of one (parallel composition over positions, which are public). One person with k images has
    k epsilon.

    Args:
        images: (N, m, n) float32 or float64 in [0, 1], a tensor or an array; not modified. Values outside are clamped
            before anything else, as every proof needs.
        method: Name in `METHODS`.
        epsilon: Total per unit, positive and finite. For the published methods: what they claim.
        delta: In [0, 1/N); above 0 for ``lap`` only.
        unit: What one neighbor changes; None = the method's first.
        noise: Source of the noise; None = AES-256-CTR under a fresh key of the operating system. A fixed one marks the
            release not private.
        accept_unsound: Needed for methods that prove nothing.
        **options: Of the method: ``law`` (lap), ``rank`` and ``refine`` (sra), ``refine`` (esra), ``sweeps``,
            ``learning_rate`` and ``regularization`` (lra), ``iterations`` (lrm).

    Raises:
        InputError: If an argument is wrong, with the limit and the way out. Nothing is released then.

    Example:
        >>> released = release(torch.full((1, 4, 3), 0.5), "lap", epsilon=1.0, unit="column")
        >>> released.images.shape, str(released.privacy.proven)
        (torch.Size([1, 4, 3]), 'epsilon = 1 (unit column, replace-one)')
    """
    info = _known(method)
    if info.sound is False and not accept_unsound:
        raise InputError(
            f"'{method}' proves no privacy at all: {info.reason}. Pass accept_unsound=True to run it all the same, or "
            "use a sound method such as 'lap'."
        )
    chosen = _unit(info, unit)
    values = _images(images)
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon = {epsilon} must be positive and finite; small is strict, 1 is usual.")
    check_delta(delta, len(values), "delta")
    source = noise or Noise.system()
    if method == "lap":
        lap = build(sound.LapOptions, options, "the options of 'lap'")
        released, event = sound.release_pixels(values, chosen, lap, epsilon=epsilon, delta=delta, noise=source)
        report = _proven_report(info, event, epsilon, delta, source)
        return Release(released, report, method, event, lap.model_dump())
    if delta > 0:
        raise InputError(f"delta = {delta}: '{method}' claims pure privacy; leave delta out.")
    publish, cls = PUBLISHED[method]
    settings = build(cls, options, f"the options of '{method}'")
    event = Event.non_private(info.reason, chosen, Relation.REPLACE_ONE)
    return Release(
        publish(values, epsilon, settings, source),
        _claimed_report(info, event, epsilon),
        method,
        event,
        settings.model_dump(),
        _exact(values),
    )


def _known(method: str) -> MethodInfo:
    if method not in METHODS:
        raise InputError(f"'{method}' is no known publisher. {nearest_hint(method, METHODS)}")
    return METHODS[method]


def _unit(info: MethodInfo, unit: Unit | str | None) -> Unit:
    chosen = info.units[0] if unit is None else str(unit)
    if chosen not in info.units:
        raise InputError(f"unit = '{chosen}' is not known to '{info.name}'; known: {', '.join(info.units)}.")
    return Unit(chosen)


def _images(images: Tensor) -> Tensor:
    """Return checked images, clamped to [0, 1]."""
    values = torch.as_tensor(images)
    if values.dtype not in (torch.float32, torch.float64):
        raise InputError(f"images must be float32 or float64 in [0, 1], got {values.dtype}; divide bytes by 255 first.")
    if values.ndim != 3 or 0 in values.shape:
        raise InputError(f"images must be (N, m, n) with at least one pixel, got shape {tuple(values.shape)}.")
    if not bool(values.isfinite().all()):
        raise InputError("images hold NaN or infinity; every pixel must be a number in [0, 1].")
    return values.detach().clamp(0, 1)


def _proven_report(info: MethodInfo, event: Event, epsilon: float, delta: float, noise: Noise) -> PrivacyReport:
    """Return the report of a sound release; proven is computed anew from what was charged."""
    pair = (event.unit, event.relation)
    basis = f"accountant, {event.count} x {event.kind}" if event.count > 1 else f"accountant, {event.kind}"
    proven = Guarantee(compose_epsilon([event], delta), delta, *pair, basis)
    if proven.epsilon > epsilon:
        raise ArithmeticError(f"calibration ended at epsilon = {proven.epsilon}, above {epsilon}.")
    claimed = Guarantee(epsilon, delta, *pair, "asked for")
    return PrivacyReport(claimed, proven, None, info.reason, noise.private, _PUBLIC)


def _claimed_report(info: MethodInfo, event: Event, epsilon: float) -> PrivacyReport:
    """Return the report of a published method."""
    claimed = Guarantee(epsilon, 0.0, event.unit, event.relation, "Zhang, Fu and Meng (2020), theorem 7")
    proven = Guarantee(math.inf, 0.0, event.unit, event.relation, "nothing is proven")
    return PrivacyReport(claimed, proven, None, info.reason, False, _PUBLIC)


def _exact(images: Tensor) -> tuple[str, ...]:
    """Say how many images got no noise because they are black."""
    black = int((images.flatten(1).amax(1) == 0).sum())
    if not black:
        return ()
    return (f"{black} of {len(images)} images are black and were released exactly, without any noise.",)
