"""The one supervised loop: classifiers, recognizers, feature networks and attack models are all fitted here.

Nothing in it is private: all inputs must be synthetic or public, or the result stays with the curator.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR, OneCycleLR

from idpgan.config import Section
from idpgan.data.images import to_float
from idpgan.device import let_go, take
from idpgan.errors import InputError
from idpgan.models import initialize, optimizers

Augment = Callable[[Tensor, torch.Generator], Tensor]  # one float batch and a generator on its device -> a float batch


class FitConfig(Section):
    """How to fit a classifier.

    Attributes:
        epochs: Passes over the training part.
        batch_size: Largest number of images per step; batches of one epoch differ in size by at most one.
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Decoupled weight decay of AdamW.
        schedule: "one_cycle" warms up over the first 30 % of the steps, "cosine" starts at the peak; both end near 0.
            "step" starts at the peak and falls to a fifth of itself after 40 % and again after 80 % of the epochs.
        ema_decay: Judge and keep a moving average of the weights with this decay, ramped up (see `Ema`); None keeps
            the weights themselves.
        held_back_share: Share of the images that chooses the best epoch and is not trained on; unused where the caller
            brings a validation part.
        seed: Seeds the choice of the held-back part, the order of batches and the augmentation.
    """

    epochs: int = Field(10, ge=1)
    batch_size: int = Field(256, ge=3)  # from 3 on, no batch is a single image, which batch normalization cannot take
    learning_rate: float = Field(5e-3, gt=0)
    weight_decay: float = Field(1e-2, ge=0)
    schedule: Literal["one_cycle", "cosine", "step"] = "one_cycle"
    ema_decay: float | None = Field(None, ge=0, lt=1)
    held_back_share: float = Field(0.1, gt=0, lt=1)
    seed: int = Field(0, ge=0)


@dataclasses.dataclass(frozen=True)
class Epoch:
    """The record of one epoch."""

    number: int  # the first is 1
    train_loss: float  # mean cross-entropy over the epoch, in nats
    held_back_loss: float
    held_back_accuracy: float  # in [0, 1]

    @property
    def rank(self) -> tuple[float, float]:
        """Orders epochs: higher accuracy is better, then lower loss."""
        return self.held_back_accuracy, -self.held_back_loss


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A fitted model, in eval mode, with the weights of its best epoch."""

    model: nn.Module
    history: tuple[Epoch, ...]
    best: Epoch


class FitError(InputError):
    """The loss is no longer a number."""


