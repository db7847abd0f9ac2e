"""Refuse a private critic whose scores or state mix records, by name and reason."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from idpgan.errors import ConfigError
from idpgan.models.generator import Generator
from idpgan.models.initialize import seeded_init
from idpgan.own_code import error_line

PROBE_RECORDS = 8  # records in a probing batch: enough for layers that mix groups of 2, 4 or 8
REPLACED = (0, PROBE_RECORDS // 2, PROBE_RECORDS - 1)  # records changed in turn: mixing may be one-sided
MOST_FOUND = 20  # mixing layers that are looked for, one after the other
Modes = tuple[bool, ...]  # of a module while it is tried: True for training
BOTH: Modes = (True, False)

_BATCH_NORM = "it normalizes with the mean and variance of the whole batch, and keeps them in its buffers"
_INSTANCE_NORM = "track_running_stats = True keeps statistics of private records in its buffers"
_SPECTRAL_NORM = (
    "its power iteration rewrites buffers inside every forward pass, so the gradients of single records are not those "
    "of one fixed function; untested with clipping per record"
)
_MIXES = "its output for one record changes with the other records of the batch"
_KEEPS = "its buffers change with the records that pass: they would keep private statistics"
_BATCH_SIZE = "the score of a record alone differs from its score in a batch"
_OWN_CHANCE = "it draws random numbers of its own, or keeps state: two calls give different results"


class Offender(NamedTuple):
    """One layer that must not be in a private critic."""

    name: str  # as in named_modules(); "" is the critic itself
    kind: str
    reason: str


class _Call(NamedTuple):
    """One call of a submodule, in the order in which the calls end."""

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]


def validate_private_critic(
    module: nn.Module,
    *,
    image_shape: Sequence[int] | None = None,
    num_classes: int | None = None,
    also: Sequence[str] = (),
) -> None:
    """Refuse a critic that cannot be trained with a guarantee per record.

    Clipping per record bounds the influence of one record only if its score and gradient depend on no other record.
    There are two checks. Known layers are refused by type: BatchNorm of any kind, InstanceNorm with running statistics,
    spectral norm. All layers are tested by behavior, which is not a proof: in training and eval mode, a copy of
    ``module`` scores random batches in which one record is replaced, and single records. Dropout, GroupNorm, LayerNorm
    and InstanceNorm without statistics pass.

    Args:
        module: The critic; called as ``module(images)``, or ``module(images, labels)`` with classes.
        image_shape: Shape of one record; None = ``module.image_shape``.
        num_classes: Classes that the critic is conditioned on, 0 for none; None = ``module.num_classes`` or 0.
        also: What the library that takes the steps has against it, in its own words.

    Raises:
        ConfigError: Naming every offending layer and its reason, or why the critic could not be tried.
    """
    shape = getattr(module, "image_shape", None) if image_shape is None else image_shape
    classes = getattr(module, "num_classes", 0) if num_classes is None else num_classes
    if shape is None:
        raise ConfigError(
            f"The critic ({type(module).__name__}) does not say what it scores, so it cannot be tried for mixing of "
            "records. Give it an attribute image_shape, or pass image_shape=(C, H, W)."
        )
    offenders = list(_known(module))
    try:
        offenders += _behavior(module, tuple(shape), int(classes), offenders)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        if not offenders:  # a refused critic needs no second reason
            raise ConfigError(
                f"The critic ({type(module).__name__}) could not be tried for mixing of records on images of shape "
                f"{tuple(shape)} with {classes} classes: {str(error).splitlines()[0] if str(error) else error!r}. "
                "A private critic must score batches of one and of several such records."
            ) from error
    if offenders or also:
        listed = "; ".join(filter(None, [_listed(offenders, "the critic itself"), *also]))
        raise ConfigError(
            f"The critic cannot be trained on private records. {listed}. "
            "Remove these layers, or use GroupNorm or LayerNorm, which act within one record."
        )


def validate_generator(generator: Generator, what: str) -> None:
    """Refuse a generator of the user whose image is not a function of its own latent numbers and label alone.

    Where a private critic pairs each record with a generated image, that image must not depend on another record's
    label; and a seed draws the same images in any batch. In training batch normalization may see the whole batch.

    Args:
        what: Names it in messages.

    Raises:
        ConfigError: Naming what is wrong, in one line.
    """
    shape, classes = (generator.latent_dim,), generator.num_classes
    takes = f"z of shape (B, {generator.latent_dim}){' and labels (B,)' * bool(classes)}"
    with _one_line(what, takes):
        images = copy.deepcopy(generator).eval()(*probe(shape, classes))
        _refuse_random(generator, probe(shape, classes), (False,))
        if offenders := _behavior(generator, shape, classes, [], (False,)):
            raise ConfigError(f"its images mix records. {_listed(offenders)}")
        if not bool(images.isfinite().all()):
            raise ConfigError("it draws pixels that are not finite")
        if bool((images >= 0).all()):
            raise ConfigError("it draws no pixel below 0, and images lie in [-1, 1], black at -1")


def validate_critic(critic: nn.Module, what: str, *, private: bool) -> None:
    """Refuse a critic of the user that gives no finite score to each image, or, if private, that mixes records."""
    shape, classes = tuple(critic.image_shape), int(critic.num_classes)  # type: ignore[arg-type]
    inputs = probe(shape, classes)
    with _one_line(what, f"images (B, C, H, W){' and labels (B,)' * bool(classes)}"):
        if not bool(copy.deepcopy(critic)(*inputs).isfinite().all()):
            raise ConfigError("its scores are not finite")
        if private:
            _refuse_random(critic, inputs, BOTH)
    if private:
        validate_private_critic(critic)


def validate_features(features: nn.Module, image_shape: tuple[int, int, int], what: str) -> None:
    """Refuse features of the user of which one vector depends on another image: a vote would move with others."""
    inputs = probe(image_shape, 0)
    with _one_line(what, "images (B, C, H, W) in [-1, 1]"):
        if not bool(features(*inputs).isfinite().all()):
            raise ConfigError("its features are not finite")
        _refuse_random(features, inputs, (False,))
        if offenders := _behavior(features, image_shape, 0, [], (False,)):
            raise ConfigError(f"its features mix records. {_listed(offenders)}")


def is_random(module: nn.Module, inputs: tuple[Tensor, ...]) -> bool:
    """Tell whether two calls of a copy of a module give different results, in the mode that it is in."""
    copied = copy.deepcopy(module)
    with torch.no_grad():
        return not torch.equal(copied(*inputs).nan_to_num(), copied(*inputs).nan_to_num())


def _refuse_random(module: nn.Module, inputs: tuple[Tensor, ...], modes: Modes) -> None:
    for training in modes:
        if is_random(copy.deepcopy(module).train(training), inputs):
            raise ConfigError(f"{_OWN_CHANCE}. Take all chance from its arguments")


@contextlib.contextmanager
def _one_line(what: str, takes: str) -> Iterator[None]:
    """Say in one line what is wrong with the user's code, whatever it raises."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{what} cannot be used: {error}.") from error
    except Exception as error:
        raise ConfigError(f"{what} cannot be used: called with {takes}, {error_line(error)}.") from error


