"""Adapters of a public denoiser: what is trained, that it moves and nothing else does, and an ordinary release."""

import re
from pathlib import Path

import pytest
import torch

from idpgan import load_generator, trainer
from idpgan.commands.init import InitOptions, config_for
from idpgan.config import load_table
from idpgan.data.images import to_float
from idpgan.data.load import DataShape, Sizes
from idpgan.errors import ConfigError, InputError
from idpgan.models.adapters import adapt, label_rows, merged, trained_weights
from idpgan.models.checkpoint import origin_weights
from idpgan.models.config import ModelConfig, Purpose
from idpgan.models.diffusion import DiffusionGenerator, ResidualNetwork
from idpgan.origin import with_releases
from idpgan.privacy import Noise, compose_epsilon
from idpgan.privacy.dpsgd import DPSGDPlan
from idpgan.removed import gone
from idpgan.synthesis import diffusion
from idpgan.synthesis.diffusion import refuse_unmoved
from idpgan.synthesis.move import drawn_public
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run
from tests.privacy.clipped import clipped
from tests.release.forging import verdict
from tests.synthesis.test_diffusion import few, records_of
from tests.training.toy import CPU, digits

DELTA = 1e-5
RECIPES = {"celeba-dp-lora": 0.889, "celeba-pdp-diffusion": 1.119, "celeba-dp-ldm": 1.119}  # the least sigma at 10


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A release of method edm, of digits in the classes 0 to 4 and 5 to 9."""
    table = {
        "data": {"name": "fonts", "num_images": 300, "image_size": 8, "license": "CC0 1.0"},
        "model": {"generator": "diffusion", "latent_dim": 20, "width": 8},
        "method": {"name": "edm"},
        "training": {"steps": 30, "batch_size": 32, "device": "cpu"},
        "release": {"samples": 10},
    }
    return trainer.start(build_config(table, "the test"), tmp_path_factory.mktemp("edm") / "run").run.release


def config_of(base, trained, *, training=None, privacy=None, model=None, **method):
    table = {
        "data": {"name": "digits", "public_generator": str(base), "public_disjoint": True},
        "model": {"trained": trained} | (model or {}),
        "method": {"name": "diffusion", "draws": 1, "start_share": 0.0} | method,
        "privacy": {"epsilon": 8.0, "delta": DELTA} | (privacy or {}),
        "training": {"steps": 3, "batch_size": 4096, "device": "cpu"} | (training or {}),
        "release": {"samples": 10},
    }
    return build_config(with_releases(table), "the test")


def method_of(config):
    return diffusion.Method.of(config, few(), device=CPU, noise=Noise.fixed(1))


def network_of(*trained, classes=3):
    network = DiffusionGenerator(ModelConfig(generator="diffusion", latent_dim=20, width=8), (1, 8, 8), classes).network
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.2, generator=torch.Generator().manual_seed(weight.numel()))
    adapt(network, trained)
    return network


# What is trained ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trained", "expected"),
    [
        (["labels"], 3 * (3 * 16 + 1)),
        (["biases"], 8 + 3 * 8 + 3 * 16 + 1),
        (["lora:2:hidden.*"], 3 * (8 * 9 * 2 + 2 * 8)),
        (["known.0.*", "last.bias"], 9 * 16 + 16 + 1),
        (["labels", "biases"], 3 * (3 * 16 + 1) + 81),
    ],
)
def test_only_what_is_named_is_trained(trained, expected):
    assert sum(weight.numel() for weight in trained_weights(network_of(*trained)).values()) == expected


def test_an_adapted_network_computes_the_same_at_first_and_merges_into_its_own_weights():
    plain, network = network_of(), network_of("labels", "lora:2:hidden.*", "lora:1", "biases")
    inputs = torch.randn(5, 2, 8, 8), torch.rand(5) + 0.1, torch.arange(5) % 3
    assert torch.allclose(network(*inputs), plain(*inputs), atol=1e-6)
    for weight in trained_weights(network).values():
        weight.data += 0.1 * torch.randn_like(weight)
    alone = merged(network)
    assert alone.state_dict().keys() == plain.state_dict().keys()
    assert torch.allclose(alone(*inputs), network(*inputs), atol=1e-4)
    assert not torch.allclose(alone(*inputs), plain(*inputs), atol=0.1)


@pytest.mark.parametrize(
    ("trained", "classes", "words"),
    [
        ("hiden.*", 3, r'"hiden\.\*" names no weight.*first\.weight'),
        ("lora:2:hiden", 3, r"hiden adapts nothing.*first, hidden\.0"),
        ("lora:900", 3, r"adapts nothing.*none"),
        ("lora:2:hidden", 3, r"pattern hidden adapts nothing"),  # it only holds layers
        ("lora:7:[hk]*", 3, r"'kept' cannot be adapted"),
        ("labels", 0, "knows none"),
    ],
)
def test_what_cannot_be_adapted_is_refused_with_what_can(trained, classes, words):
    with pytest.raises(ConfigError, match=words):
        adapt(ResidualNetwork((1, 8, 8), 8, classes, seed=0), [trained])


def test_gradients_by_capture_are_those_by_vmap_and_a_split_batch_is_the_whole_one():
    network = network_of("labels", "lora:2:hidden.*", "lora:1", "biases")
    generator = DiffusionGenerator(ModelConfig(generator="diffusion", latent_dim=20, width=8), (1, 8, 8), 3)
    generator.network = network
    weights, plan = trained_weights(network), DPSGDPlan(0.5, 0.3, 4, 1.0)
    for weight in weights.values():
        weight.data += 0.1 * torch.randn_like(weight)
    records = records_of(generator, 7)
    ways = [("capture", 7), ("capture", 3), ("vmap", 7), ("vmap", 2)]
    whole, *others = (
        clipped(plan, generator.loss, weights, records, physical_batch=size, way=way) for way, size in ways
    )
    assert whole.way == "capture"
    for other in others:
        assert torch.allclose(whole.norms, other.norms, rtol=1e-4)
        for name in weights:
            assert torch.allclose(whole.sums[name], other.sums[name], atol=1e-5), name
            assert whole.sums[name].abs().max() > 0


@pytest.mark.parametrize(("epsilon", "expected"), [(1e-4, ()), (0.2, ("biases", "labels")), (8.0, ("*",))])
def test_the_largest_part_that_the_signal_bears_follows_from_public_numbers(base, epsilon, expected):
    plan = plan_run(config_of(base, "biases", privacy={"epsilon": epsilon}), few().shape)
    assert plan.largest_part == expected
    assert f"0.5 or more: {', '.join(expected) or 'none'}." in plan.signal.advice
    for part in (["biases", "labels"], ["lora:2", "labels"], ["*"]):
        other = plan_run(config_of(base, part, privacy={"epsilon": epsilon}), few().shape)
        figure = other._signal_of(other.num_weights)
        # N mu / sqrt(d): mu is 1 / noise multiplier, times the root of the steps.
        mu = 3**0.5 / other.dpsgd.noise_multiplier
        assert figure == pytest.approx(200 * mu / other.num_weights**0.5)
        assert (figure >= 0.5) == (expected == ("*",) or tuple(part) == expected)


# Steps --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trained", ["labels", "biases", "lora:2", ["lora:1:known.*", "last.*"]], ids=str)
def test_all_that_is_trained_moves_and_nothing_else(base, trained):
    config = config_of(base, trained)
    method = method_of(config)
    method.prepare()
    before = {name: one.clone() for name, one in method.newest.state_dict().items()}
    method.step(1)
    assert method.tiles.way == "capture"
    names = {f"network.{name}" for name in trained_weights(method.newest.network)}
    moved = {name for name, one in method.newest.state_dict().items() if not torch.equal(one, before[name])}
    assert moved == names
    assert method.plan.num_weights == sum(before[name].numel() for name in names)


def test_the_start_is_the_public_denoiser_and_a_class_of_its_name_is_its_own(base):
    config = config_of(base, "labels")
    known = origin_weights(base, config.model.origin)
    generator = method_of(config).generator
    assert torch.equal(generator.network.state_dict()["first.weight"], known["network.first.weight"])
    assert torch.equal(generator.network.kept.layer.weight, known["network.kept.weight"])  # the same ten classes
    assert torch.allclose(generator.factor @ generator.factor.mT, known["factor"] @ known["factor"].mT, atol=1e-5)
    other = ResidualNetwork((1, 8, 8), 8, 2, seed=0)
    other.start_at({k[8:]: v for k, v in known.items() if k.startswith("network.")}, 10, [7, None])
    columns = known["network.known.0.weight"][:, :10]
    assert torch.equal(other.known[0].weight[:, 0], columns[:, 7])
    assert torch.allclose(other.known[0].weight[:, 1], columns.mean(1))


def test_a_weight_that_stays_or_that_no_gradient_reaches_ends_the_run(base):
    method = method_of(config_of(base, "biases"))
    start = {name: weight.detach().clone() for name, weight in trained_weights(method.newest.network).items()}
    with pytest.raises(InputError, match="did not move"):
        refuse_unmoved(method.newest.network, start)
    method.newest.network.register_parameter("idle", torch.nn.Parameter(torch.zeros(3)))
    with pytest.raises(ConfigError, match="no gradient reaches idle"):
        method.prepare()
    assert method.ledger.events == ()


def test_steps_lower_the_loss_of_images_that_nobody_trained_on(base):
    config = config_of(base, ["labels", "biases"], privacy={"epsilon": 1e4}, training={"steps": 8}, learning_rate=2e-2)
    method, others = method_of(config), digits().holdout
    method.prepare()
    losses = []
    for step in range(9):
        if step:
            method.step(step)
        losses.append(method.newest.denoising_loss(to_float(others.images), others.labels).mean().item())
    assert losses[-1] < 0.9 * losses[0]


def test_the_whole_budget_is_of_the_steps_and_without_noise_nothing_is_proven(base):
    plan = plan_run(config_of(base, "labels"), few().shape)
    assert [event.kind for event in plan.events] == ["poisson-gaussian"]
    assert 0.99 * 8 <= compose_epsilon(plan.events, DELTA) <= 8
    both = plan_run(config_of(base, "labels", start_share=0.5), few().shape)
    assert [event.kind for event in both.events] == ["gaussian", "poisson-gaussian"]
    open_ = plan_run(config_of(base, "labels", privacy={"without_noise": True}), few().shape)
    assert (open_.price.epsilon, open_.budget) == (float("inf"), None)
    assert open_.dpsgd.noise_multiplier < 1e-8


# From a config to a release ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_of_the_literature_are_priced_without_their_base(name):
    table = load_table(Path(name))
    parts = {"network": '{"_class_name":"UNet2DModel"}', "scheduler": '{"_class_name":"DDPMScheduler"}'}
    table["model"] |= {"generator": "pipeline", "pipeline": parts | {"weights": "0" * 64}}
    config = build_config(table, name)
    plan = plan_run(config, DataShape(Sizes(0, 162_770, 0, 0), (3, 64, 64), ("0", "1")))
    assert 0.99 * 10 <= plan.price.epsilon <= 10
    assert plan.dpsgd.noise_multiplier == pytest.approx(RECIPES[name], rel=0.01)


@pytest.mark.parametrize("privacy", [{}, {"without_noise": True}], ids=["private", "without noise"])
def test_the_release_is_an_ordinary_generator_whose_card_names_the_base(base, tmp_path, privacy):
    config = config_of(base, ["labels", "lora:1"], privacy=privacy, training={"steps": 1, "batch_size": 100})
    finished = trainer.start(config, tmp_path / "run")
    release = finished.run.release
    assert verdict(release) == ""
    assert finished.privacy.private == (not privacy)
    card = (release / "README.md").read_text()
    assert config.model.origin.weights in card
    assert "CC0 1.0" in card
    assert str(base) not in card + (release / "config.json").read_text()
    generator = load_generator(release)
    assert isinstance(generator.network, ResidualNetwork)
    assert "kept.layer.weight" not in generator.network.state_dict()
    known = load_generator(base).network.state_dict()
    found = generator.network.state_dict()
    same = {name for name in known if torch.equal(known[name], found[name])}
    assert same == {"last.weight", *(name for name in known if name.endswith("bias"))}  # the last has one feature map


@pytest.mark.parametrize(
    ("model", "method", "words"),
    [
        ({"width": 16}, {}, "the generator that is adapted has 8"),
        ({"latent_dim": 12}, {}, r"latent_dim = 12.*has 20"),
        ({"trained": []}, {}, "is for model.simulator"),
        ({"generator": "gaussian"}, {}, "adapts a released diffusion generator"),
        ({"drawing": "faces"}, {}, "start_share = 0 leaves the moments"),
    ],
)
def test_refusals_name_what_to_change(base, model, method, words):
    with pytest.raises(ConfigError, match=words):
        config_of(base, "labels", model=model, **method)


@pytest.mark.parametrize("part", ["tangent:R", "votes:K:R"])
def test_parts_that_went_are_refused_before_anything_is_read(base, tmp_path, part):
    config = config_of(base, part.replace("R", "1").replace("K", "2"))
    with pytest.raises(ConfigError, match=re.escape(gone(f'model.trained = "{part}"'))):
        trainer.start(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_the_base_draws_is_moved_onto_a_release_of_sums(base, tmp_path):
    table = {
        "data": {"name": "digits", "public_generator": str(base), "public_disjoint": True},
        "model": {
            "generator": "gaussian",
            "latent_dim": 20,
            "width": 8,
            "moved": 20,
            "simulator": "generator",
        },
        "method": {"name": "gaussian"},
        "privacy": {"epsilon": 8.0, "delta": DELTA},
        "training": {"device": "cpu"},
        "release": {"samples": 10},
    }
    config = build_config(with_releases(table), "the test")
    release = trainer.start(config, tmp_path / "run").run.release
    assert verdict(release) == ""
    assert f"drew what was moved: a diffusion generator, weights of SHA-256 {config.model.origin.weights}" in (
        (release / "README.md").read_text()
    )
    pictures = load_generator(release).pictures
    assert pictures.shape[:2] == (10, 20)
    drawn = drawn_public(config.model, config.data, (1, 8, 8), tuple("0123456789"), 0)
    assert drawn.labels.bincount().tolist() == [20] * 10
    own = load_generator(base).sample(20, labels=7, seed=7, purpose=Purpose.TRAINING)
    assert torch.allclose(to_float(drawn.images[drawn.labels == 7]), own, atol=0.01)
    table["model"]["simulator"] = "faces"
    with pytest.raises(ConfigError, match=r"public_generator.*is for model.simulator"):
        build_config(with_releases(table), "the test")


def test_only_diffusion_adapts(base):
    table = config_of(base, "labels").to_json() | {"method": {"name": "edm"}, "privacy": {}}
    with pytest.raises(ConfigError, match="by method diffusion, and this is edm"):
        build_config(table, "the test")


def test_a_state_without_a_release_is_taken_up_again(base):
    config = config_of(base, ["labels", "lora:1"])
    first, again = method_of(config), method_of(config)
    first.prepare()
    first.step(1)
    state = first.state()
    assert state["prepared"] is None
    assert first.released_sums is None  # an attacker on sums has none
    again.load_state({name: value for name, value in state.items() if name != "prepared"})
    found = [method.generator.state_dict() for method in (first, again)]
    assert all(torch.equal(weight, found[1][name]) for name, weight in found[0].items())


# What is proposed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "expected"), [pytest.param(0.05, ["lora:1", "labels"], marks=pytest.mark.slow), (3.0, ["*"])]
)
def test_init_proposes_the_largest_part_and_a_clip_norm_that_its_own_images_meet_half_of_the_time(
    base, epsilon, expected
):
    template = config_for("digits", InitOptions(base=base, epsilon=epsilon))
    config = build_config(with_releases(template.table), "init")
    plan = plan_run(config, DataShape(Sizes(0, 1294, 0, 0), (1, 8, 8), tuple("0123456789")))
    assert [*config.model.trained] == expected
    assert [*plan.largest_part] == expected
    assert f'trained = ["{expected[0]}"' in template.text
    assert any("public_disjoint = true is your word" in note for note in template.notes)
    assert (plan.draws, config.training.batch_size) == (4, 4096)
    method = diffusion.Method.of(config, digits(), device=CPU)
    found = method.usual_norms(100)
    assert 0.3 < (found > config.method.clip_norm).double().mean() < 0.7


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "gaussian"}, "--base is adapted by method diffusion"),
        ({"epsilon": 1e-4}, "too much for the least part"),
    ],
)
def test_init_refuses_a_base_that_cannot_be_adapted(base, options, words):
    with pytest.raises(InputError, match=words):
        config_for("digits", InitOptions(base=base, **options))


def test_the_look_of_a_class_says_at_which_class_of_the_base_it_begins(base):
    table = config_of(base, "labels").to_json()
    looks = {str(digit): str((digit + 1) % 10) for digit in range(10)}
    config = build_config(table | {"data": table["data"] | {"public_labels": looks}}, "the test")
    known = origin_weights(base, config.model.origin)["network.kept.weight"]
    kept = method_of(config).newest.network.kept.layer.weight
    assert torch.equal(kept[:, 3], known[:, 3])  # a name that the base has goes before a look
    named = {"classes": tuple("abcdefghij"), "public_labels": dict(zip("abcdefghij", looks.values(), strict=True))}
    assert label_rows(tuple("0123456789"), named["classes"], named["public_labels"]) == [*range(1, 10), 0]
