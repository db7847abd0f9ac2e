"""Adapters of pipelines of diffusers: tiny ones with random weights, from their folder to a release and back."""

import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file

from idpgan import load_generator, trainer
from idpgan.commands.init import InitOptions, config_for
from idpgan.errors import ConfigError, InputError
from idpgan.models.adapters import trained_weights
from idpgan.models.pipeline_folder import describe_pipeline
from idpgan.models.pipelines import LORA_FILE, PipelineGenerator
from idpgan.origin import with_releases
from idpgan.privacy.dpsgd import DPSGDPlan
from idpgan.training.config import build_config
from tests.privacy.clipped import clipped
from tests.release.forging import verdict

diffusers = pytest.importorskip("diffusers", reason="the extra idpgan[diffusers]")


KINDS = ("unet", "latent", "stable")


class Parts(dict):
    """A pipeline of Stable Diffusion without its text encoder, which is another package's."""

    def save_pretrained(self, folder):
        for name, part in self.items():
            part.save_pretrained(folder / name)
        (folder / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')


def made(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "unet":
            unet = diffusers.UNet2DModel(
                sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 16),
                down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
                norm_num_groups=4, attention_head_dim=8, num_class_embeds=20,
            )  # fmt: skip
            return diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler())
        vae = diffusers.AutoencoderKL(
            in_channels=3, out_channels=3, block_out_channels=(8, 8), latent_channels=4, norm_num_groups=4,
            down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        )  # fmt: skip
        if kind == "stable":
            unet = diffusers.UNet2DConditionModel(
                sample_size=4, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16),
                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), norm_num_groups=4, attention_head_dim=8,
                up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=12,
            )  # fmt: skip
            scheduler = diffusers.DDIMScheduler(clip_sample=False, beta_schedule="scaled_linear", steps_offset=1)
            return Parts(unet=unet, vae=vae, scheduler=scheduler)
        transformer = diffusers.DiTTransformer2DModel(
            num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2,
            norm_num_groups=4, sample_size=4, patch_size=2, num_embeds_ada_norm=20,
        )  # fmt: skip
        return diffusers.DiTPipeline(transformer, vae, diffusers.DDIMScheduler(clip_sample=False))


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    return saved(request.param, tmp_path_factory.mktemp(request.param) / "pipeline")


