"""diffusion from a registered release: displacements, the template in the release, neighbors from folder to step."""

import pytest
import torch

from idpgan.data.images import to_float
from idpgan.models.diffusion import DiffusionGenerator
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.template import ROUNDS
from tests.neighbors.folders import Change, data_of, method_of, neighbor, record, write_metadata
from tests.synthesis.test_diffusion import config_of, disturbed
from tests.synthesis.test_diffusion import method_of as method_of_digits

pytestmark = pytest.mark.usefixtures("any_drawing")

SHAPE = 2
TABLE = {
    "model": {"generator": "diffusion", "latent_dim": 6, "width": 4, "drawing": {"shape": SHAPE}},
    "method": {"name": "diffusion", "draws": 2, "symmetric": True},
    "privacy": {"epsilon": 3.0, "delta": 1e-5},
    "training": {"device": "cpu", "steps": 2},
}


@pytest.fixture(scope="module")
def prepared():
    """A method on digits, each class with a template, up to the first step; its network is no longer zero."""
    method = method_of_digits(config_of(model={"drawing": {"shape": SHAPE}}, templates="class"))
    method.prepare()
    disturbed(method.newest)
    return method


def test_a_record_does_not_change_the_displacement_of_another(prepared):
    images = prepared._images
    gone = torch.zeros(len(images), dtype=torch.bool)
    gone[[0, 7]] = True
    before = prepared._known
    prepared._images = images.zeroed_out(gone)
    del prepared._known
    after = prepared._known
    prepared._images = images
    assert torch.equal(before[~gone], after[~gone])
    assert before[gone].any()
    assert not after[gone].any()
    assert before.shape == (len(images), 2 * SHAPE)


def test_a_drawn_image_is_bent_by_the_displacement_that_brings_it_back(prepared):
    """Texture and displacement of an image, put together again, are near it; the texture alone is not."""
    images, labels = (part[:50] for part in (to_float(prepared._images.images), prepared._images.labels))
    generator = prepared.newest
    shapes = generator.known(images, labels)
    states = generator.states(images, shapes)
    texture = states[:, :64].view_as(images)
    generator._residual = lambda noisy, rows, level: states - generator._centers(rows)
    try:  # a closed form without variance: the flow ends at the state
        still = generator.factor.clone()
        generator.factor.data.zero_()
        drawn = generator(torch.zeros(50, generator.latent_dim), labels)
    finally:
        del generator._residual
        generator.factor.data.copy_(still)
    assert (drawn - images).abs().mean() < 0.5 * (texture - images).abs().mean()


def test_an_attack_sees_the_loss_on_the_released_template(prepared):
    images, labels = (part[:5] for part in (to_float(prepared._images.images), prepared._images.labels))
    other = DiffusionGenerator(prepared.newest.config, (1, 8, 8), 10)
    weights = prepared.newest.state_dict()
    other.load_state_dict(weights)
    assert torch.equal(other.denoising_loss(images, labels), prepared.newest.denoising_loss(images, labels))
    other.load_state_dict({**weights, "template": weights["template"].roll(3, dims=-1)})
    assert not torch.allclose(other.denoising_loss(images, labels), prepared.newest.denoising_loss(images, labels))


@pytest.mark.parametrize("how", ["emptied", "unlabeled"])
def test_from_folder_to_step(small_tiles, tmp_path, monkeypatch, how):
    """Given equal releases, the clipped sums of both folders differ by a record of norm at most C."""
    data = data_of(write_metadata(tmp_path / "metadata"))
    change, answers, call = Change(record(data), how), [], CellSums.exact
    (left, _), (right, after) = (method_of(d, TABLE) for d in (data, neighbor(data, tmp_path, change)))
    assert int(after.private.null.sum()) == 1

    def equal_releases(sums, *batches):  # the second run sees what the first released, as the proof assumes
        answers.append((sums, call(sums, *batches)))
        rounds = ROUNDS + 1
        return answers[-1][1] if len(answers) <= rounds else answers[len(answers) - 1 - rounds][1]

    monkeypatch.setattr(CellSums, "exact", equal_releases)
    sums = []
    for method in (left, right):
        method.prepare()
        disturbed(method.newest)
        weights, tiles = dict(method.newest.network.named_parameters()), method.tiles
        everybody = map(method._records, tiles.places(torch.arange(len(method._images))))
        sums.append(method.dpsgd.clipped_sum(method.newest.loss, weights, everybody, tiles).sums)
    assert len(answers) == 2 * (ROUNDS + 1)
    assert left.ledger.events == right.ledger.events == left.plan.start_events
    moved = torch.cat([(sums[0][name] - sums[1][name]).flatten() for name in sums[0]]).norm().item() * left.dpsgd.step
    assert 0.3 * left.config.clip_norm < moved <= left.config.clip_norm
