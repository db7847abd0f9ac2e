"""IDP-GAN as published: what reads private images, what is charged for it, and what is proven."""

import gc
import logging
import math
import weakref

import pytest
import torch

from idpgan import trainer
from idpgan.config import build
from idpgan.data.config import DataConfig
from idpgan.data.images import Images, attribute_classes, to_float
from idpgan.data.load import Split, load
from idpgan.errors import ConfigError
from idpgan.models.perturbed import PerturbedAffine, build_critic
from idpgan.privacy import Budget, BudgetError, Ledger, Noise, compose_epsilon
from idpgan.synthesis.idp_published import Method as IdpPublished
from idpgan.synthesis.idp_published_plan import Settings as Config
from idpgan.synthesis.idp_published_plan import label_targets
from idpgan.training.plan import plan_run
from idpgan.training.stats import read_stats
from tests.training.toy import CPU, bits, digits, killed_and_resumed, terms_of, train_on_digits


def config(*, method=None, privacy=None, model=None, **training):
    table = {
        "model": {"width": 4, "latent_dim": 4, **(model or {})},
        "method": {"features": 6, "critic_steps_per_generator_step": 2, **(method or {})},
        "privacy": {
            "epsilon1": 1.0, "epsilon2": 1.0, "noise": "once", "delta": 1e-5, "accept_unsound": True, **(privacy or {})
        },
        "training": {"steps": 20, "tick_steps": 5, "batch_size": 8, "device": "cpu", **training},
    }  # fmt: skip
    return build(Config, table, "run.toml")


PLAIN = {"conditional": False}


def make(settings, split=None, **options):
    options = {"noise": Noise.fixed(1), **options}
    return IdpPublished.of(settings, split or digits(), device=CPU, **options)


def prepared(settings, split=None, **options):
    method = make(settings, split, **options)
    method.prepare()
    return method


def small(count=24, side=8, classes=("a", "b", "c"), seed=0):
    """A split of random images of which each test may do what it wants."""
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, 1, side, side), generator=rng, dtype=torch.uint8)
    private = Images(images, torch.arange(count) % len(classes), classes)
    empty = private.select(torch.zeros(0, dtype=torch.int64))
    return Split(public=empty, private=private, holdout=empty, test=empty)


def steps(method, count):
    return [method.step(step) for step in range(1, count + 1)]


# Claimed and proven ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "epsilon"), [(14, 9.82343), (28, 4.33768)])
def test_golden_epsilon_through_the_method(ratio, epsilon):
    # b0 = D0 / (eps1 |L|), range 2: D0 = 2 ratio * eps1 * |L|.
    settings = config(model=PLAIN, privacy={"sensitivity": 2.0 * ratio * 0.25 * 8, "epsilon1": 0.25})
    report = prepared(settings, small(side=28)).privacy()
    assert report.proven.epsilon == pytest.approx(epsilon, abs=1e-3)
    assert report.claimed.epsilon == 1.25
    assert (report.proven.unit, report.proven.relation, report.proven.delta) == ("image", "replace-one", 1e-5)


def test_the_reference_setting_on_mnist_sized_images():
    settings = config(model=PLAIN, privacy={"epsilon1": 0.5}, batch_size=256)
    method = prepared(settings, small(count=256, side=28))
    noise = method.critic.first.pixel_noise
    assert noise.scale == pytest.approx(77, abs=1)
    assert method.privacy().proven == method.ledger.proven(1e-5)
    assert method.ledger.events == noise.events()


def test_what_is_proven_depends_on_when_noise_is_drawn():
    reports = {
        draw: prepared(config(model=PLAIN, privacy={"noise": draw}), small()).privacy()
        for draw in ("once", "per_step", "per_batch")
    }
    assert {report.claimed.epsilon for report in reports.values()} == {2.0}  # whatever is proven
    once, each, shared = (reports[draw].proven.epsilon for draw in ("once", "per_step", "per_batch"))
    assert once < each < shared == math.inf
    assert "shared by all images of a batch" in reports["per_batch"].reason
    assert not reports["per_batch"].private


