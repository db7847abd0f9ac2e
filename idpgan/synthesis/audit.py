"""How the methods are audited."""

from __future__ import annotations

from idpgan.synthesis.aggregate import audit as aggregate
from idpgan.synthesis.dp_gan import audit as dp_gan
from idpgan.synthesis.evolution import audit as evolution
from idpgan.synthesis.gaussian import audit as gaussian
from idpgan.synthesis.hybrid import audit as hybrid
from idpgan.synthesis.local import audit as local
from idpgan.synthesis.published import audit as published

AUDITS = {
    "idp-gan-aggregate": aggregate.AUDIT,
    "idp-gan-published": published.AUDIT,
    "idp-gan-local": local.AUDIT,
    "dp-gan": dp_gan.AUDIT,
    "hybrid": hybrid.AUDIT,
    "gaussian": gaussian.AUDIT,
    "evolution": evolution.AUDIT,
}
