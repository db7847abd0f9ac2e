"""benchmarks/laws.py: discriminants of laws find classes that differ, and guess where labels say nothing."""

from types import SimpleNamespace

import laws
import torch

from idpgan.data.images import Images
from idpgan.synthesis.moments import MomentMap


def images(num, seed):
    """Two classes of noise, the second with a bright right half, uint8 (num, 3, 8, 8)."""
    rng = torch.Generator().manual_seed(seed)
    pixels, labels = torch.randint(60, 200, (num, 3, 8, 8), generator=rng), torch.arange(num) % 2
    pixels[labels == 1, :, :, 4:] += 50
    return Images(pixels.byte(), labels, ("a", "b"))


def test_discriminants_find_classes_and_guess_without_labels():
    moments, private, judge = MomentMap((3, 8, 8), 12, light=True), images(4000, 0), images(400, 1)
    shuffled = Images(
        private.images,
        private.labels[torch.randperm(4000, generator=torch.Generator().manual_seed(2))],
        private.classes,
    )
    found, guessed = (
        laws.discriminants(laws.estimated(laws.exact(part, moments), moments, 10.0, 1.0), moments, judge)
        for part in (private, shuffled)
    )
    assert found > 90
    assert 20 < guessed < 80


def test_a_template_of_each_class_has_what_the_class_shows():
    moments = MomentMap((3, 8, 8), 12, shape=2, light=True)
    method = SimpleNamespace(templates="class", template_share=0.25)
    first, second = laws.template(images(4000, 0), moments, method, 10.0)
    assert (second - first)[:, :, 4:].mean() > 0.2
    assert (second - first)[:, :, :4].mean().abs() < 0.1