def test_per_step_is_composed_over_the_most_accesses_fixed_in_advance():
    settings = config(model=PLAIN, privacy={"noise": "per_step"}, steps=7)
    method = prepared(settings, small(count=24))  # 7 steps of 8 among 24: at most 3 accesses
    assert method.ledger.events[0].count == 3 * 64
    seen = torch.zeros(24)
    for _ in range(7):
        seen[method._next_index()] += 1
    assert seen.max() <= 3
    assert seen.sum() == 56
    assert method.step_event() is None


@pytest.mark.parametrize(("count", "batch_size"), [(24, 8), (25, 8), (9, 8), (8, 8)])
def test_no_image_is_drawn_more_often_than_was_charged(count, batch_size):
    method = prepared(config(model=PLAIN, batch_size=batch_size, steps=20), small(count=count))
    seen = torch.zeros(count)
    for _ in range(20):
        seen += torch.bincount(method._next_index(), minlength=count)
    assert seen.max() <= method.plan.most_accesses == math.ceil(20 * batch_size / count)


def test_the_noise_state_of_a_fixed_seed_is_no_private_release():
    assert not prepared(config(model=PLAIN)).privacy().private
    assert prepared(config(model=PLAIN), noise=Noise.system()).privacy().private


@pytest.mark.parametrize("model", [PLAIN, {"conditional": True}])
@pytest.mark.parametrize("draw", ["once", "per_step", "per_batch"])
def test_the_plan_is_what_a_run_charges(model, draw):
    settings = config(model=model, privacy={"noise": draw})
    assert prepared(settings).ledger.events == plan_run(settings, digits().shape).events


# Labels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "change", "bound"), [("cross-entropy", 1, 6 + 36 / 4), ("squared-error", 2, 12 + 36)])
def test_labels_pay_for_every_access_of_their_coefficients(loss, change, bound):
    given = [config(model={"conditional": c}, method={"loss": loss}, steps=9) for c in (False, True)]
    plain, conditional = (prepared(settings, small()) for settings in given)
    images, labels = conditional.ledger.events
    assert plain.ledger.events == (images,)
    sensitivity = 4 * bound  # M = 1 + 3 classes, d = 6
    assert labels.noise_multiplier == pytest.approx(sensitivity / 8 / change)
    assert labels.count == 2 * 6 * 3  # 2 d numbers per access, ceil(9 * 8 / 24) accesses
    both = conditional.privacy().proven.epsilon
    assert both > plain.privacy().proven.epsilon
    assert both == compose_epsilon([images, labels], 1e-5)


ATTRIBUTES = ("glasses", "smiling", "beard")


def multi_label(**options):
    """Settings and a split whose classes are the combinations of three attributes."""
    settings = config(**options)
    data = settings.data.model_copy(update={"name": "faces", "label": ATTRIBUTES})
    return settings.model_copy(update={"data": data}), small(classes=attribute_classes(ATTRIBUTES))


def test_attributes_are_outputs_of_their_own_and_a_label_may_change_all_of_them():
    settings, split = multi_label(steps=9)
    method = prepared(settings, split)
    assert method.critic.weight.shape[0] == 1 + 3
    labels = method.ledger.events[1]
    assert labels.count == 3 * 6 * 3  # A d numbers per access, ceil(9 * 8 / 24) accesses
    assert labels.noise_multiplier == pytest.approx(4 * (6 + 36 / 4) / 8)


def test_the_targets_of_attributes_are_the_bits_of_the_label():
    settings, _ = multi_label()
    targets = label_targets(settings, torch.tensor([0, 5, 7]), 8)
    assert targets.tolist() == [[0, 0, 0], [1, 0, 1], [1, 1, 1]]
    names = [attribute_classes(ATTRIBUTES)[5].split(", ")[bit] for bit in range(3)]
    assert names == ["glasses", "no smiling", "beard"]


