"""A split network: what leaves a phone is paid for before it is read, and noisy training helps against its noise."""

import itertools
import math

import pytest
import torch

import idpgan
from idpgan import trainer
from idpgan.audit.entry import Request
from idpgan.classify.arden import fit_phone, noisy_loss, response_loss
from idpgan.commands.audit import audit_entry
from idpgan.data.load import Split, load
from idpgan.errors import ConfigError, InputError
from idpgan.models.private_classifier import SplitCnn, nullify
from idpgan.privacy import BudgetError, Ledger, Noise, RandomizedResponse
from idpgan.privacy.collaborative import FeatureNoise
from idpgan.privacy.ledger import Budget
from idpgan.training.config import build_config, load_method, refuse_unsound
from idpgan.training.plan import plan_run
from tests.classify.test_release import said
from tests.classify.test_steps import split_of
from tests.release.forging import verdict


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Train the phone's part for a moment; of a network that learns, tests ask by `fit_phone`."""
    monkeypatch.setattr("idpgan.classify.arden._PHONE_STEPS", 3)


def config_of(steps=4, epsilon=20.0, label_epsilon=2.0, public=0.0, **method):
    return build_config(
        {
            "data": {"name": "digits", "public_share": public, "confirm_public": public > 0},
            "method": {"name": "arden", "width": 4, **method},
            "privacy": {"epsilon": epsilon, "label_epsilon": label_epsilon, "accept_unsound": True},
            "training": {"steps": steps, "batch_size": 32, "tick_steps": 2},
        },
        "test",
    )


def method_of(config, split, seed=1, ledger=None):
    return load_method("arden").Method.of(
        config, split, ledger=ledger, device=torch.device("cpu"), noise=Noise.fixed(seed)
    )


def trained(config, split, steps=None, **options):
    method = method_of(config, split, **options)
    method.prepare()
    for step in range(1, (config.training.steps if steps is None else steps) + 1):
        method.step(step)
    return method


def with_public(num=24):
    """Random private images, and as many public ones."""
    private, public = split_of(num), split_of(num, seed=1)
    return Split(public.private, private.private, private.holdout, private.test)


def test_everything_is_paid_for_before_an_image_is_read():
    split, config = split_of(24), config_of(epsilon=20.0, label_epsilon=2.0, features=3)
    method = trained(config, split)
    assert method.ledger.events == plan_run(config, split.shape).events
    assert sum(event.pure for event in method.ledger.events) <= 20.0
    assert method.ledger.epsilon(0.0) == pytest.approx(20.0, rel=1e-3)
    assert method.step_event() is None  # steps see only what was released
    report = method.privacy()
    assert report.claimed.epsilon - 2.0 == pytest.approx(math.log(0.95 * math.exp(18 / 3) + 0.05), rel=1e-3)
    assert report.proven.epsilon > 2 * report.claimed.epsilon

    poor = Ledger(method.plan.unit, method.plan.relation, Budget(19.0, 1e-6))
    refused = method_of(config, split, ledger=poor)
    refused._release = lambda: pytest.fail("read without a charge")
    with pytest.raises(BudgetError):
        refused.prepare()


def test_raw_images_are_let_go_of_and_steps_do_not_need_them():
    split = with_public()
    other = Split(split.public, split_of(24, seed=5).private, split.holdout, split.test)
    methods = [trained(config_of(), each, 0) for each in (split, other)]
    assert all(len(method._images) == 0 for method in methods)
    assert not torch.equal(methods[0]._steps, methods[1]._steps)
    methods[1]._take(methods[0]._steps, methods[0]._labels)  # the very same release: the very same classifier
    methods[1]._clean, methods[1]._rng = methods[0]._clean, methods[0]._rng.clone_state()
    for method in methods:
        method.step(1)
    for one, two in zip(*(method.product.state_dict().values() for method in methods), strict=True):
        assert torch.equal(one, two)