def saved(kind, path):
    made(kind).save_pretrained(path)
    (path / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return path


def loaded(folder):
    """Return the network of a pipeline, as diffusers loads it."""
    names = [name for name in ("unet", "transformer") if (folder / name).is_dir()]
    kind = json.loads((folder / names[0] / "config.json").read_text())["_class_name"]
    return getattr(diffusers, kind).from_pretrained(folder / names[0])


def config_of(folder, trained=None, *, model=None, **keys):
    if trained is None:  # a network without prompts sees one vector of a class
        trained = ["labels", "lora:2:*attn1*" if (folder / "unet").is_dir() and (folder / "vae").is_dir() else "lora:2"]
    table = {
        "data": {"name": "digits", "public_generator": str(folder), "public_disjoint": True} | keys.pop("data", {}),
        "model": {"trained": list(trained)} | (model or {}),
        "method": {"name": "diffusion", "draws": 1, "start_share": 0.0} | keys,
        "privacy": {"epsilon": 8.0, "delta": 1e-5},
        "training": {"steps": 2, "batch_size": 40, "device": "cpu"},
        "release": {"samples": 10},
    }
    return build_config(with_releases(table), "the test")


def test_from_a_folder_of_diffusers_to_a_release_and_back(folder, tmp_path):
    config = config_of(folder)
    finished = trainer.start(config, tmp_path / "run")
    release = finished.run.release
    assert verdict(release) == ""
    card = (release / "README.md").read_text()
    assert config.model.pipeline.weights in card
    assert "license apache-2.0" in card
    assert str(folder) not in card + (release / "config.json").read_text()
    with pytest.raises(InputError, match=r"adapters of a pipeline.*--module FOLDER"):
        load_generator(release)
    generator = load_generator(release, module=folder)
    drawn = generator.sample(3, seed=0)
    assert drawn.shape == (3, 1, 8, 8)
    assert torch.equal(drawn, generator.sample(3, seed=0))
    start = PipelineGenerator(config.model, (1, 8, 8), 10, folder=folder, classes=[*map(str, range(10))])
    state = generator.state_dict()
    assert not any(torch.equal(weight, state[name]) for name, weight in start.state_dict().items())
    assert sum(weight.numel() for weight in state.values()) * 4 <= (release / "generator.safetensors").stat().st_size
    lora = load_file(release / LORA_FILE)
    prefix = "unet." if "UNet" in config.model.pipeline.kind else "transformer."
    assert lora
    assert all(name.startswith(prefix) and name.endswith(("lora_A.weight", "lora_B.weight")) for name in lora)
    names = {name.removeprefix(prefix).rsplit(".", 2)[0] for name in lora}
    modules = dict(loaded(folder).named_modules())
    assert all(modules[name].weight.shape[0] == lora[f"{prefix}{name}.lora_B.weight"].shape[0] for name in names)
    (release / LORA_FILE).write_bytes((release / LORA_FILE).read_bytes()[:-4] + b"\0\0\0\1")
    assert verdict(release)


def test_init_proposes_how_to_adapt_a_pipeline(tmp_path):
    folder = saved("unet", tmp_path / "pipeline")
    template = config_for("digits", InitOptions(base=folder))
    config = build_config(with_releases(template.table), "init")
    assert config.method.start_share == 0
    assert config.model.trained == ("*",)  # of so small a network
    assert 1e-3 < config.method.clip_norm < 10


def add_text_encoder(folder):
    """Add a tiny CLIP that knows the letters a to z."""
    transformers = pytest.importorskip("transformers", reason="the text encoder is its class")
    letters = [chr(code) for code in range(97, 123)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}))
    (folder / "tokenizer" / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer" / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')
    config = transformers.CLIPTextConfig(
        vocab_size=54, hidden_size=12, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=6, bos_token_id=52, eos_token_id=53, pad_token_id=53,
    )  # fmt: skip
    transformers.CLIPTextModel(config).save_pretrained(folder / "text_encoder")


@pytest.mark.skipif(not importlib.util.find_spec("peft"), reason="diffusers loads adapters by the package peft")
def test_stable_diffusion_with_a_prompt_a_class_loads_the_lora_weights_and_computes_the_same(tmp_path):
    folder = saved("stable", tmp_path / "pipeline")
    add_text_encoder(folder)
    config = config_of(folder, ["lora:2"], model={"prompts": list("abcdefghij")})
    release = trainer.start(config, tmp_path / "run").run.release
    assert verdict(release) == ""
    ours, unet = load_generator(release, module=folder), loaded(folder)
    prompts = ours.network.prompts.weight.view(10, 6, 12)[[3, 4]]
    assert not torch.allclose(prompts[0], prompts[1], atol=1e-3)
    latents, times = torch.randn(2, *ours._latent), torch.tensor([10, 500])
    before = unet(latents, times, prompts).sample
    loader = importlib.import_module("diffusers.loaders").StableDiffusionLoraLoaderMixin  # of load_lora_weights
    state, alphas = loader.lora_state_dict(str(release))
    loader.load_lora_into_unet(state, alphas, unet)
    found, own = unet(latents, times, prompts).sample, ours.network(latents, times, torch.tensor([3, 4])).sample
    assert torch.allclose(found, own, atol=1e-5)
    assert not torch.allclose(before, own, atol=1e-5)
    with pytest.raises(ConfigError, match="3 prompts for 10 classes"):
        trainer.start(config_of(folder, model={"prompts": list("abc")}), tmp_path / "other")


def test_what_one_vector_a_class_leaves_idle_is_found_before_a_private_image_is_read(tmp_path):
    """Over one key attention is constant: query and key get no gradient, and the noise alone would move them."""
    folder = saved("stable", tmp_path / "pipeline")
    with pytest.raises(ConfigError, match=r"no gradient reaches .*attn2\.to_q\.down\.weight"):
        trainer.start(config_of(folder, ["labels", "lora:2"]), tmp_path / "run")


def test_gradients_by_capture_are_those_by_vmap_through_attention(folder):
    config = config_of(folder, [*config_of(folder).model.trained, "biases"])
    generator = PipelineGenerator(config.model, (1, 8, 8), 10, folder=folder)
    weights, rng = trained_weights(generator.network), torch.Generator().manual_seed(0)
    for weight in weights.values():
        weight.data += 0.1 * torch.randn(weight.shape, generator=rng)
    states, levels = torch.randn(5, generator.latent_dim, generator=rng), torch.tensor([0.0, 20.0, 400.0, 800.0, 999.0])
    inputs, target = generator.problem(states, None, levels, torch.randn(states.shape, generator=rng))
    records = [inputs[:, None], levels[:, None], torch.arange(5), target[:, None]]
    plan = DPSGDPlan(0.5, 0.3, 4, 1.0)
    whole, *others = (
        clipped(plan, generator.loss, weights, records, physical_batch=size, way=way)
        for way, size in (("capture", 5), ("capture", 2), ("vmap", 5))
    )
    for other in others:
        assert torch.allclose(whole.norms, other.norms, rtol=1e-3)
        assert all(torch.allclose(whole.sums[name], other.sums[name], atol=1e-4) for name in weights)


def test_latents_are_those_of_each_image_alone_and_a_class_without_a_row_of_its_own_is_their_mean(folder):
    config = config_of(folder)
    generator = PipelineGenerator(config.model, (1, 8, 8), 3, folder=folder, classes=("7", "a", "b"), looks={"a": "3"})
    images = torch.rand(6, 1, 8, 8) * 2 - 1
    known = generator.known(images, None)
    assert torch.allclose(known[2:4], generator.known(images[2:4], None), atol=1e-5)
    name = generator.network.label_layers[0].removeprefix("model.")
    if name == "prompts":
        return  # the network knows no classes of its own
    table = loaded(folder).get_submodule(name).weight
    own = generator.network.model.get_submodule(name).weight
    assert torch.equal(own[:2], table[[7, 3]])
    assert torch.allclose(own[2], table.mean(0))


def test_refusals_name_what_to_change(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"start_share = 0\.5 releases moments"):
        config_of(folder, start_share=0.5)
    with pytest.raises(ConfigError, match="public_disjoint = true"):
        config_of(folder, data={"public_disjoint": False})
    found = json.loads(describe_pipeline(folder)["network"])
    assert not any(key.startswith("_") for key in found if key != "_class_name")
    other = tmp_path / "other"
    made("unet").save_pretrained(other, safe_serialization=False)
    with pytest.raises(InputError, match="safe_serialization=True"):
        config_of(other)
    settings = next(other.glob("*/config.json"))
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"_class_name": "os.system"}))
    (settings.parent / "a.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"is of class 'os\.system'\. Known are"):
        config_of(other)
