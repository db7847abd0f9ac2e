"""Pipelines of `diffusers` as simulators of `evolution`: their network and scheduler are driven from latent numbers.

Images: unconditional (DDPM, DDIM), class-conditional, or in the latent space of an autoencoder (LDM, DiT). A pipeline
that wants a prompt is called by a few lines of your own instead (docs/methods/own-generator.md). Variation is image to
image: noise is added up to a share of the schedule, and taken away again (Meng et al. 2022, "SDEdit").

Nothing is imported here but torch: whoever has a pipeline has `diffusers` (``pip install idpgan[diffusers]``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from idpgan.errors import InputError


class PipelineSimulator:
    """A pipeline as a simulator: ``model.simulator = "mine:simulator"`` with ``simulator = PipelineSimulator(...)``.

    Args:
        pipeline: With a network (``unet`` or ``transformer``), a ``scheduler`` and perhaps an autoencoder (``vae`` or
            ``vqvae``).
        image_shape: (C, H, W) in px of the data; what the pipeline draws is brought to that size, and to grey or RGB.
        steps: Denoising steps of an image.
        classes: Number that the pipeline gives to each of our classes; None = the same numbers.
        guidance: Weight of the class against ``no_class`` (Ho and Salimans 2022, "Classifier-free diffusion guidance");
            1 = none.
        no_class: Number that the pipeline gives to no class; needed for guidance.
        batch_size: Images of a call.
        labeled: Whether the network takes classes; None = its settings say so.

    Attributes:
        numbers: Length of z.

    Raises:
        InputError: If it is not such a pipeline.
    """

    def __init__(
        self,
        pipeline: Any,
        image_shape: Sequence[int],
        *,
        steps: int = 50,
        classes: Sequence[int] | None = None,
        guidance: float = 1.0,
        no_class: int | None = None,
        batch_size: int = 16,
        labeled: bool | None = None,
    ) -> None:
        self.pipeline, self.image_shape, self.steps, self.batch_size = pipeline, tuple(image_shape), steps, batch_size
        self.classes, self.guidance, self.no_class = classes, guidance, no_class
        self.network = next((part for part in self._parts("unet", "transformer")), None)
        self.autoencoder = next((part for part in self._parts("vae", "vqvae")), None)
        if self.network is None or not hasattr(pipeline, "scheduler") or self._parts("text_encoder"):
            raise InputError(
                f"a {type(pipeline).__name__} is not driven from z and classes: PipelineSimulator takes pipelines with "
                "a network, a scheduler and no prompt. Write draw(z, labels) yourself, which calls it with latents=z."
            )
        if guidance != 1 and no_class is None:
            raise InputError("guidance needs no_class, the number that the pipeline gives to no class.")
        config = self.network.config
        side = config.sample_size
        self._latent = (config.in_channels, *((side, side) if isinstance(side, int) else map(int, side)))
        self.numbers = self._latent[0] * self._latent[1] * self._latent[2]
        known = ("num_class_embeds", "class_embed_type", "num_embeds_ada_norm")
        self._labeled = any(getattr(config, key, None) for key in known) if labeled is None else labeled

    def draw(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Denoise latent numbers z (B, numbers), standard normal, to images (B, C, H, W) in [-1, 1]."""
        self._ready(z.device)
        latents = z.view(-1, *self._latent) * getattr(self.pipeline.scheduler, "init_noise_sigma", 1.0)
        return self._decoded(self._denoised(latents, self.pipeline.scheduler.timesteps, labels))

    def vary(self, images: Tensor, strength: float, labels: Tensor | None) -> Tensor:
        """Add noise up to a share ``strength`` of the schedule to images (B, C, H, W) in [-1, 1], and denoise them."""
        self._ready(images.device)
        ahead = max(1, round(strength * self.steps))
        timesteps = self.pipeline.scheduler.timesteps[-ahead:]
        clean = self.encoded(images)
        noise = torch.randn(clean.shape).to(clean.device)
        noisy = self.pipeline.scheduler.add_noise(clean, noise, timesteps[:1].expand(len(clean)))
        return self._decoded(self._denoised(noisy, timesteps, labels))

    def encoded(self, images: Tensor) -> Tensor:
        """Return what the network sees of images (B, C, H, W) in [-1, 1] without noise, each by itself."""
        if self.autoencoder is None:
            return fitted(images, self._latent)
        times = 2 ** (len(self.autoencoder.config.block_out_channels) - 1)
        shape = (self.autoencoder.config.in_channels, *(times * side for side in self._latent[1:]))
        found = self.autoencoder.encode(fitted(images, shape))
        latents: Tensor = found.latent_dist.mean if hasattr(found, "latent_dist") else found.latents
        return latents * self._scale

    def _parts(self, *names: str) -> list[Any]:
        return [part for name in names if (part := getattr(self.pipeline, name, None)) is not None]

    def _ready(self, device: torch.device) -> None:
        for part in (self.network, self.autoencoder):
            if part is not None:
                part.to(device).eval()
        self.pipeline.scheduler.set_timesteps(self.steps)

    def _denoised(self, latents: Tensor, timesteps: Tensor, labels: Tensor | None) -> Tensor:
        """Take the scheduler's steps."""
        known = None
        if self._labeled:  # the classes as the pipeline numbers them
            if labels is None:
                raise InputError("the pipeline wants a class for each image. Set model.conditional = true.")
            known = labels if self.classes is None else torch.tensor(self.classes, device=labels.device)[labels]
        for time in timesteps:
            scaled = self.pipeline.scheduler.scale_model_input(latents, time)
            noise = self._predicted(scaled, time, known)
            if self.guidance != 1 and known is not None:
                other = self._predicted(scaled, time, torch.full_like(known, int(self.no_class or 0)))
                noise = other + self.guidance * (noise - other)
            latents = self.pipeline.scheduler.step(noise, time, latents).prev_sample
        return latents

    def _predicted(self, latents: Tensor, time: Tensor, labels: Tensor | None) -> Tensor:
        given = {} if labels is None else {"class_labels": labels}
        times = time.expand(len(latents)).to(latents.device)
        noise: Tensor = self.network(latents, timestep=times, **given).sample  # type: ignore[misc]  # checked above
        return noise[:, : latents.shape[1]]  # some predict a variance too

    def _decoded(self, latents: Tensor) -> Tensor:
        """Decode latents, and bring what comes out to our shape."""
        images = latents if self.autoencoder is None else self.autoencoder.decode(latents / self._scale).sample
        return fitted(images, self.image_shape).clamp(-1, 1)

    @property
    def _scale(self) -> float:
        return float(getattr(self.autoencoder.config, "scaling_factor", 1.0))  # type: ignore[union-attr]


def fitted(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Bring images (B, C, H, W) to another size, and to grey or RGB."""
    if images.shape[1] != shape[0]:
        images = images.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
    if tuple(images.shape[2:]) == tuple(shape[1:]):
        return images
    return functional.interpolate(images, size=tuple(shape[1:]), mode="bilinear", antialias=True, align_corners=False)
