"""Inception-v3 as a feature network, from a weights file on this machine; nothing is downloaded.

The network is torchvision's, with the weights that torchvision publishes (``inception_v3_google-0cc3c7bd.pth``, trained
on ImageNet). Published FIDs use another port of other weights: numbers of both do not compare.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import warnings
import zipfile
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from idpgan.checks import typed
from idpgan.errors import DataError, InputError
from idpgan.files import read_plain
from idpgan.metrics.features import FeatureNetwork

SIDE = 299  # px, what Inception-v3 was trained on
_MOST_BYTES = 1 << 29
_BATCH = 32
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as torchvision's weights want it
_DAMAGE = (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, EOFError, pickle.UnpicklingError,
           zipfile.BadZipFile, safetensors.SafetensorError)  # fmt: skip


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
        raise DataError(f"{path} is no table of named tensors. Give torchvision's state dict of inception_v3.")
    unused = ("AuxLogits.", "fc.")  # the heads
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith(unused)}
    network = _bare_network()
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} does not hold torchvision's inception_v3 ({reason}).") from error
    if not all(bool(tensor.isfinite().all()) for tensor in network.state_dict().values()):
        raise InputError(f"{path} holds weights that are not finite. Copy the file again.")
    model = InceptionFeatures(network).to(device).eval()
    sha256 = hashlib.sha256(content).hexdigest()
    return FeatureNetwork("inception-v3", model, sha256, image_shape, resize=SIDE, standardize=False, batch_size=_BATCH)


def _bare_network() -> nn.Module:
    """Return torchvision's Inception-v3 without heads, with weights yet to come."""
    from torchvision.models import inception_v3

    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore", FutureWarning)  # about the initialization, which is skipped
        network = inception_v3(weights=None, aux_logits=False, init_weights=False)
    network.fc = nn.Identity()
    bare: nn.Module = network.to_empty(device="cpu")
    return bare
