"""What a config of gaussian begins with."""

from __future__ import annotations

from idpgan.synthesis.starter import Facts, Sections, Setting, privacy

_COEFFICIENTS = (160, 80, 40)  # of many, some, few private images
_MANY, _SOME = 5000, 1000


def suggest(facts: Facts) -> Sections:
    """Return the settings by size and number of private images."""
    return {
        "model": {
            "generator": Setting("gaussian", "a normal distribution a class: blurred images, and no training"),
            "conditional": Setting(bool(facts.shape.classes), "classes can be asked for"),
            "latent_dim": coefficients(facts),
        },
        "method": {"name": Setting("gaussian", "seconds; idpgan init --method idp-gan-aggregate trains a network")},
        "privacy": privacy(facts),
    }


def coefficients(facts: Facts) -> Setting:
    """Return ``model.latent_dim`` by size and number of private images."""
    num, (channels, height, width) = facts.shape.num_private, facts.shape.image_shape
    count = _COEFFICIENTS[0 if num >= _MANY else 1 if num >= _SOME else 2]
    return Setting(min(count, channels * height * width // 4), "fewer coefficients, less noise, more blur")
