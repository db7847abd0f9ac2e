"""The sound publishers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from idpgan.privacy.guarantee import Unit
from idpgan.publish.plan import Plan, Publisher, Shape
from idpgan.publish.sound import audits, codebook, coefficients, eigenfaces, pixels
from idpgan.publish.sound.numbers import LawOptions


def _noisy(
    name: str, plan: Callable[[Shape, Unit, float, float, Any], Plan], options: type[LawOptions] = LawOptions
) -> Publisher:
    return Publisher(options, plan, audits.noisy_entry(name, plan, options))


PUBLISHERS = {
    "lap": Publisher(LawOptions, pixels.plan_lap, audits.LAP),
    "lap-shrink": _noisy("lap-shrink", pixels.plan_shrink),
    "lap-wiener": _noisy("lap-wiener", pixels.plan_wiener),
    "dct": _noisy("dct", coefficients.plan_dct, coefficients.DctOptions),
    "pix": _noisy("pix", coefficients.plan_pix, coefficients.PixOptions),
    "eigenfaces": _noisy("eigenfaces", eigenfaces.plan_eigenfaces, eigenfaces.EigenfacesOptions),
    "codebook": Publisher(
        codebook.CodebookOptions,
        codebook.plan_codebook,
        audits.outcome_entry("codebook", codebook.plan_codebook, codebook.CodebookOptions()),
    ),
}