@pytest.mark.parametrize("privacy", [{}, {"label_epsilon": 1.0}, {"label_path": "autograd"}])
def test_it_trains_on_attributes(privacy):
    settings, split = multi_label(privacy=privacy)
    method = prepared(settings, split)
    stats = steps(method, 4)
    assert all(torch.isfinite(value) for row in stats for value in row.values())
    assert method.generator.sample(8, seed=0).shape == (8, 1, 8, 8)
    assert math.isinf(method.privacy().proven.epsilon) == ("label_path" in privacy)


@pytest.mark.trained
def test_the_critic_learns_the_attributes_without_noise_to_speak_of():
    quiet = {"epsilon1": 1e6, "epsilon2": 1e8, "label_path": "autograd"}
    settings, split = multi_label(
        privacy=quiet, method={"learning_rate": 5e-3, "features": 16}, model={"width": 16}, batch_size=24, steps=60
    )
    labels = torch.arange(24) % 8
    bright = labels.unsqueeze(1) >> torch.arange(3) & 1  # each bit lights about a third of the image
    images = bright.repeat_interleave(3, 1)[:, :8].view(24, 1, 1, 8).expand(24, 1, 8, 8) * 255
    private = Images(images.to(torch.uint8).contiguous(), labels, split.classes)
    method = prepared(settings, Split(split.public, private, split.holdout, split.test))
    steps(method, 60)
    outputs = method.critic(to_float(private.images))[:, 1:]
    assert ((outputs > 0) == bright.bool()).float().mean() > 0.9


def weights_after_a_step(label_path, labels, seed=1):
    split = small()
    private = Images(split.private.images, labels, split.classes)
    settings = config(privacy={"label_path": label_path, "epsilon2": 1e3})
    method = prepared(settings, Split(split.public, private, split.holdout, split.test), noise=Noise.fixed(seed))
    method.critic_step(1)
    hidden = [p.detach().clone() for name, p in method.critic.named_parameters() if name != "weight"]
    return hidden, method.critic.weight.detach().clone()


def test_coefficients_keep_raw_labels_from_the_hidden_layers_and_literal_autograd_does_not():
    labels = small().private.labels
    other = (labels + 1) % 3
    hidden, last = weights_after_a_step("coefficients", labels)
    hidden_other, last_other = weights_after_a_step("coefficients", other)
    assert bits(hidden) == bits(hidden_other)
    assert torch.equal(last[:1], last_other[:1])  # the real/fake output knows no class
    assert not torch.equal(last[1:], last_other[1:])
    leaked, _ = weights_after_a_step("autograd", labels)
    leaked_other, _ = weights_after_a_step("autograd", other)
    assert bits(leaked) != bits(leaked_other)
    report = prepared(config(privacy={"label_path": "autograd"})).privacy()
    assert report.proven.epsilon == math.inf
    assert "past the noise" in report.reason


def test_labels_as_input_need_randomized_response():
    with pytest.raises(ConfigError, match=r"label_input = true makes raw labels an input.*label_epsilon"):
        config(method={"label_input": True}, privacy={"accept_unsound": False})
    accepted = prepared(config(method={"label_input": True}))
    assert accepted.privacy().proven.epsilon == math.inf
    assert accepted.privacy().reason == "raw labels are an input of the critic"
    method = prepared(config(method={"label_input": True}, privacy={"label_epsilon": 1.0}))
    assert [event.kind for event in method.ledger.events] == ["laplace", "randomized-response"]
    changed = (method._labels != digits().private.labels).double().mean().item()
    assert changed == pytest.approx(9 / (9 + math.e), abs=0.05)
    assert math.isfinite(method.privacy().proven.epsilon)
    steps(method, 2)