class TestFeatureNoise:
    CHANNEL = FeatureNoise(5, 2.0)

    def test_no_pair_of_outputs_tells_more_than_epsilon(self):
        """Brute force: worst log-ratio over extreme and random features, on the grid, by the law of the noise."""
        steps = self.CHANNEL.grid.round(torch.cat([torch.ones(1, 5), -torch.ones(1, 5), torch.rand(60, 5) * 2 - 1]))
        distances = torch.cdist(steps.double(), steps.double(), p=1) / self.CHANNEL.mechanism.scale
        assert distances.max() <= 2.0
        assert distances.max() == pytest.approx(2.0, rel=1e-3)  # the outlier nearly reaches it
        one = FeatureNoise(1, 2.0)
        assert one.scale < self.CHANNEL.scale / 4.9
        assert distances.max() * self.CHANNEL.scale / one.scale > 9  # negative control: the noise of one feature

    def test_the_noise_is_that_of_its_scale(self):
        sent = self.CHANNEL.release(torch.zeros(20_000, 5), Noise.fixed(1)).abs().double() * self.CHANNEL.grid.step
        assert sent.mean() == pytest.approx(self.CHANNEL.scale, rel=0.02)
        public = self.CHANNEL.perturb_public(torch.zeros(20_000, 5), torch.Generator().manual_seed(1)).abs()
        assert public.mean() == pytest.approx(self.CHANNEL.scale, rel=0.02)

    def test_what_is_beyond_the_bound_or_no_number_is_brought_inside(self):
        precise = FeatureNoise(3, 1e9)
        sent = precise.values(precise.release(torch.tensor([[math.nan, 7.0, -math.inf]]), Noise.fixed(1)))
        assert torch.allclose(sent, torch.tensor([[0.0, 1.0, -1.0]]), atol=0.01)


def test_features_of_any_image_lie_within_the_bound():
    network = SplitCnn((1, 8, 8), ("a", "b"), features=6).eval()
    with torch.no_grad():
        network.phone[-1].weight.mul_(1000)
        features = network.features(torch.rand(50, 1, 8, 8) * 2 - 1)
    assert features.abs().max() <= 1
    assert torch.allclose(features.abs().amax(1), torch.ones(50))  # clipped by the largest, not one by one
    assert network.features(torch.zeros(1, 1, 8, 8)).shape == (1, 6)


def test_nullified_pixels_are_black_in_all_channels():
    images, coins = torch.rand(2000, 3, 4, 4), Noise.fixed(1).uniform((2000, 1, 4, 4))
    black = (nullify(images, coins, 0.2) == -1).float()
    assert black.mean() == pytest.approx(0.2, abs=0.01)
    assert torch.equal(black.amin(1), black.amax(1))
    assert nullify(images, coins, 0.0) is images


