"""Feature networks besides the classifier: an autoencoder of all real training images, and Inception-v3 from a file.

The autoencoder is for images without labels. Its 64 numbers describe the picture: brightness, pose, shapes. Fine
texture counts little, so blur shows less than in the features of a classifier. The autoencoder stays with the curator.
Inception-v3 is torchvision's, with the weights that torchvision publishes (``inception_v3_google-0cc3c7bd.pth``,
trained on ImageNet); nothing is downloaded. Published FIDs use another port with other weights: the two kinds of
numbers are not comparable.
"""

from __future__ import annotations

import hashlib
import io
import math
import pickle
import warnings
import zipfile
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, mse_loss
from torch.optim.lr_scheduler import OneCycleLR

from idpgan.checks import typed
from idpgan.data.images import Images, to_float
from idpgan.errors import DataError, InputError
from idpgan.files import read_plain
from idpgan.memory import let_go
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import FeatureNetwork
from idpgan.models.classifier import classifier_body
from idpgan.models.initialize import seeded_init, torch_seed
from idpgan.models.optimizers import AdamW
from idpgan.progress import Progress, silent

PROTOCOL = "feature-autoencoder/2"  # a change of network, recipe or training set changes the number
PASSES = 20  # over the training images,
FEWEST_STEPS, MOST_STEPS = 300, 3000  # bounds for few and for many images
_BATCH, _LEARNING_RATE = 128, 3e-3
_HALVINGS = 3  # the decoder starts at an eighth of the image's sides
_WIDTH = 64  # channels of the decoder's coarsest grid

SIDE = 299  # px, what Inception-v3 was trained on
_MOST_BYTES = 1 << 29
_INCEPTION_BATCH = 32
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as torchvision's weights want it
_DAMAGE = (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, EOFError, pickle.UnpicklingError,
           zipfile.BadZipFile, safetensors.SafetensorError)  # fmt: skip


class Autoencoder(nn.Module):
    """The body of the "cnn" classifier without its last ReLU, and a decoder of nearest-neighbor upsampling.

    A call gives the code. Batch normalization is allowed here: the network judges images and is trained without
    privacy.
    """

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, self.height, self.width = image_shape
        body, num_features = classifier_body("cnn", image_shape)
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

    recipe = {"steps": num_steps(len(images)), "batch": _BATCH, "learning_rate": _LEARNING_RATE, "seed": seed}
    key = {"protocol": PROTOCOL, "config": recipe, "images": images.digest()}
    weights = (cache or Cache(None)).get(
        "autoencoder", key, lambda: _fit(images, seed, device, progress).cpu().state_dict()
    )
    model = Autoencoder(images.image_shape)
    model.load_state_dict(weights)
    sha256 = hashlib.sha256(safetensors.torch.save(weights)).hexdigest()
    return FeatureNetwork("autoencoder", model.to(device).eval(), sha256, images.image_shape)


def _fit(images: Images, seed: int, device: torch.device | str, progress: Progress) -> Autoencoder:
    with seeded_init(seed):
        model = Autoencoder(images.image_shape)
    model = model.to(device).train()
    steps = num_steps(len(images))
    optimizer = AdamW(model.parameters(), lr=_LEARNING_RATE, fused=True)
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
    let_go(images.images)
    if not bool(loss.isfinite()):
        raise InputError("The feature autoencoder diverged on these images. Take another network with --features.")
    return model.eval()


class InceptionFeatures(nn.Module):
    """Images to the 2,048 averages before the last layer; resized to 299 x 299 (bilinear, antialiased), grey as RGB."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(_MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(_STD).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Map float images (B, C, H, W) in [-1, 1] to features (B, 2048)."""
        images = (images + 1) / 2
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        images = interpolate(images, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)
        features: Tensor = self.network((images - self.mean) / self.std)
        return features


@typed
def load_inception(
    path: Path, image_shape: tuple[int, int, int], *, device: torch.device | str = "cpu"
) -> FeatureNetwork:
    """Load Inception-v3 from a ``.safetensors`` file or a ``.pth`` state dict; a pickle is read without running code.

    The tensors have torchvision's names; ``image_shape`` is (C, H, W) of the images to come.

    Raises:
        InputError: If the file is missing, damaged, or holds other tensors. The message names it.
    """
    from torchvision.models import inception_v3

    content = read_plain(path, _MOST_BYTES, follow=True)
    try:
        if path.suffix == ".safetensors":
            weights = safetensors.torch.load(content)
        else:
            weights = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except _DAMAGE as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path} cannot be read as weights ({reason}). Give .safetensors or a plain state dict."
        ) from error
    if not isinstance(weights, dict) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise DataError(f"{path} is not a table of named tensors. Give torchvision's state dict of inception_v3.")
    unused = ("AuxLogits.", "fc.")  # the heads
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith(unused)}
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore", FutureWarning)  # about the initialization, which is skipped
        network = inception_v3(weights=None, aux_logits=False, init_weights=False)
    network.fc = nn.Identity()
    network = network.to_empty(device="cpu")
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} does not hold torchvision's inception_v3 ({reason}).") from error
    if not all(bool(tensor.isfinite().all()) for tensor in network.state_dict().values()):
        raise InputError(f"{path} holds weights that are not finite. Copy the file again.")
    model = InceptionFeatures(network).to(device).eval()
    sha256 = hashlib.sha256(content).hexdigest()
    return FeatureNetwork(
        "inception-v3", model, sha256, image_shape, resize=SIDE, standardize=False, batch_size=_INCEPTION_BATCH
    )