def _listed(offenders: Sequence[Offender], whole: str = "the network itself") -> str:
    return "; ".join(f"{name or whole} ({kind}): {reason}" for name, kind, reason in offenders)


def _known(module: nn.Module) -> Iterator[Offender]:
    """Yield the layers that are refused by type."""
    for name, part in module.named_modules():
        # Spectral norm is a hook (old) or a parametrization (new).
        lists = part.parametrizations.values() if parametrize.is_parametrized(part) else ()
        hooks = [*part._forward_pre_hooks.values(), *itertools.chain.from_iterable(lists)]
        if isinstance(part, _BatchNorm):
            yield Offender(name, type(part).__name__, _BATCH_NORM)
        elif isinstance(part, _InstanceNorm) and part.track_running_stats:
            yield Offender(name, type(part).__name__, _INSTANCE_NORM)
        elif any(isinstance(hook, SpectralNorm | _SpectralNorm) for hook in hooks):
            yield Offender(name, f"spectral_norm of {type(part).__name__.removeprefix('Parametrized')}", _SPECTRAL_NORM)


def _behavior(
    module: nn.Module, shape: tuple[int, ...], classes: int, known: list[Offender], modes: Modes = BOTH
) -> list[Offender]:
    """Find mixing layers one by one; the identity replaces each, so that it does not hide the next."""
    trial = copy.deepcopy(module).cpu()
    if known and not known[0].name:
        return []  # the critic is itself such a layer
    for offender in known:
        if offender.reason != _SPECTRAL_NORM:  # that one does not mix, and the rest is tried with it
            trial.set_submodule(offender.name, nn.Identity())
    kinds = {name: type(part).__name__ for name, part in trial.named_modules()}
    offenders: list[Offender] = []
    while len(offenders) < MOST_FOUND:
        try:
            culprit = _first_mixing(trial, shape, classes, modes)
        except (RuntimeError, ValueError, TypeError, IndexError):
            if offenders:
                break  # a culprit changed the shape, and what follows it does not fit without it
            raise
        if culprit is None:
            break
        offenders.append(Offender(culprit, kinds.get(culprit, "module"), _MIXES))
        if not culprit:
            break
        trial.set_submodule(culprit, nn.Identity())
    if not offenders:  # modules whose buffers, after a training pass, tell which of two batches went through
        passed = []
        for replaced in (None, 0):
            passed.append(copy.deepcopy(trial).train(modes[0]))
            with seeded_init(0), torch.no_grad():
                passed[-1](*probe(shape, classes, replaced, of=trial))
        for (name, part), other in zip(passed[0].named_modules(), passed[1].modules(), strict=True):
            pairs = zip(part.buffers(recurse=False), other.buffers(recurse=False), strict=True)
            if any(not torch.equal(one.nan_to_num(), two.nan_to_num()) for one, two in pairs):
                offenders.append(Offender(name, type(part).__name__, _KEEPS))
    if not offenders and not known and _depends_on_batch_size(trial, shape, classes, modes):
        offenders.append(Offender("", type(module).__name__, _BATCH_SIZE))
    return offenders


