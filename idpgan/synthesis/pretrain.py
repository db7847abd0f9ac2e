"""What public images teach before sums are matched: an embedding, and the codes of a "warp" generator."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from idpgan.data.images import Images, to_float
from idpgan.models.features import EmbeddingNet
from idpgan.models.initialize import seeded_init, torch_seed
from idpgan.models.optimizers import Adam
from idpgan.models.warp import WarpGenerator, augment
from idpgan.progress import Progress, silent
from idpgan.training.fit import FitConfig, fit_classifier

_BATCH = 128
_MILD = 1 / 3  # of full augmentation: the warp of the generator does the rest
_KL_WEIGHT = 0.3
_LEARNING_RATE = 1.5e-3


def fit_embedding(network: EmbeddingNet, public: Images, *, steps: int, seed: int, progress: Progress = silent) -> None:
    """Fit the embedding in place to classify augmented public images; without labels it stays as it is.

    There are ``steps`` gradient steps of about 128 images.
    """
    if public.labels is None or steps == 0:
        return
    epochs = max(1, round(steps * _BATCH / len(public)))
    config = FitConfig(epochs=epochs, batch_size=_BATCH, learning_rate=2e-3, weight_decay=1e-3, seed=seed)
    fit_classifier(
        network,
        public.images,
        public.labels,
        config=config,
        augment=augment,
        on_step=lambda done, total: progress("public features, steps", done, total),
    )


def pretrain_codes(
    generator: WarpGenerator,
    public: Images,
    *,
    steps: int,
    batch_size: int = 256,
    seed: int,
    progress: Progress = silent,
) -> None:
    """Fit a conditional variational autoencoder to mildly moved public images; their posteriors become the codes.

    The generator's decoder is fitted in place, on its device.
    """
    device = next(generator.parameters()).device
    rng = torch.Generator(device).manual_seed(torch_seed(seed, 5))
    images = (to_float(public.images).to(device) + 1) / 2  # [0, 1]
    labels = public.labels.to(device) if generator.num_classes and public.labels is not None else None
    latent = generator.config.latent_dim
    with seeded_init(seed, 6):
        encoder = nn.Sequential(
            nn.Linear(images[0].numel() + generator.num_classes, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
            nn.Linear(256, 2 * latent),
        ).to(device)  # fmt: skip

    def encode(images: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return mean and log variance of the codes of images in [0, 1]."""
        flat = images.flatten(1)
        if labels is not None:
            flat = torch.cat([flat, functional.one_hot(labels, generator.num_classes).to(flat.dtype)], dim=1)
        mean, log_variance = encoder(flat).chunk(2, dim=1)
        return mean, log_variance

    weights = [*generator.parameters(), *encoder.parameters()]
    optimizer = Adam(weights, _LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps, pct_start=0.1)
    generator.train()
    for step in range(1, steps + 1):
        index = torch.randint(len(images), (batch_size,), generator=rng, device=device)
        batch = augment(images[index], rng, _MILD).clamp(0, 1)
        of_batch = None if labels is None else labels[index]
        mean, log_variance = encode(batch, of_batch)
        point = mean + torch.randn(mean.shape, generator=rng, device=device) * (log_variance / 2).exp()
        decoded = generator.decode(point, of_batch).clamp(1e-4, 1 - 1e-4)
        reconstruction = functional.binary_cross_entropy(decoded, batch, reduction="sum")
        divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum()
        loss = (reconstruction + _KL_WEIGHT * divergence) / batch_size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        progress("pre-training steps", step, steps)
    with torch.no_grad():
        mean, log_variance = encode(images, labels)
    generator.set_codes(mean, (log_variance / 2).exp(), labels)