def fit_classifier(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    config: FitConfig | None = None,
    held_back: tuple[Tensor, Tensor] | None = None,
    augment: Augment | None = None,
    on_step: Callable[[int, int], None] = lambda done, total: None,
) -> TrainedModel:
    """Fit a model to labeled images by cross-entropy, and keep the epoch that does best on held-back images.

    Best is the highest held-back accuracy, then the lowest held-back loss. One seed gives the same result again on the
    same machine; the caller's random state is neither read nor changed. Nothing waits for the device within an epoch.

    Args:
        model: Maps a float batch to logits (B, K). Fitted in place, on the device where its parameters are.
        images: (N, ...): uint8, scaled to [-1, 1] batch by batch, or floating point, used as it is. On the device of
            the model, or on the CPU if it is too large for that.
        labels: (N,) int64 in [0, K).
        held_back: Images and labels of a separate validation part; None takes ``config.held_back_share`` of `images`.
        augment: Changes a float batch of the training part, with its own generator on the device of the model.
        on_step: Is told how many steps are done, and how many there are in all.

    Raises:
        InputError: If images and labels do not fit together or the model, are not finite, or are fewer than two.
        FitError: If the loss becomes infinite or not a number.
    """
    config = config or FitConfig()
    rng = torch.Generator().manual_seed(initialize.torch_seed(config.seed, 1))  # stream 0 seeds the initial weights
    order, held_back = _parts(model, images, labels, held_back, config.held_back_share, rng)
    labels = labels.to(images.device)
    num_batches = math.ceil(len(order) / config.batch_size)
    optimizer, scheduler = _optimizer(model, config, num_batches)
    average = None if config.ema_decay is None else initialize.Ema(model, config.ema_decay)
    judged = model if average is None else average.module
    augment_rng = torch.Generator(_device(model)).manual_seed(initialize.torch_seed(config.seed, 2))
    history: list[Epoch] = []
    best, weights = Epoch(0, math.inf, math.inf, -1.0), dict[str, Tensor]()  # worse than any real epoch
    for number in range(1, config.epochs + 1):
        order = order[torch.randperm(len(order), generator=rng).to(order.device)]
        losses = []  # 0-d, on the device
        model.train()
        parts = order.tensor_split(num_batches)  # sizes differ by at most 1: no tiny last batch, none dropped
        for step, index in enumerate(parts, 1):
            batch = _network_input(images[index], model)  # (B, ...)
            batch = batch if augment is None else augment(batch, augment_rng)
            loss = cross_entropy(model(batch), labels[index].to(batch.device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if average is not None:
                average.update(model)
            losses.append(loss.detach())
            on_step((number - 1) * num_batches + step, config.epochs * num_batches)
        epoch = _judge(number, torch.stack(losses).mean(), judged, held_back)
        if epoch.rank > best.rank:
            best, weights = epoch, {name: tensor.detach().clone() for name, tensor in judged.state_dict().items()}
        history.append(epoch)
    model.load_state_dict(weights)
    return TrainedModel(model.eval(), tuple(history), best)


def predict(
    model: nn.Module, images: Tensor, *, output: Callable[[Tensor], Tensor] | None = None, batch_size: int = 1000
) -> Tensor:
    """Run a model over many images, N >= 1, in eval mode without gradients: (N, ...), on the device of the model.

    The images are those of `fit_classifier`. The model's mode is restored. ``output`` is called on each float batch,
    for example a method of the model; None calls the model itself.
    """
    was_training = model.training
    model.eval()
    call = output or model
    with torch.inference_mode():
        results = [call(_network_input(batch, model)) for batch in images.split(batch_size)]
    model.train(was_training)
    let_go(images)
    return torch.cat(results)  # outside of inference mode: a tensor that autograd can use


def _parts(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    held_back: tuple[Tensor, Tensor] | None,
    share: float,
    rng: torch.Generator,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Check the images; return which of them are trained on, in random order, and the held-back part."""
    _check(model, images, labels, "images")
    order = torch.randperm(len(images), generator=rng).to(images.device)
    if held_back is None:
        num_held = max(1, round(share * len(images)))
        held_index, order = order[:num_held], order[num_held:]
        held_back = take(images, held_index), labels.to(images.device)[held_index]
    else:
        _check(model, *held_back, "validation images")
    if len(order) < 2:
        raise InputError(f"{len(order)} image is left to train on, and at least 2 are needed. Give more images.")
    return order, held_back


def _judge(number: int, train_loss: Tensor, model: nn.Module, held_back: tuple[Tensor, Tensor]) -> Epoch:
    """Close an epoch: the only place where the host waits for the device."""
    logits = predict(model, held_back[0])
    labels = held_back[1].to(logits.device)
    accuracy = (logits.argmax(1) == labels).double().mean()
    numbers = torch.stack([train_loss.double(), cross_entropy(logits, labels).double(), accuracy]).tolist()
    epoch = Epoch(number, *numbers)
    if not math.isfinite(epoch.train_loss + epoch.held_back_loss):
        raise FitError(
            f"The loss in epoch {number} is {epoch.train_loss:g} on the training part and {epoch.held_back_loss:g} on "
            "the held-back part: the fit diverged. Lower learning_rate, or scale the images to [-1, 1]."
        )
    return epoch


def _optimizer(model: nn.Module, config: FitConfig, num_batches: int) -> tuple[torch.optim.Optimizer, LRScheduler]:
    steps = config.epochs * num_batches
    optimizer = optimizers.AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    if config.schedule == "cosine":
        return optimizer, CosineAnnealingLR(optimizer, steps)
    if config.schedule == "step":
        falls = [round(share * config.epochs) * num_batches for share in (0.4, 0.8)]
        return optimizer, MultiStepLR(optimizer, falls, gamma=0.2)
    return optimizer, OneCycleLR(optimizer, config.learning_rate, total_steps=steps)


def _network_input(batch: Tensor, model: nn.Module) -> Tensor:
    """Return a batch as float, on the device of the model, channels last if it is one of images."""
    batch = batch.to(_device(model), non_blocking=True)
    batch = to_float(batch) if batch.dtype == torch.uint8 else batch
    return batch.to(memory_format=torch.channels_last) if batch.ndim == 4 else batch  # 1.3 times as fast


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _check(model: nn.Module, images: Tensor, labels: Tensor, what: str) -> None:
    if len(images) == 0:
        raise InputError(f"There are no {what}. Give at least one.")
    if labels.dtype != torch.int64 or labels.shape != (len(images),):
        actual = f"{labels.dtype} {tuple(labels.shape)}"
        raise InputError(f"The labels of {len(images)} {what} must be int64 ({len(images)},), got {actual}.")
    if not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise InputError(f"The {what} must be uint8 or floating point, got {images.dtype}.")
    if images.is_floating_point() and not bool(images.isfinite().all()):
        raise InputError(f"The {what} hold NaN or infinity. Remove such images, or mend what made them.")
    num_classes = predict(model, images[:1]).shape[1]
    low, high = torch.stack(labels.aminmax()).tolist()
    if low < 0 or high >= num_classes:
        raise InputError(
            f"The labels of the {what} are in [{low}, {high}], but the model has the classes 0 to {num_classes - 1}."
        )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate
