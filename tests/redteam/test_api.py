"""Public functions with wrong types: an `InputError` that names the argument, never a traceback, never a hang.

Every argument of every function is replaced by every wrong value in turn. A call may succeed where a value can only
mean one thing (a NumPy array for a tensor); it may never end in anything but a result or an `InputError`.
"""

import dataclasses
import inspect

import numpy as np
import pytest
import torch

from idpgan import attacks, audit, load_generator, publish
from idpgan.attacks.evaluate import evaluate_scores, roc_curve
from idpgan.attacks.losses import classifier_confidence, critic_score, latent_reconstruction
from idpgan.attacks.membership import calibrate, density_ratio, nearest_sample, neighborhood_count
from idpgan.attacks.registry import select_attacks
from idpgan.attacks.subspace import identified, subspace_scores
from idpgan.audit.bounds import cap
from idpgan.audit.one_run import audit_guesses, epsilon_from_guesses, insert_canaries, make_canaries, p_value
from idpgan.checks import typed
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.errors import InputError
from idpgan.metrics.features import full_training_set
from idpgan.metrics.fidelity import frechet_distance, kernel_distance, nearest_scores
from idpgan.metrics.images import (
    absolute_error,
    entropy,
    grey_histograms,
    histogram_distance,
    mean_filter,
    median_filter,
    mse,
    psnr,
    relative_error,
    ssim,
)
from idpgan.metrics.inception import inception_score
from idpgan.metrics.recognition import halves, recognize
from idpgan.models import ModelConfig, build_generator
from tests.redteam.alarm import within

CALLBACKS = {"mechanism", "critic"}  # any function fits; what it raises is its own
SECONDS = 20  # a call that takes longer hangs
RNG = np.random.default_rng(7)


def images(num, labeled=True):
    pixels = torch.from_numpy(RNG.integers(0, 256, (num, 1, 8, 8), dtype=np.uint8))
    labels = torch.arange(num) % 2
    return Images(pixels, labels, ("a", "b")) if labeled else Images(pixels)


PICTURES = torch.from_numpy(RNG.random((2, 8, 8)))
FLAT = torch.from_numpy(RNG.random((6, 8, 8)))
SPLIT = Split(images(4), images(8), images(6), images(6))
GENERATOR = build_generator(ModelConfig(width=8, latent_dim=4), (1, 8, 8), 2)
PEOPLE = torch.tensor([0, 0, 1, 1, 2, 2])

