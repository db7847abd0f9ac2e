"""What a config of idp-gan-aggregate begins with, without public images."""

from __future__ import annotations

from idpgan.synthesis.starter import Facts, Sections, Setting, privacy

_BATCH = 240
_MOMENTS, _FOURIER = (48, 24, 12), (500, 200, 50)  # many, some, few private images a class


def suggest(facts: Facts) -> Sections:
    """Return the settings by size, number of classes and of private images."""
    channels, height, width = facts.shape.image_shape
    large, classes = height * width > 32 * 32, facts.num_classes
    numbers = channels * height * width  # of an image: what a step costs
    few = 0 if facts.per_class >= 5000 else 1 if facts.per_class >= 500 else 2
    return {
        "model": {
            "generator": Setting("warp", "codes, a small decoder, a random smooth warp"),
            "conditional": Setting(bool(facts.shape.classes), "classes can be asked for"),
            "latent_dim": Setting(32 if large else 16),
            "codes": Setting(100 if large else 20, "kinds of images per class"),
            "warp": Setting(0.7 if facts.handwriting else 0.3, "1 is that of handwriting; faces move less"),
            "width": Setting(16 if height * width <= 16 * 16 else 64),
        },
        "method": {
            "name": Setting("idp-gan-aggregate", "one noisy release of sums, then training costs nothing"),
            "features": Setting("random", "of no data at all; public images would be better (data.public_root)"),
            "metric": Setting("fakes"),
            "moments": Setting(
                max(_MOMENTS[few] // (2 if channels == 3 else 1), 8), "fewer numbers, less noise in each"
            ),
            "fourier": Setting(_FOURIER[few]),
            "augment": Setting(0.67 if facts.handwriting else 0.2),
            "level": Setting(0.1 if facts.handwriting else 0.5, "brightness of the ground: 0 black, 1 white"),
            "learning_rate": Setting(2e-3),
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
