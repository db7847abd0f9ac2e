"""Every attack catches a generator that replays its training images, and none catches one that does not."""

import math
from dataclasses import replace

import pytest
import torch

from idpgan.attacks import distances as distances_module
from idpgan.attacks.distances import bandwidth, blocks, components, log_density, nearest_neighbors, projected
from idpgan.attacks.evaluate import evaluate_scores
from idpgan.attacks.knowledge import Knowledge
from idpgan.attacks.losses import classifier_confidence, critic_score, fitted_classifier, latent_reconstruction
from idpgan.attacks.membership import calibrate, density_ratio, nearest_sample, neighborhood_count
from idpgan.attacks.registry import ATTACKS, select_attacks
from idpgan.attacks.shadows import Density, Shadows, halves
from idpgan.data.images import Images, to_float, to_uint8
from idpgan.errors import InputError
from idpgan.models.config import ModelConfig
from idpgan.models.generator import Generator
from idpgan.training.method import ReleasedSums

NUM = 120


def rng(seed):
    return torch.Generator().manual_seed(seed)


def blobs(num, seed):
    """Grey 8 x 8 images of a 12-dimensional distribution, with labels that say nothing about them."""
    basis = torch.randn(12, 64, generator=rng(0))
    pixels = torch.tanh(
        torch.randn(num, 12, generator=rng(seed)) @ basis / 6 + 0.02 * torch.randn(num, 64, generator=rng(seed + 99))
    )
    return Images(to_uint8(pixels.view(num, 1, 8, 8)), torch.randint(8, (num,), generator=rng(seed)), tuple("abcdefgh"))


MEMBERS, OTHERS, REFERENCE, FRESH = blobs(NUM, 1), blobs(NUM, 2), blobs(400, 3), blobs(1000, 4)
BOTH = Images(torch.cat([MEMBERS.images, OTHERS.images]), torch.cat([MEMBERS.labels, OTHERS.labels]), MEMBERS.classes)
REPLAYED = Images(
    to_uint8(to_float(MEMBERS.images.repeat(5, 1, 1, 1)) + 0.03 * torch.randn(5 * NUM, 1, 8, 8, generator=rng(5))),
    MEMBERS.labels.repeat(5),
    MEMBERS.classes,
)


def pixels_as_vectors(images):
    """Pixels are what an image adds to one sum."""
    return images.images.flatten(1).double(), torch.zeros(len(images), dtype=torch.int64)


class LinearGenerator(Generator):
    """G(z) = tanh(z W): reaches some images exactly, and no others."""

    def __init__(self, weight, classes=0):
        super().__init__(ModelConfig(conditional=classes > 0), (1, 8, 8), classes, len(weight))
        self.weight = torch.nn.Parameter(weight)

    def images(self, z, labels):
        return torch.tanh(z @ self.weight).view(-1, 1, 8, 8)


def judged(scores):
    return evaluate_scores(scores[:NUM], scores[NUM:])


def black_box(samples):
    """Scores of the attacks that see samples only, by name."""
    images = BOTH.images
    reference = nearest_sample(images, REFERENCE.images)
    return {
        "nearest": nearest_sample(images, samples.images),
        "nearest, calibrated": calibrate(nearest_sample(images, samples.images), reference),
        "count": neighborhood_count(images, samples.images),
        "density": density_ratio(images, samples.images, REFERENCE.images, dimensions=10),
        "confidence": classifier_confidence(images, BOTH.labels, samples, steps=150),
    }


@pytest.mark.trained
def test_a_generator_that_replays_its_training_images_is_caught():
    for name, scores in black_box(REPLAYED).items():
        assert judged(scores).auc > 0.9, name


@pytest.mark.trained
def test_a_generator_that_learned_the_distribution_only_is_not():
    for name, scores in black_box(FRESH).items():
        low, high = evaluate_scores(scores[:NUM], scores[NUM:], confidence=1 - 1e-7).auc_interval
        assert low <= 0.5, name
        assert high >= 0.5, name


def test_two_halves_of_non_members_are_a_guess_even_for_a_generator_that_replays():
    others = blobs(400, 7).images
    for scores in (
        nearest_sample(others, REPLAYED.images),
        neighborhood_count(others, REPLAYED.images),
        density_ratio(others, REPLAYED.images, REFERENCE.images, dimensions=10),
    ):
        low, high = evaluate_scores(scores[:200], scores[200:]).auc_interval
        assert low <= 0.5 <= high
        assert high - low < 0.13


