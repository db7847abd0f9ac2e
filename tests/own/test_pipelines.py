"""Pipelines of diffusers as simulators: tiny ones with random weights, made on the spot."""

import re

import pytest
import torch

from idpgan.errors import InputError
from idpgan.models.pipelines import PipelineSimulator
from idpgan.models.simulators import weights_of

diffusers = pytest.importorskip("diffusers", reason="the extra idpgan[diffusers]")


def unet(channels=1, side=8, classes=None):
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=side,
        in_channels=channels,
        out_channels=channels,
        layers_per_block=1,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        num_class_embeds=classes,
    )


def autoencoder():
    return diffusers.AutoencoderKL(
        in_channels=3, out_channels=3, block_out_channels=(8, 8), norm_num_groups=4, latent_channels=2, sample_size=16,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip


def pipeline_of(kind):
    if kind == "ddim":
        return diffusers.DDIMPipeline(unet(), diffusers.DDIMScheduler())
    if kind == "ddpm":
        return diffusers.DDPMPipeline(unet(channels=3), diffusers.DDPMScheduler())
    if kind == "ldm":
        torch.manual_seed(0)
        return diffusers.LDMPipeline(
            diffusers.VQModel(
                in_channels=3, out_channels=3, block_out_channels=(8, 8), norm_num_groups=4, latent_channels=2,
                down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
            ),
            unet(channels=2),
            diffusers.DDIMScheduler(),
        )  # fmt: skip
    torch.manual_seed(0)
    transformer = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=4, in_channels=2, out_channels=4, num_layers=1, norm_num_groups=1,
        sample_size=8, patch_size=2, num_embeds_ada_norm=5,
    )  # fmt: skip
    return diffusers.DiTPipeline(transformer, autoencoder(), diffusers.DDIMScheduler())


@pytest.mark.parametrize("kind", ["ddim", "ddpm", "ldm", "dit"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 12, 10)])
def test_a_pipeline_draws_and_varies_images_of_our_shape(kind, shape):
    classes = {"classes": [4, 1], "no_class": 5, "guidance": 2.0} if kind == "dit" else {}
    simulator = PipelineSimulator(pipeline_of(kind), shape, steps=3, **classes)
    z, labels = (
        torch.randn(4, simulator.numbers, generator=torch.Generator().manual_seed(1)),
        torch.tensor([0, 1, 0, 1]),
    )
    with torch.no_grad():
        images = simulator.draw(z, labels)
        assert images.shape == (4, *shape)
        assert float(images.abs().max()) <= 1
        if kind != "ddpm":  # that scheduler draws noise of its own
            assert torch.equal(images, simulator.draw(z, labels))
        varied = simulator.vary(images, 0.3, labels)
    assert varied.shape == images.shape
    assert not torch.equal(varied, images)
    assert re.fullmatch("[0-9a-f]{64}", weights_of(simulator))


def test_ddim_is_driven_as_its_own_pipeline_does():
    """Reference: the pipeline itself, from the same latents."""
    pipeline = pipeline_of("ddim")
    pipeline.set_progress_bar_config(disable=True)
    simulator = PipelineSimulator(pipeline, (1, 8, 8), steps=5)
    generator = torch.Generator().manual_seed(3)
    expected = torch.from_numpy(
        pipeline(batch_size=2, generator=generator, num_inference_steps=5, output_type="np").images
    )
    z = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(3)).flatten(1)
    with torch.no_grad():
        images = simulator.draw(z, None)
    assert torch.allclose((images / 2 + 0.5).permute(0, 2, 3, 1), expected, atol=1e-5)


def test_less_noise_varies_less():
    simulator = PipelineSimulator(pipeline_of("ddim"), (1, 8, 8), steps=50)
    images = torch.zeros(8, 1, 8, 8)
    with torch.no_grad():
        torch.manual_seed(0)
        near, far = (simulator.vary(images, strength, None).abs().mean() for strength in (0.02, 0.9))
    assert near < 0.5 * far


def test_a_class_is_told_to_the_network():
    simulator = PipelineSimulator(
        diffusers.DDIMPipeline(unet(classes=4), diffusers.DDIMScheduler()), (1, 8, 8), steps=2, classes=[3, 0]
    )
    z = torch.randn(1, simulator.numbers, generator=torch.Generator().manual_seed(0)).expand(2, -1)
    with torch.no_grad():
        first, second = simulator.draw(z, torch.tensor([0, 1]))
    assert not torch.equal(first, second)
    with pytest.raises(InputError, match="wants a class"):
        simulator.draw(z, None)


def test_what_is_no_such_pipeline_is_refused():
    with pytest.raises(InputError, match="a Tensor is not driven from z and classes"):
        PipelineSimulator(torch.zeros(1), (1, 8, 8))
    with pytest.raises(InputError, match="guidance needs no_class"):
        PipelineSimulator(pipeline_of("ddim"), (1, 8, 8), guidance=3.0)