CALLS = {
    "release": (publish.release, {"images": PICTURES, "method": "lap", "epsilon": 1.0, "delta": 0.0, "unit": "image"}),
    "release sra": (
        publish.release,
        {"images": PICTURES, "method": "sra", "epsilon": 1.0, "accept_unsound": True, "rank": 2},
    ),
    "batched_svd": (publish.batched_svd, {"matrices": PICTURES, "rank": 2}),
    "evaluate_scores": (
        evaluate_scores,
        {"members": [1.0, 2.0, 3.0], "non_members": [0.0, 1.0, 2.0], "confidence": 0.9},
    ),
    "roc_curve": (roc_curve, {"members": [1.0, 2.0], "non_members": [0.0, 1.0]}),
    "nearest_sample": (nearest_sample, {"images": FLAT, "samples": FLAT}),
    "calibrate": (calibrate, {"scores": torch.ones(3), "reference": torch.ones(3)}),
    "neighborhood_count": (neighborhood_count, {"images": FLAT, "samples": FLAT, "radius": 1.0, "dimensions": 3}),
    "density_ratio": (density_ratio, {"images": FLAT, "samples": FLAT, "reference": FLAT, "dimensions": 3}),
    "critic_score": (
        critic_score,
        {
            "images": images(4).images,
            "labels": torch.zeros(4, dtype=torch.int64),
            "critic": lambda batch, labels: batch.flatten(1).sum(1),
            "batch_size": 3,
        },
    ),
    "classifier_confidence": (
        classifier_confidence,
        {"images": images(4).images, "labels": torch.zeros(4, dtype=torch.int64), "samples": images(6), "steps": 1},
    ),
    "latent_reconstruction": (
        latent_reconstruction,
        {
            "images": images(2).images,
            "labels": torch.zeros(2, dtype=torch.int64),
            "generator": GENERATOR,
            "steps": 1,
            "restarts": 1,
            "pool": 2,
            "learning_rate": 0.1,
            "seed": 0,
            "batch_size": 2,
        },
    ),
    "select_attacks": (select_attacks, {"names": ["nearest-sample"]}),
    "subspace_scores": (subspace_scores, {"released": PICTURES, "gallery": PICTURES, "gallery_rank": 2}),
    "identified": (
        identified,
        {"scores": torch.eye(2), "identities": torch.arange(2), "gallery_identities": torch.arange(2)},
    ),
    "audit": (
        audit.audit,
        {
            "mechanism": lambda rows: rows + torch.randn(rows.shape),
            "data": torch.zeros(1),
            "neighbor": torch.ones(1),
            "runs": 100,
            "delta": 0.0,
            "confidence": 0.9,
        },
    ),
    "cap": (cap, {"held_out": 100, "confidence": 0.9, "delta": 0.0}),
    "p_value": (p_value, {"canaries": 10, "guesses": 8, "correct": 6, "epsilon": 1.0, "delta": 0.0}),
    "epsilon_from_guesses": (
        epsilon_from_guesses,
        {"canaries": 10, "guesses": 8, "correct": 8, "delta": 0.0, "confidence": 0.9},
    ),
    "audit_guesses": (
        audit_guesses,
        {
            "scores": torch.arange(8.0),
            "included": torch.arange(8) > 3,
            "delta": 0.0,
            "confidence": 0.9,
            "guesses": [4, 8],
        },
    ),
    "make_canaries": (make_canaries, {"split": SPLIT, "num": 2, "kind": "noise", "seed": 0}),
    "insert_canaries": (insert_canaries, {"split": SPLIT, "canaries": images(2), "seed": 0}),
    "grey_histograms": (grey_histograms, {"images": FLAT}),
    "entropy": (entropy, {"images": FLAT}),
    "mse": (mse, {"images": FLAT, "reference": FLAT}),
    "absolute_error": (absolute_error, {"images": FLAT, "reference": FLAT}),
    "relative_error": (relative_error, {"images": FLAT, "reference": FLAT}),
    "mean_filter": (mean_filter, {"images": FLAT, "side": 3}),
    "median_filter": (median_filter, {"images": FLAT, "side": 3}),
    "psnr": (psnr, {"images": FLAT, "reference": FLAT}),
    "ssim": (ssim, {"images": torch.rand(2, 12, 12), "reference": torch.rand(2, 12, 12)}),
    "histogram_distance": (histogram_distance, {"images": FLAT, "reference": FLAT}),
    "inception_score": (inception_score, {"probabilities": torch.eye(4), "splits": 2}),
    "halves": (halves, {"identities": PEOPLE}),
    "recognize": (
        recognize,
        {
            "train": FLAT,
            "train_identities": PEOPLE,
            "test": FLAT,
            "test_identities": PEOPLE,
            "components": 2,
            "penalty": 1.0,
            "seed": 0,
        },
    ),
    "full_training_set": (full_training_set, {"split": SPLIT, "judged_on": "test"}),
    "frechet_distance": (frechet_distance, {"features": FLAT[:, 0], "real": FLAT[:, 1]}),
    "kernel_distance": (kernel_distance, {"features": FLAT[:, 0], "real": FLAT[:, 1]}),
    "nearest_scores": (nearest_scores, {"features": FLAT[:, 0], "real": FLAT[:, 1]}),
    "load_generator": (load_generator, {"path": "no-such-release"}),
    "sample": (GENERATOR.sample, {"num": 2, "labels": [0, 1], "seed": 0, "batch_size": 2}),
}
WRONG = {
    "None": None,
    "text": "abc",
    "number as text": "1",
    "bytes": b"\xff\x00",
    "NUL": "a\0b",
    "bool": True,
    "negative": -1,
    "zero": 0,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "large": 10**15,
    "huge": 10**30,
    "fraction": 1.5,
    "complex": 1j,
    "list": [],
    "nested list": [["a"], [1, 2]],
    "dictionary": {},
    "object": object(),
    "class": int,
    "array of objects": np.array([None, "a"], dtype=object),
    "array of texts": np.array(["a", "b"]),
    "array, negative strides": np.ones((2, 8, 8))[::-1, ::-1],
    "array, big-endian": np.ones((2, 8, 8), dtype=">f8"),
    "array, long double": np.ones((2, 8, 8), dtype=np.longdouble),
    "array, read-only": np.broadcast_to(np.float32(1), (2, 8, 8)),
    "structured array": np.zeros(2, dtype=[("a", "f4")]),
    "empty tensor": torch.empty(0),
    "0-d tensor": torch.tensor(1.0),
    "complex tensor": torch.ones(2, 8, 8, dtype=torch.complex64),
    "bool tensor": torch.ones(2, 8, 8, dtype=torch.bool),
    "int tensor": torch.ones(2, 8, 8, dtype=torch.int64),
    "half tensor": torch.ones(2, 8, 8, dtype=torch.float16),
    "sparse tensor": torch.ones(2, 8).to_sparse(),
    "meta tensor": torch.ones(2, 8, 8, device="meta"),
    "NaN tensor": torch.full((2, 8, 8), float("nan")),
    "labels out of range": torch.full((2,), 10**9),
    "5-d tensor": torch.ones(1, 1, 1, 1, 1),
    "images": images(3, labeled=False),
    "generator": GENERATOR,
    "function": len,
}


def at_the_door(function):
    """A function with the checks that every exported one has; methods of exported classes, and doors, have them."""
    return typed(function) if inspect.isfunction(function) and not hasattr(function, "__wrapped__") else function


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_wrong_types_are_named_and_nothing_else_happens(name):
    function, good = at_the_door(CALLS[name][0]), CALLS[name][1]
    failures, refused = [], 0
    for argument in good:
        for what, value in WRONG.items():
            if argument in CALLBACKS and callable(value):
                continue
            try:
                with within(SECONDS):
                    function(**{**good, argument: value})
            except InputError as error:
                refused += 1
                if "\n" in str(error):
                    failures.append(f"{argument} = {what}: several lines: {error}")
            except Exception as error:  # noqa: BLE001  # that is what this test looks for
                failures.append(f"{argument} = {what}: {type(error).__name__}: {str(error)[:80]}")
    assert failures == []
    assert refused >= 10 * len(good)


def test_the_calls_that_wrong_values_are_put_into_are_right():
    for name, (function, good) in CALLS.items():
        if name != "load_generator":
            function(**good)


def test_arrays_and_names_are_taken_as_what_they_can_only_mean():
    mse, array = at_the_door(CALLS["mse"][0]), np.random.default_rng(0).random((2, 8, 8))
    expected = mse(torch.from_numpy(array), torch.zeros(2, 8, 8))
    for variant in (array, array.astype(">f8"), array[::-1].copy()[::-1], np.asfortranarray(array)):
        assert torch.allclose(mse(variant, np.zeros((2, 8, 8))), expected)
    assert publish.release(array, "lap", epsilon=1, unit="column").events[0].unit == "column"
    assert dataclasses.is_dataclass(attacks.evaluate_scores(np.arange(4.0), torch.zeros(4)))
    assert cap(np.int64(100)) == cap(100)
