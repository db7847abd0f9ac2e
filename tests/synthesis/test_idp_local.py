"""The local form: the channel keeps its target, generated images go through it too, and raw data is read once."""

import gc
import math
import weakref

import pytest
import torch
from scipy.stats import kstest, laplace, norm

from idpgan import trainer
from idpgan.config import build
from idpgan.data.config import DataConfig
from idpgan.data.images import Images, to_float
from idpgan.data.load import Split, load
from idpgan.errors import ConfigError
from idpgan.privacy import Budget, BudgetError, Ledger, Noise, compose_epsilon
from idpgan.synthesis.local import IdpLocal
from idpgan.synthesis.local import LocalRun as Config
from idpgan.synthesis.local_channel import ChannelPrivacy, build_channel, dct_basis, solve
from idpgan.training.plan import plan_run
from tests.training.toy import CPU, bits, digits, killed_and_resumed, terms_of, train_on_digits

SHAPE = (1, 8, 8)
DCT = {"projection": "dct", "coefficients": 6}


def config(*, method=None, privacy=None, model=None, **training):
    table = {
        "model": {"width": 4, "latent_dim": 4, **(model or {})},
        "method": {"name": "idp-gan-local", "critic_steps_per_generator_step": 2, **DCT, **(method or {})},
        "privacy": {"epsilon": 4.0, "label_epsilon": 1.0, "delta": 1e-5, **(privacy or {})},
        "training": {"steps": 20, "tick_steps": 5, "batch_size": 8, "device": "cpu", **training},
    }
    return build(Config, table, "run.toml")


def make(settings, split=None, **options):
    options = {"noise": Noise.fixed(1), **options}
    return IdpLocal.of(settings, split or digits(), device=CPU, **options)


def prepared(settings, split=None, **options):
    method = make(settings, split, **options)
    method.prepare()
    return method


def channel(bound="clamp", coefficients=6, projection="dct", epsilon=4.0, clip_norm=None, public=None):
    terms = ChannelPrivacy(coefficients, bound, epsilon, 1e-5)
    return build_channel(terms, projection, SHAPE, public or digits().public, clip_norm)


def steps(method, count):
    for step in range(1, count + 1):
        method.step(step)


# Proven = requested ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", ["clamp", "l1", "l2"])
@pytest.mark.parametrize("epsilon", [0.3, 4.0])
def test_the_scale_is_solved_so_that_proven_is_what_was_asked_for(bound, epsilon):
    label = epsilon / 4
    settings = config(method={"bound": bound}, privacy={"epsilon": epsilon, "label_epsilon": label})
    method = prepared(settings)
    report = method.privacy()
    assert 0.97 * epsilon < report.proven.epsilon <= epsilon
    assert report.claimed is None
    assert (report.proven.unit, report.proven.relation) == ("image", "replace-one")
    assert method.ledger.events == plan_run(settings, digits().shape).events
    kinds = ["gaussian" if bound == "l2" else "discrete-laplace", "randomized-response"]
    assert [event.kind for event in method.ledger.events] == kinds
    assert method.ledger.events[0].count == (6 if bound == "clamp" else 1)
    assert method.step_event() is None
    with pytest.raises(BudgetError, match="exceed the target"):  # nothing is left
        method.ledger.charge(method.ledger.events[0])


def test_pure_privacy_adds_up_and_gaussian_noise_has_none():
    method = prepared(config(privacy={"delta": 0.0}))
    assert method.privacy().proven.delta == 0
    assert 3.95 < method.privacy().proven.epsilon <= 4
    assert sum(event.count * event.pure for event in method.ledger.events) <= 4
    with pytest.raises(ConfigError, match="never pure"):
        make(config(method={"bound": "l2"}, privacy={"delta": 0.0}))


def test_784_pixels_need_the_golden_scale():
    mechanism = solve(ChannelPrivacy(784, "clamp", 9.82343, 1e-5))
    assert mechanism.event.noise_multiplier == pytest.approx(14, rel=2e-3)


def test_a_private_release_and_one_with_a_fixed_seed():
    assert not prepared(config()).privacy().private
    assert prepared(config(), noise=Noise.system()).privacy().private


# The channel -------------------------------------------------------------------------------------------------------


def test_the_dct_basis_is_orthonormal_and_starts_with_the_mean():
    for shape, count in (((1, 8, 8), 64), ((3, 4, 6), 20)):
        basis = dct_basis(shape, count)
        assert torch.allclose(basis.T @ basis, torch.eye(count), atol=1e-5)
        assert basis[:, 0].unique().numel() <= 2  # constant on its channel, zero elsewhere


