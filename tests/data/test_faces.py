import numpy as np
import pytest
import torch

from idpgan.config import build
from idpgan.data import faces
from idpgan.data.config import DataConfig
from idpgan.data.faces import ATTRIBUTES, draw, draw_people
from idpgan.data.load import describe, load
from idpgan.errors import ConfigError, DataError

TABLE_1 = [(231, 195), (112, 92), (120, 128), (192, 168), (200, 180)]  # sizes of the papers' databases


def difference(one, other):
    """Mean absolute difference of two stacks of images, grey levels."""
    return (one.float() - other.float()).abs().mean().item()


@pytest.mark.parametrize("size", [16, 28, 48, *TABLE_1, (16, 40)])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size_and_channels(size, channels):
    images = draw(3, size, channels, people=2)
    height, width = (size, size) if isinstance(size, int) else size
    assert images.image_shape == (channels, height, width)
    assert images.identities.tolist() == [0, 0, 1]
    assert images.attributes.shape == (3, len(ATTRIBUTES))
    assert images.attribute_names == ATTRIBUTES
    assert images.labels is None
    assert images.images.float().std() > 20  # not flat


def test_a_seed_fixes_the_images_whatever_the_batch_size():
    images = draw(30, people=10, seed=4)
    for batch_size in (1, 7, 30):
        again = draw(30, people=10, seed=4, batch_size=batch_size)
        assert again.digest() == images.digest()
    other = draw(30, people=10, seed=5)
    assert difference(images.images, other.images) > 20
    assert not torch.equal(images.attributes, other.attributes)