def test_scores_do_not_know_who_is_a_member():
    swap = torch.cat([torch.arange(NUM, 2 * NUM), torch.arange(NUM)])
    for attack in (nearest_sample, neighborhood_count):
        forward, swapped = attack(BOTH.images, REPLAYED.images), attack(BOTH.images[swap], REPLAYED.images)
        assert torch.allclose(forward[swap], swapped)


def test_an_image_that_was_generated_exactly_is_at_distance_zero():
    assert nearest_sample(MEMBERS.images, MEMBERS.images).abs().max() == 0
    black, white = torch.full((1, 1, 2, 2), -1.0), torch.full((1, 1, 2, 2), 1.0)
    assert nearest_sample(black, white).item() == -4


@pytest.mark.parametrize("numbers", [16, 1 << 10, 1 << 24])
def test_blocks_do_not_change_what_is_computed(monkeypatch, numbers):
    monkeypatch.setattr(distances_module, "_CPU_NUMBERS", numbers)
    images, cloud = to_float(MEMBERS.images[:20]), to_float(OTHERS.images[:33])
    expected = torch.cdist(images.flatten(1), cloud.flatten(1)).square() / 64
    found, index = nearest_neighbors(images, cloud, 3)
    assert torch.allclose(found, expected.sort(1).values[:, :3], atol=1e-5)
    assert torch.equal(index, expected.argsort(1)[:, :3])
    assert sum(part.numel() for _, part in blocks(images, cloud)) == 20 * 33
    inside = neighborhood_count(images, cloud, radius=5.0, dimensions=64)
    space = components(cloud, 64, whiten=False)
    exact = torch.cdist(projected(images, space), projected(cloud, space))
    assert torch.allclose(inside, (exact <= 5).float().mean(1))


def test_components_are_those_of_the_covariance():
    cloud = torch.randn(500, 5, generator=rng(1)) * torch.tensor([5.0, 3.0, 1.0, 0.5, 0.1])
    mean, vectors = components(cloud, 2, whiten=False)
    assert torch.allclose(mean, cloud.mean(0), atol=1e-5)
    assert vectors.shape == (5, 2)
    assert projected(cloud, (mean, vectors)).var(0, correction=0).sum() > 0.9 * cloud.var(0, correction=0).sum()
    white = projected(cloud, components(cloud, 5, whiten=True))
    assert torch.allclose(white.T @ white / 500, torch.eye(5), atol=1e-3)
    few = cloud[:3]  # fewer images than pixels: the other Gram matrix
    assert torch.allclose(projected(few, components(few, 2, whiten=False)).norm(dim=1), (few - few.mean(0)).norm(dim=1))


def test_log_density_comes_close_to_a_normal_one():
    cloud, points = torch.randn(2000, 2, generator=rng(1)), torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]])
    exact = -points.square().sum(1) / 2
    found = log_density(points, cloud, bandwidth(cloud))
    assert torch.allclose(found - found[0], exact - exact[0], atol=0.25)


def test_a_critic_that_knows_its_images_is_caught_and_one_that_does_not_is_not():
    known = to_float(MEMBERS.images).flatten(1)

    def memory(images, labels):
        assert labels.shape == (len(images),)
        return -torch.cdist(images.flatten(1), known).amin(1)

    assert judged(critic_score(BOTH.images, BOTH.labels, memory, batch_size=50)).auc == 1.0
    blind = critic_score(BOTH.images, None, lambda images, labels: images.mean((1, 2, 3)))
    low, high = evaluate_scores(blind[:NUM], blind[NUM:], confidence=0.9999).auc_interval
    assert low < 0.5 < high