@pytest.mark.parametrize("projection", ["dct", "public-pca", "pixels"])
@pytest.mark.parametrize("bound", ["clamp", "l1", "l2"])
def test_no_image_reaches_further_than_the_sensitivity(projection, bound):
    """Contract: rounded coefficients of any two images differ by at most what the mechanism is priced for."""
    public = load(DataConfig(name="digits", public_share=0.2, confirm_public=True)).public
    made = channel(bound, 64 if projection == "pixels" else 6, projection, public=public)
    rng = torch.Generator().manual_seed(0)
    images = torch.cat([torch.ones(1, *SHAPE), -torch.ones(1, *SHAPE), torch.randn(200, *SHAPE, generator=rng).sign()])
    rounded = made.privacy.grid.round(made._inside(made.encode(images * 9).double())).double()
    if bound == "clamp":
        worst = (rounded.amax(0) - rounded.amin(0)).max()
    else:
        worst = torch.cdist(rounded, rounded, p=1 if bound == "l1" else 2).max()
    assert worst <= made.mechanism.sensitivity
    if projection != "dct" or bound != "l1":
        assert worst > 0.6 * made.mechanism.sensitivity  # an outlier nearly reaches it: half would be seen


@pytest.mark.parametrize("bound", ["clamp", "l1", "l2"])
def test_noise_on_private_and_on_generated_images_has_one_law(bound):
    made = channel(bound, clip_norm=None if bound == "clamp" else 3.0)
    images = torch.zeros(20_000, *SHAPE)
    grid = made.privacy.grid
    private = made.release(images, Noise.fixed(2)).double() * grid.step
    scale = made.mechanism.scale * grid.step
    law = norm(scale=scale) if bound == "l2" else laplace(scale=scale)
    kept = {}
    made.__class__.decode, original = lambda self, c: kept.setdefault("public", c), made.__class__.decode
    try:
        made.perturb_public(images, torch.Generator().manual_seed(2))
    finally:
        made.__class__.decode = original
    for sample in (private, kept["public"].double()):
        flat = sample.flatten().numpy()[:60_000]
        assert kstest(flat, law.cdf).pvalue > 1e-3
        for factor in (0.9, 1.1):  # 10 % wrong must be rejected
            wrong = norm(scale=factor * scale) if bound == "l2" else laplace(scale=factor * scale)
            assert kstest(flat, wrong.cdf).pvalue < 1e-6
    assert (made.decode(private.float()).std() / made.pixel_std * math.sqrt(1 + made.pixel_std**2)).item() == (
        pytest.approx(1, rel=0.1)
    )


@pytest.mark.parametrize(("epsilon", "dtype"), [(1.0, torch.int32), (1e-4, torch.int64)])
def test_much_noise_is_released_too(epsilon, dtype):
    """Was a ValueError for wide noise, after the images were read and without a charge: 32 bits did not hold it."""
    terms = ChannelPrivacy(64, "l1", epsilon, 0.0)
    wide = build_channel(terms, "pixels", SHAPE, digits().public, None)
    images = to_float(digits().private.images[:20])
    released = wide.release(images, Noise.fixed(5))
    assert released.dtype == dtype
    assert (released.long().abs().max() >= 1 << 31) == (dtype is torch.int64)
    noise = wide.decode_steps(released) * math.sqrt(1 + wide.pixel_std**2)
    assert noise.abs().mean().item() == pytest.approx(wide.noise_scale[0].item(), rel=0.1)


def test_gradients_flow_through_the_channel():
    made = channel()
    images = torch.zeros(3, *SHAPE, requires_grad=True)
    made.perturb_public(images, torch.Generator().manual_seed(1)).square().sum().backward()
    assert images.grad.isfinite().all()
    assert images.grad.abs().max() > 0


def test_bounds_are_public_constants_or_from_public_images():
    public = load(DataConfig(name="digits", public_share=0.2, confirm_public=True)).public
    exact, fitted = channel().bounds, channel(public=public).bounds
    assert exact[0] == pytest.approx(8)  # the mean of a white image: 64 / sqrt(64)
    assert bool((fitted <= exact + 1e-5).all())
    assert fitted.sum() < exact.sum()
    assert channel("l2", clip_norm=2.5).bounds.tolist() == [2.5] * 6
    with pytest.raises(ConfigError, match="clip_norm"):
        channel("clamp", clip_norm=2.5)
    with pytest.raises(ConfigError, match="more than 6 public images"):
        channel(projection="public-pca")


# The method --------------------------------------------------------------------------------------------------------


def small(seed=0):
    rng = torch.Generator().manual_seed(seed)
    private = Images(
        torch.randint(256, (24, *SHAPE), generator=rng, dtype=torch.uint8), torch.arange(24) % 3, tuple("abc")
    )
    empty = private.select(torch.zeros(0, dtype=torch.int64))
    return Split(public=empty, private=private, holdout=empty, test=empty)


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
    split = small()  # negative control: poisoned before `prepare`, the result changes
    method = make(config(), split)
    split.private.images.fill_(255)
    method.prepare()
    steps(method, 6)
    assert bits(method.state()) != results[0]