def test_drawing_leaves_the_callers_random_state_alone():
    before = torch.get_rng_state()
    draw(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_same_faces_at_another_size_and_in_grey():
    """The size changes nothing but the resolution; grey is the luma of the colors, to the rounding of each."""
    large, small = (draw(20, size, seed=2) for size in (96, 48))
    assert torch.equal(large.attributes, small.attributes)
    halved = torch.nn.functional.avg_pool2d(large.images.float(), 2)
    assert difference(halved, small.images) < 8 < 20 < difference(halved.roll(1, 0), small.images)
    grey, weights = draw(20, 48, 1, seed=2), torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    luma = (small.images.float() * weights).sum(1, keepdim=True)
    assert difference(grey.images, luma) < 1.5  # clamped colors differ


def test_noise_is_normal_and_differs_between_images():
    noise = faces.grain_noise(5, 40, 48, 48, key=123456789, device=torch.device("cpu"))
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    assert abs((noise.abs() < 1).float().mean() - 0.683) < 0.02
    neighbors = torch.corrcoef(torch.stack([noise[:-1].flatten(), noise[1:].flatten()]))[0, 1]
    pixels = torch.corrcoef(torch.stack([noise[..., 1:].flatten(), noise[..., :-1].flatten()]))[0, 1]
    assert abs(neighbors) < 0.02
    assert abs(pixels) < 0.02
    other = faces.grain_noise(5, 40, 48, 48, key=987654321, device=torch.device("cpu"))
    assert abs(torch.corrcoef(torch.stack([noise.flatten(), other.flatten()]))[0, 1]) < 0.02


def test_every_attribute_is_neither_rare_nor_common():
    share = draw(3000, 16, 1, people=1500).attributes.float().mean(0)
    for name, value in zip(ATTRIBUTES, share.tolist(), strict=True):
        assert 0.05 < value < 0.75, (name, value)


def test_attributes_can_be_seen():
    """A linear rule on small grey pictures finds each attribute in new people, far more often than by chance."""
    images = draw(2400, 24, 1, seed=8)
    pixels, bits = images.images.flatten(1).float() / 255, images.attributes.float()
    pixels -= pixels[:1600].mean(0)
    gram = pixels[:1600].T @ pixels[:1600] + 10 * torch.eye(pixels.shape[1])
    rules = torch.linalg.solve(gram, pixels[:1600].T @ (bits[:1600] - bits[:1600].mean(0)))
    shuffled = torch.randperm(800, generator=torch.Generator().manual_seed(0))
    for name, score, truth in zip(ATTRIBUTES, (pixels[1600:] @ rules).T, bits[1600:].bool().T, strict=True):
        assert area(score, truth) > 0.64, name
        assert area(score, truth[shuffled]) < 0.6, name


def area(score, truth):
    """Area under the ROC curve."""
    return (score[truth][:, None] > score[~truth][None]).float().mean().item()


@pytest.mark.trained
def test_people_are_recognized_about_as_well_as_on_orl():
    """50 whitened components and an RBF SVM, C = 10, half of each person's pictures: 0.85."""
    from sklearn.decomposition import PCA
    from sklearn.svm import SVC

    def accuracy(seed, shuffle):
        images = draw_people(40, 10, 56, 46, seed=seed)
        pixels, train = images.images.flatten(1).numpy() / np.float32(255), np.arange(400) % 10 < 5
        order = torch.randperm(400, generator=torch.Generator().manual_seed(seed)) if shuffle else torch.arange(400)
        person = images.identities[order].numpy()
        components = PCA(50, whiten=True, random_state=0).fit(pixels[train])
        machine = SVC(C=10).fit(components.transform(pixels[train]), person[train])
        return machine.score(components.transform(pixels[~train]), person[~train])

    mean = sum(accuracy(seed, shuffle=False) for seed in range(4)) / 4
    assert mean > 0.78
    assert mean < 0.92
    assert accuracy(0, shuffle=True) < 0.2  # chance is 1/40


def test_source():
    config = DataConfig(name="faces", num_images=100, num_people=10, image_size=16, label=("glasses", "smiling"))
    split = load(config)
    assert describe(config).sizes == (0, 72, 8, 20) == tuple(map(len, (split.public, *parts(split))))
    assert describe(config).classes == split.classes
    assert split.classes[3] == "glasses, smiling"
    assert split.image_shape == (3, 16, 16) == describe(config).image_shape
    names = split.private.attribute_names
    bits = split.private.attributes[:, [names.index("glasses"), names.index("smiling")]]
    assert torch.equal(split.private.labels[:, None] >> torch.arange(2) & 1, bits.long())
    assert load(config).digest == split.digest
    assert describe(DataConfig(name="faces")).image_shape == (3, 48, 48)
    assert sum(describe(DataConfig(name="faces")).sizes) == 10_000


def parts(split):
    return split.private, split.holdout, split.test


def test_source_by_identity():
    config = DataConfig(name="faces", num_images=95, num_people=20, image_size=16, split_by="identity")
    split = load(config)
    people = [set(part.identities.tolist()) for part in parts(split)]
    assert [len(part) for part in people] == [15, 1, 4]
    assert len(set.union(*people)) == 20
    assert describe(config).sizes[1:] == tuple(map(len, parts(split)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num": 3, "size": 15}, "15 x 15 pixels are too small"),
        ({"num": 3, "channels": 2}, "not 2"),
        ({"num": 3, "people": 4}, "3 faces of 4 people"),
        ({"num": 0}, "0 faces"),
        ({}, "how many"),
        ({"num": 9, "people": 2, "per_person": 4}, "are 8 faces, not 9"),
        ({"num": 3, "seed": -1}, "at least 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        draw(**arguments)


def test_config_refuses_other_sources_and_unknown_attributes():
    with pytest.raises(ConfigError, match=r"num_images = 5 is a key of name = 'faces' or 'folder' .*, not of 'digits'"):
        build(DataConfig, {"name": "digits", "num_images": 5}, "[data]")
    for ask in (load, describe):
        with pytest.raises(DataError, match=r"no attribute 'glases'\. Did you mean 'glasses'"):
            ask(DataConfig(name="faces", num_images=100, label=("glases",)))
        with pytest.raises(DataError, match="'digits' has no attributes"):
            ask(DataConfig(name="digits", label=("glasses",)))
        with pytest.raises(DataError, match="'digits' does not say who is on which image"):
            ask(DataConfig(name="digits", split_by="identity"))
    with pytest.raises(ConfigError, match="twice"):
        build(DataConfig, {"name": "faces", "label": ["hat", "hat"]}, "[data]")
    with pytest.raises(ConfigError, match=r"128 classes.*at most 6"):
        build(DataConfig, {"name": "faces", "label": list(ATTRIBUTES[:7])}, "[data]")


@pytest.mark.gpu
def test_gpu_draws_the_same_faces():
    one, other = draw(100, seed=3), draw(100, seed=3, device="cuda")
    assert other.images.is_cuda
    assert difference(one.images, other.images.cpu()) < 0.05
    assert torch.equal(one.attributes, other.attributes.cpu())