@pytest.mark.trained
@pytest.mark.parametrize("classes", [0, 4])
def test_reconstruction_finds_what_the_generator_can_draw(classes):
    generator = LinearGenerator(torch.randn(6, 64, generator=rng(1)) / 4, classes)
    drawn = generator.sample(30, seed=1)
    images = torch.cat([drawn, to_float(OTHERS.images[:30])])
    labels = torch.arange(60) % 4 if classes else None
    before = [parameter.clone() for parameter in generator.parameters()]
    scores = latent_reconstruction(images, labels, generator, pool=50, batch_size=25)
    assert evaluate_scores(scores[:30], scores[30:]).auc > 0.95
    assert scores[:30].median() > -0.01
    assert all(torch.equal(old, new) for old, new in zip(before, generator.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in generator.parameters())
    if classes:  # the attacker does not know the labels
        assert evaluate_scores(*latent_reconstruction(images, None, generator, pool=20).split(30)).auc > 0.95


@pytest.mark.trained
def test_reconstruction_of_what_a_generator_draws_as_well_is_a_guess():
    generator = LinearGenerator(torch.randn(6, 64, generator=rng(1)) / 4)
    scores = latent_reconstruction(generator.sample(200, seed=2), None, generator, pool=50, steps=20)
    low, high = evaluate_scores(scores[:100], scores[100:], confidence=1 - 1e-7).auc_interval
    assert low < 0.5
    assert high > 0.5


def test_confidence_without_labels_is_that_of_the_likeliest_class():
    scores = classifier_confidence(BOTH.images[:20], None, REPLAYED.select(torch.arange(100)), steps=1)
    assert scores.shape == (20,)
    assert (scores >= math.log((1 / 8) / (7 / 8)) - 1e-4).all()  # the likeliest of 8 has at least 1/8
    named = classifier_confidence(BOTH.images[:20], BOTH.labels[:20], REPLAYED.select(torch.arange(100)), steps=1)
    assert (named <= scores + 1e-5).all()
    with pytest.raises(InputError, match="no labels"):
        classifier_confidence(BOTH.images, None, Images(REPLAYED.images))


def test_shapes_that_differ_and_empty_sets_are_refused():
    with pytest.raises(InputError, match="cannot be compared"):
        nearest_sample(MEMBERS.images, torch.zeros(5, 1, 4, 4))
    with pytest.raises(InputError, match="cannot be compared"):
        neighborhood_count(MEMBERS.images, MEMBERS.images[:0])
    with pytest.raises(InputError, match="a density needs 3"):
        density_ratio(MEMBERS.images, OTHERS.images, OTHERS.images[:2])
    with pytest.raises(InputError, match="at least 1"):
        latent_reconstruction(MEMBERS.images, None, LinearGenerator(torch.zeros(2, 64)), steps=0)


def test_the_registry_names_what_is_missing():
    rows = {(attack.score, attack.inputs, attack.by_person, attack.calibrated) for attack in ATTACKS.values()}
    assert len(rows) == len(ATTACKS)
    nothing = Knowledge(why_not={"critic": "its critic sees sums"})
    assert ATTACKS["critic-score"].missing(nothing) == "its critic sees sums"
    assert "generated images" in ATTACKS["nearest-sample"].missing(nothing)
    unlabeled = Knowledge(samples=Images(FRESH.images))
    assert "labeled" in ATTACKS["classifier-confidence"].missing(unlabeled)
    assert ATTACKS["nearest-sample"].missing(unlabeled) is None
    for attack in ATTACKS.values():
        if attack.missing(nothing):
            with pytest.raises(InputError):
                attack.scores(BOTH, nothing)


def quickly(images, config, steps, *rest):
    """A classifier of six epochs."""
    return fitted_classifier(images, config, 1, *rest)


def test_every_attack_of_the_registry_runs(monkeypatch):
    monkeypatch.setattr("idpgan.attacks.losses.fitted_classifier", quickly)
    generator = LinearGenerator(torch.randn(6, 64, generator=rng(1)) / 4)
    knowledge = Knowledge(
        samples=REPLAYED.select(torch.arange(60)),
        generator=generator,
        critic=lambda images, labels: images.mean((1, 2, 3)),
        denoiser=lambda images, labels: images.flatten(1).mean(1),
        teacher=lambda images: images.flatten(1).float()[:, :8] / 255,
        sums=ReleasedSums(REFERENCE.images.flatten(1).double().sum(0)[None], 1.0, pixels_as_vectors),
        reference=REFERENCE,
        reference_samples=FRESH,
        reference_generator=generator,
    )
    some = BOTH.select(torch.arange(NUM - 10, NUM + 10))
    density = Density.of(REFERENCE.images)
    observed = torch.stack([density(some.images, FRESH.images[start : start + 100]) for start in range(0, 400, 100)])
    knowledge = replace(knowledge, shadows=Shadows(some, some, halves(4, 20, 0), observed, density))
    for attack in select_attacks(["all"]):
        told = []
        scores = attack.scores(some, knowledge, lambda what, done, total, told=told: told.append((done, total)))
        assert scores.shape == (20,), attack.name
        assert scores.isfinite().all(), attack.name
        assert told[-1][0] == told[-1][1], attack.name


def test_attacks_are_selected_by_name_and_the_nearest_is_named():
    assert [attack.name for attack in select_attacks(["critic-score", "critic-score"])] == ["critic-score"]
    on_generators = tuple(attack for attack in ATTACKS.values() if attack.target == "generator")
    assert select_attacks(["critic-score", "all"]) == on_generators
    with pytest.raises(InputError, match="Did you mean 'critic-score'"):
        select_attacks(["critic-scor"])
