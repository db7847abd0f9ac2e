"""Feature networks, which turn images into the numbers that scores compare: a classifier, an autoencoder, Inception-v3.

The recipe by which a measuring network is fitted is part of a score's meaning. A network trained on real training
images never leaves the curator. The autoencoder is for images without labels. Its 64 numbers describe the picture:
brightness, pose, shapes. Fine texture counts little, so blur shows less than in the features of a classifier.
Inception-v3 is torchvision's, with the weights that torchvision publishes (``inception_v3_google-0cc3c7bd.pth``,
trained on ImageNet); nothing is downloaded. Published FIDs use another port with other weights: the two kinds of
numbers are not comparable.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import math
import pickle
import zipfile
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.functional import interpolate, mse_loss
from torch.optim.lr_scheduler import OneCycleLR

from idpgan.data.images import Images, to_float
from idpgan.data.load import Split
from idpgan.device import cat, let_go
from idpgan.errors import DataError, InputError
from idpgan.files import read_plain
from idpgan.host import unwarned
from idpgan.metrics.cache import Cache
from idpgan.models.classifier import Classifier, build_classifier, classifier_body
from idpgan.models.initialize import seeded_init, torch_seed
from idpgan.models.optimizers import AdamW
from idpgan.progress import Progress, silent
from idpgan.training.fit import FitConfig, TrainedModel, fit_classifier, predict

Part = Literal["test", "holdout"]  # real images that judge: never trained on
PROTOCOL = "feature-classifier/1"  # a change of network, recipe or training set changes the number
_NAME = "cnn"
_ACCURACY = "held_back_accuracy"  # kept beside the weights
# Chosen on MNIST for two CPU cores: further epochs change accuracy by less than the seed does.
RECIPES = {
    "cnn": FitConfig(epochs=6, learning_rate=1e-2),
    "resnet": FitConfig(epochs=6, learning_rate=1e-2),
    "logistic": FitConfig(epochs=20, learning_rate=5e-3, weight_decay=0.0),
}
MIN_BATCH, BATCHES_PER_EPOCH = 32, 40  # small sets get smaller batches,
MIN_STEPS_PER_EPOCH = 100  # and each epoch of the recipe becomes several
_AUTOENCODER = "feature-autoencoder/2"  # a change of network, recipe or training set changes the number
PASSES = 20  # over the training images,
FEWEST_STEPS, MOST_STEPS = 300, 3000  # bounds for few and for many images
_BATCH, _LEARNING_RATE = 128, 3e-3
_HALVINGS = 3  # the decoder starts at an eighth of the image's sides
_WIDTH = 64  # channels of the decoder's coarsest grid
_INCEPTION_PX = 299  # px, what Inception-v3 was trained on
_MOST_BYTES = 1 << 29
_INCEPTION_BATCH = 32
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as torchvision's weights want it
_DAMAGE = (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, EOFError, pickle.UnpicklingError,
           zipfile.BadZipFile, SafetensorError)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class FeatureNetwork:
    """A network that turns images into features, and the facts about it that a score has to report.

    Attributes:
        name: "classifier", "autoencoder" or "inception-v3".
        model: The network in eval mode; its call, or that of a subclass's `features`, gives the features.
        sha256: SHA-256 (hex) of the weights as a file: scores compare only where this is the same.
        image_shape: (C, H, W).
        resize: Side in pixels to which the network resizes images; None for none.
        standardize: Whether fidelity centers and scales the features: networks fitted here have an arbitrary scale.
    """

    name: str
    model: nn.Module
    sha256: str
    image_shape: tuple[int, int, int]
    resize: int | None = None
    standardize: bool = True
    batch_size: int = 1000

    def features(self, images: Tensor) -> Tensor:
        """Map float images (B, C, H, W) in [-1, 1] to features (B, F)."""
        features: Tensor = self.model(images)
        return features


@dataclasses.dataclass(frozen=True)
class FeatureClassifier(FeatureNetwork):
    """A classifier of real images; its features are the input of its last layer.

    Attributes:
        held_back_accuracy: Accuracy on the held-back tenth of the real training images, which chose the epoch.
        num_images: Real training images, held-back ones included.
    """

    model: Classifier
    held_back_accuracy: float = dataclasses.field(kw_only=True)
    num_images: int = dataclasses.field(kw_only=True)
    classes: tuple[str, ...] = dataclasses.field(kw_only=True)

    def features(self, images: Tensor) -> Tensor:
        """See `FeatureNetwork.features`."""
        return self.model.features(images)


def full_training_set(split: Split, judged_on: Part = "test") -> Images:
    """Return all real training images that are there: public, holdout and private; shares leave the order unchanged.

    Of classes, public images without labels are left out. With ``judged_on="holdout"`` the holdout is left out: the
    judging network has not seen the images of the comparison.
    """
    split = split.existing()
    every = (split.public, split.holdout, split.private) if judged_on == "test" else (split.public, split.private)
    parts = [part for part in every if part.labels is not None or split.private.labels is None]
    labels = [part.labels for part in parts if part.labels is not None]
    images = cat([part.images for part in parts])
    return Images(images, torch.cat(labels) if labels else None, split.classes)


def fit_feature_classifier(
    images: Images,
    *,
    seed: int = 0,
    cache: Cache | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> FeatureClassifier:
    """Fit the classifier that inception scores are computed with.

    As in Yang, Zhou and Ning, section 3.2.1: trained on the full real training set (`full_training_set`), adjusted on a
    validation part of it.

    Raises:
        InputError: If the images have no labels, or are too few.
    """
    if images.labels is None:
        raise InputError("The real images have no labels, so that no classifier gives an inception score.")

    def compute() -> dict[str, Tensor]:
        model, fitted = fit_named(_NAME, images, seed=seed, device=device, progress=progress, what="feature classifier")
        return {
            **model.cpu().state_dict(),
            _ACCURACY: torch.tensor(fitted.best.held_back_accuracy, dtype=torch.float64),
        }

    config = recipe(_NAME, len(images), seed).model_dump(mode="json")
    key = {"protocol": PROTOCOL, "network": _NAME, "config": config, "images": images.digest()}
    weights = (cache or Cache(None)).get("classifier", key, compute)
    accuracy = float(weights.pop(_ACCURACY))
    model = build_classifier(_NAME, images.image_shape, len(images.classes))
    model.load_state_dict(weights)
    return FeatureClassifier(
        name="classifier",
        model=model.to(device).eval(),
        sha256=hashlib.sha256(save(weights)).hexdigest(),
        held_back_accuracy=accuracy,
        num_images=len(images),
        classes=images.classes,
        image_shape=images.image_shape,
    )


def extract_features(
    network: FeatureNetwork, images: Images, *, cache: Cache | None = None, progress: Progress = silent
) -> Tensor:
    """Compute the features of images, (N, F) float32 on the CPU, or take them from the cache.

    The hashes of network and images are the key.

    Raises:
        InputError: If there are no images, or they have another shape than the network's.
    """
    if len(images) == 0 or images.image_shape != network.image_shape:
        raise InputError(
            f"The feature {network.name} takes at least one image of the shape (C, H, W) = {network.image_shape}, "
            f"got {len(images)} of {images.image_shape}."
        )
    done = 0

    def output(batch: Tensor) -> Tensor:
        nonlocal done
        done += len(batch)
        progress("features of images", done, len(images))
        return network.features(batch).float()

    def compute() -> dict[str, Tensor]:
        rows = predict(network.model, images.images, output=output, batch_size=network.batch_size)
        return {"features": rows.cpu()}

    key = {"protocol": PROTOCOL, "classifier": network.sha256, "images": images.digest()}
    return (cache or Cache(None)).get("features", key, compute)["features"]


def class_probabilities(classifier: FeatureClassifier, features: Tensor) -> Tensor:
    """Return p(y|x) for the features (N, F) of images: (N, K) float64, on the CPU."""
    head = classifier.model.head
    weight, bias = head.weight.detach().cpu().double(), head.bias.detach().cpu().double()
    return (features.double() @ weight.T + bias).softmax(dim=1)


def recipe(name: str, num_images: int, seed: int) -> FitConfig:
    """Return how the classifier of that name is fitted to so many images."""
    chosen = RECIPES[name]
    num_train = num_images * (1 - chosen.held_back_share)
    batch_size = min(chosen.batch_size, max(MIN_BATCH, int(num_train / BATCHES_PER_EPOCH)))
    epochs = chosen.epochs * max(1, math.ceil(MIN_STEPS_PER_EPOCH / math.ceil(num_train / batch_size)))
    learning_rate = chosen.learning_rate * math.sqrt(batch_size / chosen.batch_size)  # the usual scaling for Adam
    return chosen.model_copy(
        update={"batch_size": batch_size, "epochs": epochs, "learning_rate": learning_rate, "seed": seed}
    )


def fit_named(
    name: str, images: Images, *, seed: int, device: torch.device | str, progress: Progress, what: str
) -> tuple[Classifier, TrainedModel]:
    """Build the classifier of that name on a device and fit it to at least 3 labeled images.

    ``progress`` is told ``what``, steps done and steps in all.

    Raises:
        InputError: If the images are unlabeled or too few, or the fit diverges.
    """
    if images.labels is None:
        raise InputError(f"{what}: these images have no labels, and a classifier cannot be trained without them.")
    model = build_classifier(name, images.image_shape, len(images.classes), seed=seed).to(device)
    config = recipe(name, len(images), seed)
    return model, fit_classifier(
        model,
        images.images,
        images.labels,
        config=config,
        on_step=lambda done, total: progress(f"{what}, steps", done, total),
    )


# Other networks ---------------------------------------------------------------------------------------------------


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
    key = {"protocol": _AUTOENCODER, "config": recipe, "images": images.digest()}
    weights = (cache or Cache(None)).get(
        "autoencoder", key, lambda: _fit_autoencoder(images, seed, device, progress).cpu().state_dict()
    )
    model = Autoencoder(images.image_shape)
    model.load_state_dict(weights)
    sha256 = hashlib.sha256(save(weights)).hexdigest()
    return FeatureNetwork("autoencoder", model.to(device).eval(), sha256, images.image_shape)


def _fit_autoencoder(images: Images, seed: int, device: torch.device | str, progress: Progress) -> Autoencoder:
    with seeded_init(seed):
        model = Autoencoder(images.image_shape)
    model = model.to(device).train()
    steps = num_steps(len(images))
    optimizer = AdamW(model.parameters(), lr=_LEARNING_RATE, fused=True)
    scheduler = OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps)
    rng = torch.Generator().manual_seed(torch_seed(seed, 1))
    loss = torch.zeros(())
    progress("feature autoencoder, steps", 0, steps)
    for step in range(1, steps + 1):
        index = torch.randint(len(images), (_BATCH,), generator=rng)
        batch = to_float(images.images[index.to(images.images.device)].to(device))
        batch = batch.to(memory_format=torch.channels_last)
        loss = mse_loss(model.decode(model(batch)), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        progress("feature autoencoder, steps", step, steps)
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
        images = interpolate(
            images, (_INCEPTION_PX, _INCEPTION_PX), mode="bilinear", antialias=True, align_corners=False
        )
        features: Tensor = self.network((images - self.mean) / self.std)
        return features


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
            weights = load(content)
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
    with unwarned(FutureWarning), torch.device("meta"):  # about the initialization, which is skipped
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
        "inception-v3",
        model,
        sha256,
        image_shape,
        resize=_INCEPTION_PX,
        standardize=False,
        batch_size=_INCEPTION_BATCH,
    )