def test_randomized_labels_are_never_asked_for_again():
    method = prepared(config(privacy={"label_epsilon": 1.0}))
    before = method.noise.state()
    steps(method, 4)
    assert method.noise.state() == before  # nothing secret is drawn after `prepare`
    raw = prepared(config())
    before = raw.noise.state()
    steps(raw, 1)
    assert raw.noise.state() != before  # fresh noise for each step's coefficients


# What sees raw images ----------------------------------------------------------------------------------------------


def test_noise_drawn_once_is_the_same_in_every_epoch():
    method = prepared(config(model=PLAIN), small(count=16))
    kept = method._images.clone()
    raw = to_float(small(count=16).private.images)
    assert (kept - raw).abs().mean() > 50
    for _ in range(3):  # 3 epochs of 2 batches
        index = method._order.clone()
        batches = [method._real_batch()[0] for _ in range(2)]
        index = method._order
        assert torch.equal(torch.cat(batches), kept[index])
    each = prepared(config(model=PLAIN, privacy={"noise": "per_step"}, batch_size=16), small(count=16))
    first, second = (each._real_batch()[0][each._order.argsort()] for _ in range(2))
    assert (first - second).abs().mean() > 10  # negative control: fresh noise at each access


def test_training_neither_touches_nor_needs_the_source_after_prepare():
    results = []
    for poison in (False, True):
        split = small()
        method = prepared(config(), split)
        if poison:
            split.private.images.fill_(255)
            split.private.labels.fill_(0)
        steps(method, 6)
        results.append(bits(method.state()))
    assert results[0] == results[1]
    # Negative control: with fresh noise at each step the source is read.
    changed = []
    for poison in (False, True):
        split = small()
        method = prepared(config(privacy={"noise": "per_step"}), split)
        if poison:
            split.private.images.fill_(255)
        steps(method, 6)
        changed.append(bits(method.state()))
    assert changed[0] != changed[1]


def test_raw_images_are_gone_after_prepare():
    split = small()
    alive = weakref.ref(split.private.images)
    method = prepared(config(), split)
    del split
    gc.collect()
    assert alive() is None
    steps(method, 2)
    split = small()
    alive = weakref.ref(split.private.images)
    kept = prepared(config(privacy={"noise": "per_step"}), split)  # negative control
    del split
    gc.collect()
    assert alive() is not None
    assert kept._raw is not None


@pytest.mark.parametrize("draw", ["once", "per_step"])
def test_no_loss_term_sees_a_raw_image(draw):
    method = prepared(config(privacy={"noise": draw, "sensitivity": 8e4}))  # scale 10,000: a raw pixel would stand out
    seen = []
    method.critic.first.register_forward_hook(lambda module, args, out: seen.append(args[0].detach()))
    steps(method, 2)
    assert len(seen) == 2 * 3 + 1  # reals, fakes, interpolates; fakes of the generator step
    for batch in seen:
        assert batch.abs().flatten(1).mean(1).min() > 1000


def test_what_cannot_be_paid_is_not_read():
    settings = config()
    unit, relation, _ = terms_of(settings)
    method = make(settings, small(), ledger=Ledger(unit, relation, Budget(1e-3, 1e-5)))
    state = method.noise.state()
    with pytest.raises(BudgetError):
        method.prepare()
    assert method._images is None
    assert method.noise.state() == state
    method._raw = None
    with pytest.raises(RuntimeError, match="prepare"):
        method.critic_step(1)


# Training ----------------------------------------------------------------------------------------------------------


def test_noise_on_coefficients_has_the_law_of_sums_of_laplace_numbers():
    method = prepared(config(model=PLAIN, method={"features": 20}), small())
    firsts, seconds = [], []
    for _ in range(400):
        first, second = method._coefficient_noise_sums()
        assert torch.equal(second, second.mT)
        firsts.append(first)
        seconds.append(second[:, *torch.triu_indices(20, 20)])
    scale = (20 + 400 / 4) / 8  # DF / (eps2 |L|), M = 1
    expected = 2 * 8 * 2 * scale**2  # variance of 2 |L| Laplace numbers
    for sample in (torch.stack(firsts), torch.stack(seconds)):
        variance = sample.double().var().item()
        error = 5 * math.sqrt((2 + 3 / 16) / sample.numel())  # 5 standard errors
        assert variance == pytest.approx(expected, rel=error)
        assert abs(variance / (expected * 0.81) - 1) > error  # 10 % less noise would be seen


