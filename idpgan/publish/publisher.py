"""`release`: the one way in to all publishers, with its checks, and what comes out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idpgan.checks import typed
from idpgan.config import build
from idpgan.errors import InputError
from idpgan.methods import MethodInfo
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Unit, check_delta
from idpgan.privacy.noise import Noise
from idpgan.publish.plan import Plan
from idpgan.publish.registry import load_publisher, method_info

_PUBLIC = ("number, size and order of the images", "pixel range [0, 1]")


@dataclass(frozen=True, eq=False)
class Release:
    """Released images and what is known of their privacy.

    Attributes:
        images: (N, m, n), dtype and device of the input, not clamped.
        report: Claimed, proven and audited.
        method: Name in `METHODS`.
        events: What an accountant is told; every image is a record of its own, so they are paid once for all of them.
        options: Of the method, defaults filled in.
        notes: What a curator has to know, one sentence each. They are computed from the images: not to be given away.
    """

    images: Tensor
    report: PrivacyReport
    method: str
    events: tuple[Event, ...]
    options: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def privacy(self) -> PrivacyReport:
        """The `report`, under the name that a generator has it."""
        return self.report

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
        delta: In [0, 1/N); the published methods know 0 only.
        unit: What one neighbor changes; None = the method's first.
        noise: Source of the noise; None = AES-256-CTR under a fresh key of the operating system. A fixed one marks the
            release not private.
        accept_unsound: Needed for methods that prove nothing.
        **options: Of the method; ``load_publisher(method).options`` lists them.

    Raises:
        InputError: If an argument is wrong, with the limit and the way out. Nothing is released then.

    Example:
        >>> released = release(torch.full((1, 4, 3), 0.5), "lap", epsilon=1.0, unit="column")
        >>> released.images.shape, str(released.privacy.proven)
        (torch.Size([1, 4, 3]), 'epsilon = 1 (unit column, replace-one)')
    """
    info = method_info(method)
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
    publisher = load_publisher(method)
    settings = build(publisher.options, options, f"the options of '{method}'")
    plan = publisher.plan((values.shape[1], values.shape[2]), chosen, epsilon, delta, settings)
    source = noise or Noise.system()
    released = plan.release(values, source).to(values.dtype)
    report = _report(info, plan, epsilon, delta, source)
    return Release(released, report, method, plan.events, settings.model_dump(), plan.notes(values))


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


def _report(info: MethodInfo, plan: Plan, epsilon: float, delta: float, noise: Noise) -> PrivacyReport:
    """Return the report; proven is computed anew from what the plan charges."""
    terms = (plan.events[0].unit, plan.events[0].relation)
    proven, basis = compose_epsilon(plan.events, delta), f"accountant, {plan.law}"
    if math.isinf(proven):
        basis = "nothing is proven"
    elif proven > epsilon:
        raise ArithmeticError(f"calibration ended at epsilon = {proven}, above {epsilon}.")
    guarantee = Guarantee(proven, delta, *terms, basis)
    claimed = Guarantee(epsilon, delta, *terms, plan.claim)
    return PrivacyReport(claimed, guarantee, None, info.reason, noise.private and guarantee.finite, _PUBLIC)
