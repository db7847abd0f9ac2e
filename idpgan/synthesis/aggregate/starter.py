"""What a config of idp-gan-aggregate begins with, without public images."""

from __future__ import annotations

from idpgan.synthesis.gaussian.starter import coefficients
from idpgan.synthesis.starter import Facts, Sections, Setting, privacy

_BATCH = 240
_MOMENTS, _FOURIER = (48, 24, 12), (500, 200, 50)  # many, some, few private images a class


_PHOTO_MOMENTS, _PHOTO_FOURIER, _PHOTO_BATCH = 24, 100, 128
_WIDTH, _CANDIDATES = 16, 8  # of photographs
_FEW_CANDIDATES, _TEMPERATURE = 4, 2.5  # of handwriting


def suggest(facts: Facts) -> Sections:
    """Return the settings by size, number of classes and of private images."""
    return _of_handwriting(facts) if facts.handwriting else _of_photos(facts)


def _taught(candidates: int) -> dict[str, Setting]:
    return {
        "teacher_share": Setting(0.5, "of the budget, for a classifier that chooses among candidates"),
        "candidates": Setting(candidates, "images drawn for each one that it chooses"),
    }


def _of_photos(facts: Facts) -> Sections:
    classes = facts.num_classes
    return {
        "model": {
            "generator": Setting("refined", "a normal distribution a class, and a network that refines it"),
            "conditional": Setting(bool(facts.shape.classes), "classes can be asked for"),
            "latent_dim": coefficients(facts),
            "width": Setting(_WIDTH),
        },
        "method": {
            "name": Setting("idp-gan-aggregate", "one noisy release of sums, then training costs nothing"),
            "features": Setting("photos", "moments that the generator starts at, and wavelet moduli"),
            "moments": Setting(_PHOTO_MOMENTS),
            "fourier": Setting(_PHOTO_FOURIER),
            "augment": Setting(0.0, "photos are as they lie"),
            "metric": Setting("none"),
            "learning_rate": Setting(3e-4, "a higher one draws stripes"),
            **(_taught(_CANDIDATES) if classes > 1 else {}),
        },
        "privacy": privacy(facts),
        "training": {
            "steps": Setting(0, "seconds; a few hundred steps of the network have not been seen to help yet"),
            "batch_size": Setting(-(-_PHOTO_BATCH // classes) * classes, "of which training.steps would be made"),
        },
    }


def _of_handwriting(facts: Facts) -> Sections:
    channels, height, width = facts.shape.image_shape
    large, classes = height * width > 32 * 32, facts.num_classes
    numbers = channels * height * width  # of an image: what a step costs
    few = 0 if facts.per_class >= 5000 else 1 if facts.per_class >= 500 else 2
    teaching = classes > 1 and not few
    wide = {"temperature": Setting(_TEMPERATURE, "draws more widely than trained; the classifier keeps the classes")}
    return {
        "model": {
            "generator": Setting("warp", "codes, a small decoder, a random smooth warp"),
            "conditional": Setting(bool(facts.shape.classes), "classes can be asked for"),
            "latent_dim": Setting(32 if large else 16),
            "codes": Setting(100 if large else 20, "kinds of images per class"),
            "warp": Setting(0.7, "1 is that of handwriting"),
            "width": Setting(16 if height * width <= 16 * 16 else 64),
            **(wide if teaching else {}),
        },
        "method": {
            "name": Setting("idp-gan-aggregate", "one noisy release of sums, then training costs nothing"),
            "features": Setting("random", "of no data at all; public images would be better (data.public_root)"),
            "metric": Setting("fakes"),
            "moments": Setting(
                max(_MOMENTS[few] // (2 if channels == 3 else 1), 8), "fewer numbers, less noise in each"
            ),
            "fourier": Setting(_FOURIER[few]),
            "augment": Setting(0.67),
            "level": Setting(0.1, "brightness of the ground: 0 black, 1 white"),
            "learning_rate": Setting(2e-3),
            **(_taught(_FEW_CANDIDATES) if teaching else {}),
        },
        "privacy": privacy(facts),
        "training": {
            "steps": Setting(
                3000 if numbers <= 1024 else 1500 if numbers <= 4096 else 1000, "more is sharper, up to the noise"
            ),
            "batch_size": Setting(
                -(-_BATCH // classes) * classes, "generated images a step, a multiple of the classes"
            ),
            "tick_steps": Setting(250),
        },
    }