def test_secret_noise_of_labels_is_not_drawn_twice():
    secret, public = prepared(config(), small()), prepared(config(privacy={"label_epsilon": 1.0}), small())
    for method, records in ((secret, 8), (public, 16)):  # order 1 of classes: fakes only, or reals too
        first = torch.stack([method._coefficient_noise_sums()[0] for _ in range(2000)]).double()
        scale = method.plan.coefficient_scale
        assert first[:, 0].var().item() == pytest.approx(16 * 2 * scale**2, rel=0.1)
        assert first[:, 1:].var().item() == pytest.approx(records * 2 * scale**2, rel=0.1)


@pytest.mark.parametrize("model", [PLAIN, {"conditional": True}])
@pytest.mark.parametrize("method", [{"first_layer": "conv"}, {"first_layer": "linear"}, {"loss": "squared-error"}])
def test_it_trains(model, method):
    method = prepared(config(model=model, method=method))
    average = method.generator.state_dict()
    average = {name: tensor.clone() for name, tensor in average.items()}
    stats = steps(method, 4)
    assert stats[0].keys() == {"critic_loss", "taylor_loss", "gradient_penalty", "unbounded_below"}
    assert stats[1].keys() == {"critic_loss", "taylor_loss", "gradient_penalty", "generator_loss"}
    assert all(value.isfinite() and value.dim() == 0 and not value.requires_grad for s in stats for value in s.values())
    assert any(not torch.equal(average[name], t) for name, t in method.generator.state_dict().items())


@pytest.mark.trained
@pytest.mark.parametrize("loss", ["cross-entropy", "squared-error"])
def test_without_noise_to_speak_of_the_critic_tells_real_from_fake(loss):
    quiet, own = {"epsilon1": 1e6, "epsilon2": 1e6}, {"learning_rate": 2e-3, "gradient_penalty": 0.0, "loss": loss}
    method = prepared(config(model=PLAIN, privacy=quiet, method=own))
    early, *_, late = (stats["taylor_loss"].item() for stats in (method.critic_step(step) for step in range(1, 120)))
    assert late < early - 0.5
    loud = prepared(config(model=PLAIN, method={"learning_rate": 2e-3, "gradient_penalty": 0.0}))
    real, fake = method._real_batch()[0], method.networks.fakes(method.batch_size)[0]
    assert method.critic(real)[:, 0].mean() > method.critic(fake)[:, 0].mean() + 1
    assert loud.critic.first.pixel_noise.scale > 10