def _first_mixing(trial: nn.Module, shape: tuple[int, ...], classes: int, modes: Modes) -> str | None:
    """Return the first (and innermost) module whose output mixes records although its input does not."""
    for training in modes:
        score, calls = _scored(trial, probe(shape, classes, of=trial), training)
        if score.shape[:1] != (PROBE_RECORDS,):
            raise ValueError(f"{PROBE_RECORDS} records got scores of shape {tuple(score.shape)}, not one score each")
        for record in REPLACED:
            other, changed = _scored(trial, probe(shape, classes, record, of=trial), training)
            if _mixes([score], [other], record):
                for one, two in zip(calls, changed, strict=True):  # parts before the whole
                    if _mixes(one.outputs, two.outputs, record) and not _mixes(one.inputs, two.inputs, record):
                        return one.name
                return ""
    return None


def _mixes(before: list[Tensor], after: list[Tensor], record: int) -> bool:
    """Tell whether rows other than ``record`` differ. Exact: equal shapes take equal paths on the CPU."""
    others = [row for row in range(PROBE_RECORDS) if row != record]
    for first, second in zip(before, after, strict=True):
        if first.shape[:1] != (PROBE_RECORDS,) or first.shape != second.shape:
            continue  # records are not the first dimension here: the final output decides
        if not torch.allclose(first[others], second[others], rtol=0.0, atol=0.0, equal_nan=True):
            return True
    return False


def _scored(trial: nn.Module, inputs: tuple[Tensor, ...], training: bool) -> tuple[Tensor, list[_Call]]:
    """Score a batch with a fresh copy and fixed random numbers; also return the calls of all submodules."""
    copied, calls = copy.deepcopy(trial).train(training), list[_Call]()

    def record(name: str, _: nn.Module, args: Any, output: Any) -> None:  # copies, as layers may work in place
        calls.append(_Call(name, [t.clone() for t in _flat(args)], [t.clone() for t in _flat(output)]))

    for name, part in copied.named_modules():
        part.register_forward_hook(functools.partial(record, name))
    with seeded_init(0), torch.no_grad():  # the same dropout masks in every run
        return copied(*inputs), calls


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in _flat(part)] if isinstance(value, tuple | list) else []


def probe(
    shape: tuple[int, ...], classes: int, replaced: int | None = None, *, of: nn.Module | None = None
) -> tuple[Tensor, ...]:
    """Draw records, and labels if conditional, of the type of a module's weights.

    Record ``replaced`` is another, louder one with another label.
    """
    rng = torch.Generator().manual_seed(0)
    weights = () if of is None else of.parameters()
    dtype = next((weight.dtype for weight in weights if weight.is_floating_point()), torch.float32)
    images = torch.rand(PROBE_RECORDS, *shape, generator=rng).mul(2).sub(1).to(dtype)  # [-1, 1]
    labels = torch.arange(PROBE_RECORDS) % max(classes, 1)
    if replaced is not None:
        images[replaced] = 3 * torch.randn(shape, generator=rng).to(dtype)
        labels[replaced] = (labels[replaced] + 1) % max(classes, 1)
    return (images, labels) if classes else (images,)


def _depends_on_batch_size(trial: nn.Module, shape: tuple[int, ...], classes: int, modes: Modes) -> bool:
    """Tell whether a record alone and in a batch gets different scores. Dropout is off: its masks would differ."""
    inputs = probe(shape, classes, of=trial)
    for training in modes:
        copied = copy.deepcopy(trial).train(training)
        for part in copied.modules():
            if isinstance(part, _DropoutNd):
                part.eval()
        with torch.no_grad():
            with seeded_init(0):
                together = copied(*inputs)
            with seeded_init(1):
                again = copied(*inputs)
            if not torch.allclose(together, again, rtol=1e-4, atol=1e-5, equal_nan=True):
                continue  # random even without dropout layers: single records cannot be compared
            with seeded_init(0):
                alone = torch.cat([copied(*(part[i : i + 1] for part in inputs)) for i in range(PROBE_RECORDS)])
        if alone.shape != together.shape or not torch.allclose(alone, together, rtol=1e-4, atol=1e-5, equal_nan=True):
            return True
    return False
