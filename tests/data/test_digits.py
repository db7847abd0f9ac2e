import torch
from sklearn.datasets import load_digits

from idpgan.data.config import DataConfig
from idpgan.data.load import describe, load


def test_digits_are_scikit_learns_at_full_range():
    split = load(DataConfig(name="digits"))
    parts = torch.cat([split.public.images, split.private.images, split.holdout.images, split.test.images])
    assert parts.shape == (1797, 1, 8, 8)
    levels = parts.unique()
    assert levels.tolist() == [round(level * 255 / 16) for level in range(17)]
    original = torch.from_numpy(load_digits().images).sum() * 255 / 16
    assert abs(parts.long().sum() - original) < 0.5 * parts.numel()
    assert split.classes == tuple("0123456789")


def test_each_label_stays_with_its_image():
    original = {row.tobytes(): int(label) for row, label in zip(*load_digits(return_X_y=True), strict=True)}
    private = load(DataConfig(name="digits")).private
    levels = (private.images.double() * 16 / 255).round().flatten(1).numpy()
    assert [original[row.tobytes()] for row in levels] == private.labels.tolist()


def test_described_as_loaded():
    config = DataConfig(name="digits", public_share=0.1, confirm_public=True)
    shape, split = describe(config), load(config)
    assert shape.sizes == tuple(len(part) for part in (split.public, split.private, split.holdout, split.test))
    assert (shape.image_shape, shape.classes) == (split.image_shape, split.classes)
