"""The feature network of images without labels: an autoencoder of all real training images; it stays with the curator.

Its 64 numbers say what is on a picture: brightness, pose, the shape of things. Fine texture counts for little, so blur
shows less than in the features of a classifier.
"""

from __future__ import annotations

import hashlib
import math

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import OneCycleLR

from idpgan.checks import typed
from idpgan.data.images import Images, to_float
from idpgan.errors import InputError
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import FeatureNetwork
from idpgan.models.classifier import CLASSIFIERS
from idpgan.models.initialize import seeded_init, torch_seed
from idpgan.progress import Progress, silent

PROTOCOL = "feature-autoencoder/2"  # another network, recipe or training set is another number
PASSES = 20  # over the training images,
FEWEST_STEPS, MOST_STEPS = 300, 3000  # but a few images need their steps too, and many must come to an end
_BATCH, _LEARNING_RATE = 128, 3e-3
_HALVINGS = 3  # the decoder starts at an eighth of the image's sides
_WIDTH = 64  # channels of the decoder's coarsest grid


class Autoencoder(nn.Module):
    """The body of the "cnn" classifier without its last ReLU, and a decoder of nearest-neighbor upsampling.

    A call gives the code. Batch normalization is allowed here: the network judges images and is trained without
    privacy.
    """

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, self.height, self.width = image_shape
        body, num_features = CLASSIFIERS["cnn"](image_shape)
        self.encoder = nn.Sequential(*list(body.children())[:-1])
        rows, columns = math.ceil(self.height / 2**_HALVINGS), math.ceil(self.width / 2**_HALVINGS)
        layers: list[nn.Module] = [nn.Linear(num_features, _WIDTH * rows * columns)]
        layers += [nn.Unflatten(1, (_WIDTH, rows, columns)), nn.BatchNorm2d(_WIDTH), nn.ReLU(inplace=True)]
        for halving in range(_HALVINGS):
            wide, narrow = _WIDTH >> halving, _WIDTH >> (halving + 1)
            layers += [nn.Upsample(scale_factor=2), nn.Conv2d(wide, narrow, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(narrow), nn.ReLU(inplace=True)]
        self.decoder = nn.Sequential(*layers, nn.Conv2d(_WIDTH >> _HALVINGS, channels, 3, padding=1), nn.Tanh())

    def forward(self, images: Tensor) -> Tensor:
        """Map float images (B, C, H, W) in [-1, 1] to codes (B, 64)."""
        code: Tensor = self.encoder(images)
        return code

    def decode(self, code: Tensor) -> Tensor:
        """Map codes (B, 64) to float images (B, C, H, W) in [-1, 1]."""
        images: Tensor = self.decoder(code)
        return images[:, :, : self.height, : self.width]


def num_steps(num_images: int) -> int:
    """Return how many steps an autoencoder of so many images is fitted for."""
    return min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(PASSES * num_images / _BATCH)))


@typed
def fit_feature_autoencoder(
    images: Images,
    *,
    seed: int = 0,
    cache: Cache | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> FeatureNetwork:
    """Fit an autoencoder by mean squared error: AdamW under a one-cycle schedule, as many steps as `num_steps` says.

    Args:
        images: Real, at least 2; labels are not used. See `full_training_set`.

    Raises:
        InputError: If there are fewer than 2 images, or the loss diverges.
    """
    if len(images) < 2:
        raise InputError(f"{len(images)} real image is too few to fit an autoencoder to. Give at least 2.")

    def compute() -> dict[str, Tensor]:
        return _fit(images, seed, device, progress).cpu().state_dict()

    recipe = {"steps": num_steps(len(images)), "batch": _BATCH, "learning_rate": _LEARNING_RATE, "seed": seed}
    key = {"protocol": PROTOCOL, "config": recipe, "images": images.digest()}
    weights = (cache or Cache(None)).get("autoencoder", key, compute)
    model = Autoencoder(images.image_shape)
    model.load_state_dict(weights)
    sha256 = hashlib.sha256(save(weights)).hexdigest()
    return FeatureNetwork("autoencoder", model.to(device).eval(), sha256, images.image_shape)


def _fit(images: Images, seed: int, device: torch.device | str, progress: Progress) -> Autoencoder:
    with seeded_init(seed):
        model = Autoencoder(images.image_shape)
    model = model.to(device).train()
    steps = num_steps(len(images))
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, fused=True)
    scheduler = OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps)
    rng = torch.Generator().manual_seed(torch_seed(seed, 1))
    loss = torch.zeros(())
    progress("feature autoencoder", 0, steps)
    for step in range(1, steps + 1):
        index = torch.randint(len(images), (_BATCH,), generator=rng)
        batch = to_float(images.images[index.to(images.images.device)].to(device))
        batch = batch.to(memory_format=torch.channels_last)
        loss = mse_loss(model.decode(model(batch)), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        progress("feature autoencoder", step, steps)
    if not bool(loss.isfinite()):
        raise InputError("The feature autoencoder diverged on these images. Take another network with --features.")
    return model.eval()