def test_raw_images_are_gone_after_prepare_and_no_secret_noise_is_drawn_later():
    split = small()
    alive = weakref.ref(split.private.images)
    method = make(config(), split)
    del split
    gc.collect()
    assert alive() is not None  # until it is read
    method.prepare()
    gc.collect()
    assert alive() is None
    before = method.noise.state()
    steps(method, 4)
    assert method.noise.state() == before
    assert "noise" not in method.state()


def test_what_cannot_be_paid_is_not_read():
    settings = config()
    unit, relation, _ = terms_of(settings)
    method = make(settings, small(), ledger=Ledger(unit, relation, Budget(1e-3, 1e-5)))
    state = method.noise.state()
    with pytest.raises(BudgetError):
        method.prepare()
    assert method.noise.state() == state
    assert len(method._steps) == 0


def test_the_critic_sees_noisy_images_and_noisy_labels_only():
    method = prepared(config(privacy={"label_epsilon": 0.5, "epsilon": 1.0}))
    raw = to_float(digits().private.images)
    images, labels = method.channel.decode_steps(method._steps), method._labels
    correlation = torch.corrcoef(torch.stack([images.flatten(), raw.flatten()]))[0, 1].abs()
    assert correlation < 0.2
    assert (labels == digits().private.labels).double().mean().item() == pytest.approx(
        math.e**0.5 / (9 + math.e**0.5), abs=0.05
    )
    fake, noisy = method._fake_batch()
    assert fake.std().item() == pytest.approx(images.std().item(), rel=0.2)  # one law of noise
    assert noisy.shape == (8,)


def test_generated_labels_lie_as_often_as_private_ones_and_frequencies_are_inverted():
    method = prepared(config(privacy={"label_epsilon": 2.0}))
    labels = torch.zeros(50_000, dtype=torch.int64)
    answered = method._respond(labels)
    truth = math.e**2 / (math.e**2 + 9)
    assert (answered == 0).double().mean().item() == pytest.approx(truth, abs=0.01)
    assert torch.bincount(answered, minlength=10)[1:].double().std() < 300
    # Frequencies: most private labels are class 2; the noisy histogram hides it, the estimate finds it again.
    split = digits()
    skewed = Images(split.private.images, torch.where(torch.arange(1295) % 10 < 8, 2, 5), split.classes)
    method = prepared(config(privacy={"label_epsilon": 2.0}), Split(split.public, skewed, split.holdout, split.test))
    assert method._frequencies[2].item() == pytest.approx(0.8, abs=0.12)
    assert method._frequencies.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("model", [{"conditional": True}, {"conditional": False}])
def test_a_resumed_run_is_the_uninterrupted_one_and_pays_once(tmp_path, model):
    privacy = {} if model["conditional"] else {"label_epsilon": None}
    settings = config(model=model, privacy=privacy)
    method = killed_and_resumed(tmp_path, settings, IdpLocal)
    assert method.ledger.events == plan_run(settings, digits().shape).events
    assert len(method._images) == 0


@pytest.mark.trained
def test_with_little_noise_it_learns_the_digits(tmp_path):
    settings = config(
        method={"projection": "pixels", "coefficients": None, "learning_rate": 1e-3, "ema_decay": 0.9},
        privacy={"epsilon": 1e4, "delta": 0.0, "label_epsilon": 20.0},
        model={"width": 8, "latent_dim": 8},
        steps=120,
        batch_size=16,
        tick_steps=120,
    )
    real = to_float(digits().private.images).mean(0)
    before = (make(settings).generator.sample(300, seed=1).mean(0) - real).norm()
    _, method = train_on_digits(tmp_path / "run", settings, kind=IdpLocal)
    after = (method.generator.sample(300, seed=1).mean(0) - real).norm()
    assert after < 0.6 * before


# Bad input ---------------------------------------------------------------------------------------------------------


def test_raw_labels_are_refused_unless_unsound_is_accepted():
    with pytest.raises(ConfigError, match=r"labels an input of the critic.*label_epsilon.*accept_unsound"):
        config(privacy={"label_epsilon": None})
    settings = config(privacy={"label_epsilon": None, "accept_unsound": True})
    report = prepared(settings).privacy()
    assert report.proven.epsilon == math.inf
    assert not report.private
    assert report.reason == "raw labels are an input of the critic"
    assert compose_epsilon(plan_run(settings, digits().shape).events, 1e-5) == math.inf
    with pytest.raises(ConfigError, match="uses no labels"):
        config(model={"conditional": False})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"privacy": {"label_epsilon": 4.0}}, "leaves nothing of"),
        ({"method": {"coefficients": None}}, r"must lie in 1 \.\. 64"),
        ({"method": {"coefficients": 65}}, r"must lie in 1 \.\. 64"),
        ({"method": {"projection": "pixels"}}, "leave it out"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_read(change, message):
    with pytest.raises(ConfigError, match=message):
        _ = plan_run(config(**change), digits().shape).events


def test_epsilon_has_no_default():
    with pytest.raises(ConfigError, match=r"privacy\.epsilon"):
        trainer.load_config(None, ["method={name='idp-gan-local'}", "privacy={label_epsilon=1}"])