@pytest.mark.trained
def test_noisy_training_is_better_than_plain_training_under_noise():
    config = config_of(public=0.5)
    split = load(config.data)
    public, holdout, accuracies = split.public.existing(), split.holdout.existing(), {}
    network = SplitCnn(split.image_shape, split.classes, width=4, features=16).eval()
    fit_phone(network, public, 150, torch.Generator().manual_seed(1))
    channel, start = FeatureNoise(16, 60.0), network.cloud.state_dict()
    start = {name: weight.clone() for name, weight in start.items()}
    with torch.no_grad():
        features = network.features(public.images.float() / 127.5 - 1)
    for weight, seed in itertools.product((1.0, 0.0), (2, 3, 4)):
        network.cloud.load_state_dict(start)
        optimizer = torch.optim.Adam(network.cloud.parameters(), 2e-3)
        rng = torch.Generator().manual_seed(seed)
        for _ in range(300):
            chosen = torch.randint(len(public), (128,), generator=rng)
            known = features[chosen], features[chosen], public.labels[chosen]
            loss = noisy_loss(network.cloud, *known, channel, rng, clean_weight=weight, radius=1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        images, labels = holdout.images.repeat(10, 1, 1, 1), holdout.labels.repeat(10)
        sent = network.perturb(images, 60.0, noise=Noise.fixed(3))
        accuracy = (network.predict_features(sent) == labels).double().mean().item()
        accuracies[weight] = accuracies.get(weight, 0.0) + accuracy / 3
    assert accuracies[0.0] > accuracies[1.0]
    quiet = network.perturb(holdout.images, 1e9, noise=Noise.fixed(3))  # negative control: noise off
    assert (network.predict_features(quiet) == network.predict(holdout.images)).double().mean() > 0.99
    assert accuracies[0.0] < (network.predict(holdout.images) == holdout.labels).double().mean() - 0.02


@pytest.mark.trained
def test_the_loss_of_a_response_sees_through_it():
    response, truth = RandomizedResponse(3, 1.0), torch.tensor([0] * 6000 + [1] * 3000)
    told = response(truth, Noise.fixed(1))
    logits = torch.zeros(1, 3, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=60)

    def closure():
        optimizer.zero_grad()
        loss = response_loss(logits.expand(len(told), 3), told, response.probabilities)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert (logits.softmax(1)[0] - torch.tensor([2 / 3, 1 / 3, 0.0])).abs().max() < 0.06
    raw = torch.bincount(told, minlength=3) / len(told)  # negative control: the told labels themselves
    assert raw[2] > 0.15


def test_a_resumed_training_goes_on_as_if_nothing_had_happened():
    split, config = with_public(), config_of(4)
    whole, half = trained(config, split), trained(config, split, 2)
    again = method_of(config, split)
    again.load_state(half.state())
    assert len(again._images) == 0
    for step in (3, 4):
        again.step(step)
    for one, other in zip(whole.product.parameters(), again.product.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_phone_is_frozen_once_images_have_gone_through_it():
    method = trained(config_of(), with_public(), 0)
    before = [weight.clone() for weight in method.newest.phone.parameters()]
    for step in (1, 2, 3):
        method.step(step)
    assert all(torch.equal(a, b) for a, b in zip(before, method.newest.phone.parameters(), strict=True))


def test_a_null_record_is_released_like_any_other():
    split = split_of(24)
    empty = Split(split.public, split.private.zeroed_out(torch.arange(24)), split.holdout, split.test)
    method = trained(config_of(epsilon=1e9), empty, 0)
    assert len(method._steps) == 24
    assert method._steps.double().std(0).max() * method.channel.grid.step < 0.2  # nullification aside all the same


def test_an_audit_refutes_the_claim_of_one_feature_and_not_the_proof():
    audited = audit_entry("arden").case("arden", Request(4.0)).run(3000, seed=1)
    assert audited.case.claimed.epsilon < 0.3
    assert audited.case.proven.epsilon <= 4.0
    assert audited.exceeds_claim
    assert not audited.violation


def test_a_run_is_released_as_what_it_is(tmp_path):
    config = config_of(2, epsilon=9.0, public=0.2)
    path = trainer.start(config, tmp_path / "run").run.path
    assert verdict(path) == ""
    classifier = idpgan.load_classifier(path)
    assert 8.9 < classifier.privacy.proven.epsilon <= 9.0
    assert classifier.privacy.claimed.epsilon < 5
    images = load(config.data).holdout.images
    sent = classifier.perturb(images, 7.0, nullification=0.05)
    assert classifier.predict_features(sent).shape == (len(images),)
    assert not torch.equal(sent, classifier.perturb(images, 7.0, nullification=0.05))
    code, out, _ = said("audit", path, "--runs", 500, "--seed", 1)
    assert code == 0
    assert "label 0 against 1" in out


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ConfigError, match="leaves nothing"):
        config_of(epsilon=2.0, label_epsilon=2.0)
    unsaid = config_of().privacy.model_copy(update={"accept_unsound": False})
    with pytest.raises(ConfigError, match="unsound"):
        refuse_unsound(config_of().model_copy(update={"privacy": unsaid}))
    with pytest.raises(ConfigError, match="at least 2"):
        plan_run(config_of(), split_of(24, labels=False).shape).check()
    network = SplitCnn((1, 8, 8), ("a", "b"))
    for bad in ({"epsilon": 0.0}, {"epsilon": math.inf}, {"epsilon": 1.0, "nullification": 1.0}):
        with pytest.raises(InputError, match="must be positive"):
            network.perturb(torch.zeros(1, 1, 8, 8), **bad)
    with pytest.raises(InputError, match="phone takes"):
        network.perturb(torch.zeros(1, 1, 9, 9), 1.0)
    with pytest.raises(InputError, match="cloud takes"):
        network.predict_features(torch.zeros(1, 3))