def test_a_loss_without_lower_bound_is_reported_in_stats_and_log(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        train_on_digits(tmp_path / "run", config(model=PLAIN, steps=5), kind=IdpPublished)
    assert read_stats(tmp_path / "run" / "stats.jsonl")[-1]["unbounded_below"] == 1.0
    assert sum("without a lower bound" in message for message in caplog.messages) == 1
    caplog.clear()
    quiet = prepared(config(model=PLAIN, privacy={"epsilon2": 1e9}, method={"l2": 1e-3}))
    assert quiet.critic_step(1)["unbounded_below"] == 0
    quiet.state()
    assert not caplog.messages


@pytest.mark.parametrize(
    ("draw", "model"), [("once", {"conditional": True}), ("once", PLAIN), ("per_step", {"conditional": True})]
)
def test_a_resumed_run_is_the_uninterrupted_one_and_pays_once(tmp_path, draw, model):
    settings = config(model=model, privacy={"noise": draw})
    method = killed_and_resumed(tmp_path, settings, IdpPublished)
    assert method.ledger.events == plan_run(settings, digits().shape).events
    assert (method._raw is None) is (draw == "once")


# Allocation by relevance -------------------------------------------------------------------------------------------


def test_relevance_comes_from_public_images_only_and_is_charged_by_bins():
    split = load(DataConfig(name="digits", public_share=0.2, confirm_public=True))
    settings = config(model=PLAIN, method={"allocation": "relevance"})
    method = prepared(settings, split)
    beta = method.critic.first.pixel_noise.allocation
    assert math.fsum(beta) == pytest.approx(64)
    assert max(beta) > 1.5
    assert min(beta) < 0.6
    assert len(method.ledger.events) > 5
    black = Images(torch.zeros_like(split.private.images), split.private.labels, split.classes)
    other = prepared(settings, Split(split.public, black, split.holdout, split.test))
    assert other.critic.first.pixel_noise.allocation == beta
    planned = compose_epsilon(plan_run(settings, split.shape).events, 1e-5)  # known without reading an image
    assert method.privacy().proven.epsilon < planned
    resumed = make(settings, split)
    resumed.load_state(method.state())
    assert resumed.critic.first.pixel_noise.allocation == pytest.approx(beta)
    with pytest.raises(ConfigError, match="needs public images"):
        make(settings)


# Bad input ---------------------------------------------------------------------------------------------------------


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ConfigError, match=r"batch_size = 25 \(\|L\|\) exceeds the 24 private images.*24 at most"):
        make(config(batch_size=25), small())
    with pytest.raises(ConfigError, match=r"\|L\|"):
        _ = plan_run(config(batch_size=2000), digits().shape).events


def test_a_critic_with_unbounded_last_features_is_refused():
    settings = config(model=PLAIN)
    critic = build_critic(
        settings.model, (1, 8, 8), kind="conv", num_features=6, num_outputs=1,
        perturb=lambda h0: PerturbedAffine(h0, (1, 8, 8), epsilon=1.0, batch_size=8, draw="once"),
    )  # fmt: skip
    make(settings, critic=critic)
    critic.features = lambda images, labels=None: critic.hidden(critic.first(images))
    with pytest.raises(ConfigError, match="last features"):
        make(settings, critic=critic)


def test_privacy_keys_have_no_defaults_and_the_method_needs_accept_unsound():
    with pytest.raises(ConfigError, match=r"privacy\.epsilon1"):
        trainer.load_config(None, ["method={name='idp-gan-published'}", "privacy={epsilon2=1,noise='once'}"])
    overrides = ["method={name='idp-gan-published'}", "privacy={epsilon1=1,epsilon2=1,noise='once'}"]
    with pytest.raises(ConfigError, match="is unsound"):
        trainer.start(trainer.load_config(None, overrides))
    with pytest.raises(ConfigError, match="what a run costs depends on its number and size of images"):
        trainer.plan(config().model_copy(update={"data": DataConfig(name="folder", root="nowhere")}))


@pytest.mark.parametrize(("count", "total"), [(24, 30), (20, 11)])
def test_steps_repeated_with_fresh_noise_pay_for_every_access_again(count, total):
    settings = config(privacy={"noise": "per_step"}, model=PLAIN, steps=total)
    method = prepared(settings, small(count))
    seen = [method._next_index() for _ in range(total)]
    (one,) = {event.single for event in method.critic.first.pixel_noise.events(1)}
    per_access = sum(event.count for event in method.critic.first.pixel_noise.events(1))
    for step in range(total):
        most = torch.bincount(torch.cat(seen[step:]), minlength=count).max().item()
        (again,) = method.paid_ahead(step)
        assert again.single == one
        assert most * per_access <= again.count <= (most + 2) * per_access
    assert method.paid_ahead(total) == ()
    assert prepared(config(privacy={"noise": "once"}, model=PLAIN), small(count)).paid_ahead(0) == ()
