"""The host's settings change no public call, and no public call changes the host's settings."""

import functools
import random
import re
import signal
import subprocess
import sys
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import idpgan
from idpgan import attacks, audit, continual, host, metrics, models, privacy, publish, release
from idpgan.audit.one_run import make_canaries
from idpgan.checks import typed
from idpgan.commands import process_ledger
from idpgan.data.image_files import decode
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.errors import DataError
from idpgan.privacy import Event, Noise, Relation, Unit
from idpgan.privacy.tiles import Tiles

OURS = (Unit.IMAGE, Relation.ZERO_OUT)
STEP = Event("poisson-gaussian", *OURS, 1.0, 100, sample_rate=0.05)
PIXELS = (np.arange(60 * 64).reshape(60, 8, 8) * 7 % 251).astype(np.uint8)
LABELS = np.arange(60) % 2
MATRICES = torch.arange(24.0).reshape(2, 3, 4).sin()
FACES = torch.rand(2, 1, 8, 8, dtype=torch.float32)
NUMBERS = torch.linspace(0, 1, 9, dtype=torch.float64)
WHOLE = torch.arange(9)
SMALL = models.ModelConfig(width=8)
PLAIN = models.ModelConfig(width=8, conditional=False)
BASE = Images(torch.from_numpy(PIXELS)[:, None], torch.from_numpy(LABELS), ("0", "1"))
ROWS = (BASE.select(torch.arange(0)), *(BASE.select(torch.arange(k, 60, 3)) for k in range(3)))
PICTURES = BASE.images.float() / 255
SPLIT = Split(*ROWS)
WEIGHTS, TILE = {"w": torch.zeros(3)}, ([torch.ones(4, 3)], torch.zeros(4, dtype=torch.bool))
TILES = Tiles.fixed(4, "vmap")
FEW, NO = BASE.select(torch.arange(20)), BASE.select(torch.arange(0))
CRITIC = models.Critic(SMALL, (1, 8, 8), 2)
DIGITS = "checkpoints/digits-aggregate-eps10"


class Drawn:
    """What several calls take, made once and without the host's settings."""

    @functools.cached_property
    def fitted(self):
        return idpgan.fit(PIXELS, LABELS, epsilon=2.0, method="gaussian", progress=False)

    @functools.cached_property
    def classifier(self):
        return idpgan.fit_classifier(PIXELS, LABELS, epsilon=2.0, progress=False)

    @functools.cached_property
    def digits(self):
        return idpgan.load_generator(DIGITS)

    @functools.cached_property
    def module(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))

    @functools.cached_property
    def images(self):
        return publish.release(torch.rand(2, 8, 8, dtype=torch.float32), "lap", epsilon=1.0)

    def __call__(self):
        for name in ("fitted", "classifier", "digits", "module", "images"):
            getattr(self, name)


MADE = Drawn()


def clipped(plan):
    return plan.clipped_sum(lambda w, x: (x @ w["w"]).sum(), WEIGHTS, [TILE], TILES)


def one_run():
    canaries = make_canaries(SPLIT, 20, "noise")
    score = {"mean": lambda trained, images: images.images.flatten(1).double().mean(1)}
    return audit.audit_one_run(SPLIT, canaries, lambda split: None, score)


def counted():
    counter = continual.ContinualCounter(1.0, horizon=8)
    counter.push(3)
    again = continual.ContinualCounter.from_state(counter.state(), 1.0, 8)
    return again.release([1, 2]), again.variance(3)


def written(folder, module):
    kind = {"image_shape": (1, 8, 8), "classes": ("a", "b"), "num_private": 90, "fixed_seed": False}
    return release.write_model(folder, module, [STEP], **kind)


def saved(folder, module):
    models.save_generator(folder / "g.safetensors", models.build_generator(PLAIN, (1, 8, 8), 0))
    return models.load_generator(folder / "g.safetensors").sample(3, seed=1)


def blurred(folder):
    publish.make_obfuscator("blur", (1, 8, 8)).save(folder)
    return publish.load_obfuscator(folder).transform(FACES)


def calls(folder):
    """One call of everything on docs/reference/api.md that computes, by its name there; each takes no argument."""
    noise, m = Noise.fixed(1), privacy
    folder.mkdir()
    return {
        "idpgan.fit": lambda: idpgan.fit(PIXELS, LABELS, epsilon=2.0, method="gaussian", progress=False).sample(
            2, seed=1
        ),
        "idpgan.commands.fit.FittedGenerator": lambda: MADE.fitted.sample(4, labels=[0, 1, 0, 1], seed=1),
        "idpgan.fit_classifier": lambda: idpgan.fit_classifier(PIXELS, LABELS, epsilon=2.0, progress=False),
        "idpgan.commands.fit.FittedClassifier": lambda: MADE.classifier.probabilities(PIXELS),
        "idpgan.publish_images": lambda: (
            idpgan.publish_images(PIXELS[:2], epsilon=4.0, unit="pixel", method="lap", progress=False).images
        ),
        "idpgan.load_generator": lambda: idpgan.load_generator(DIGITS).sample(2, seed=1),
        "idpgan.load_classifier": lambda: idpgan.load_classifier(MADE.classifier.release).predict(BASE.images),
        "idpgan.SyntheticDataset": lambda: idpgan.SyntheticDataset(DIGITS, num=4, seed=1)[3],
        "idpgan.evaluate": lambda: str(
            idpgan.evaluate(
                (PIXELS[:20], LABELS[:20]),
                (PIXELS[:20], LABELS[:20]),
                only="utility",
                seeds=1,
                classifiers=["logistic"],
                progress=False,
            )
        ),
        "idpgan.attack": lambda: idpgan.attack(PIXELS[:30], PIXELS[:30], PIXELS[30:], attacks=["nearest-sample"]).best,
        "idpgan.privacy.calibrate": lambda: m.calibrate(lambda s: [Event("gaussian", *OURS, s)], 1.0, 1e-5),
        "idpgan.privacy.compose_epsilon": lambda: m.compose_epsilon([STEP], 1e-5),
        "idpgan.privacy.DiscreteLaplace": lambda: m.DiscreteLaplace(1, 5, *OURS)(WHOLE, noise),
        "idpgan.privacy.Laplace": lambda: m.Laplace(1.0, 5.0, *OURS)(NUMBERS, noise),
        "idpgan.privacy.RoundedGaussian": lambda: m.RoundedGaussian(1.0, 5, *OURS)(WHOLE, noise),
        "idpgan.privacy.Gaussian": lambda: m.Gaussian(1.0, 5.0, *OURS)(NUMBERS, noise),
        "idpgan.privacy.RandomizedResponse": lambda: m.RandomizedResponse(9, 1.0)(WHOLE, noise),
        "idpgan.privacy.Exponential": lambda: m.Exponential(1.0, 1.0, *OURS)(NUMBERS, noise),
        "idpgan.privacy.NoisyMax": lambda: m.NoisyMax(1.0, 1.0, *OURS)(NUMBERS, noise),
        "idpgan.privacy.SparseVector": lambda: m.SparseVector(1, 5, 5, 2, *OURS)(WHOLE, noise),
        "idpgan.privacy.Grid": lambda: m.Grid.fine(1.0, 9, norm=2).round(NUMBERS),
        "idpgan.privacy.Noise": lambda: (
            noise.laplace((3,)),
            noise.normal((3,)),
            noise.uniform((3,)),
            noise.integers(9, (3,)),
        ),
        "idpgan.privacy.MatrixMechanism": lambda: m.MatrixMechanism(MATRICES[0].T, MATRICES[0], 1.0, 1.0, *OURS)(
            MATRICES[1].T, noise
        ),
        "idpgan.privacy.DPSGDPlan": lambda: clipped(m.DPSGDPlan(0.1, 1.0, 10, 1.0)).sums,
        "idpgan.privacy.from_opacus": lambda: m.from_opacus([(1.5, 0.04, 225)], unit="image", num_private=1000),
        "idpgan.privacy.Ledger": lambda: m.Ledger(*OURS).charge(STEP),
        "idpgan.publish.release": lambda: publish.release(MATRICES.abs(), "lap", epsilon=1.0).images,
        "idpgan.publish.Release": lambda: MADE.images.to_uint8(),
        "idpgan.publish.make_obfuscator": lambda: publish.make_obfuscator("blur", (1, 8, 8)).transform(FACES),
        "idpgan.publish.Obfuscator": lambda: publish.make_obfuscator("pixelate", (1, 8, 8), block=4).transform(FACES),
        "idpgan.publish.load_obfuscator": lambda: blurred(folder),
        "idpgan.publish.batched_svd": lambda: publish.batched_svd(MATRICES),
        "idpgan.continual.ContinualCounter": counted,
        "idpgan.continual.fast_diagonal": lambda: continual.fast_diagonal(9),
        "idpgan.continual.isotonic": lambda: continual.isotonic([3, 1, 2]),
        "idpgan.attacks.evaluate_scores": lambda: attacks.evaluate_scores([3.0, 4.0, 5.0], [0.0, 1.0, 2.0]),
        "idpgan.attacks.select_attacks": lambda: attacks.select_attacks(["all"]),
        "idpgan.attacks.attack": lambda: idpgan.attack(PIXELS[:30], PIXELS[:30], PIXELS[30:], attacks=["copies"]).best,
        "idpgan.attacks.attack_model": lambda: attacks.attack_model(
            MADE.digits, ROWS[1], ROWS[2], attacks=["nearest-sample"], samples=50
        ),
        "idpgan.attacks.train_attacker": lambda: attacks.train_attacker([(PICTURES, BASE.labels)], epochs=1),
        "idpgan.audit.audit": lambda: audit.audit(
            lambda x: m.RoundedGaussian(1.0, 5, *OURS)(x, noise), WHOLE[:1], WHOLE[1:2], runs=200
        ),
        "idpgan.audit.audit_one_run": one_run,
        "idpgan.metrics.evaluate_images": lambda: metrics.evaluate_images(
            FEW, Split(NO, FEW, NO, FEW), ["utility"], num_seeds=1, classifiers=["logistic"]
        ),
        "idpgan.metrics.measure_utility": lambda: metrics.measure_utility(
            FEW, FEW, classifiers=["logistic"], seeds=[0]
        ),
        "idpgan.metrics.inception_score": lambda: metrics.inception_score(
            MATRICES.abs()[0] / MATRICES.abs()[0].sum(1, keepdim=True), 1
        ),
        "idpgan.models.build_generator": lambda: models.build_generator(SMALL, (1, 8, 8), 2).sample(2, seed=1),
        "idpgan.models.Generator": lambda: (MADE.digits.sample_images(5, seed=1), MADE.digits.sample_candidates(3, 1)),
        "idpgan.models.Ema": lambda: models.Ema(MADE.module).update(MADE.module),
        "idpgan.models.validate_private_critic": lambda: models.validate_private_critic(CRITIC),
        "idpgan.models.save_generator": lambda: saved(folder, MADE.module),
        "idpgan.models.load_generator": lambda: saved(folder, MADE.module),
        "idpgan.release.write_model": lambda: written(folder / "new", MADE.module),
        "idpgan.release.load_model": lambda: (
            written(folder / "new", MADE.module),
            release.load_model(folder / "new", MADE.module).predict(BASE.images),
        ),
    }


RECORDS = """Unit Relation Guarantee PrivacyReport Event Budget BudgetError check_delta default_delta Mechanism
    ModelConfig Critic seeded_init"""  # compute nothing, or are the caller's own networks and blocks


def names():
    page = Path(__file__).parents[1] / "docs" / "reference" / "api.md"
    return re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)


NAMES = [name for name in names() if name.rpartition(".")[2] not in RECORDS.split()]


@contextmanager
def odd_host():
    """Everything that a host may have set and that could reach our numbers."""
    before = torch.get_default_dtype(), np.geterr()
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, before[0])
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(np.errstate(all="raise"))
        stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        torch.set_default_dtype(torch.float64)
        stack.callback(torch.set_default_device, None)
        torch.set_default_device("meta")
        yield


def settings():
    """What the host has set, and its streams of random numbers."""
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "NumPy": (np.geterr(), np.get_printoptions()),
        "filters": list(warnings.filters),
        "threads": torch.get_num_threads(),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
        "TF32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "random": (random.getstate(), torch.random.get_rng_state().tolist()),
        "NumPy's": np.random.get_state()[1].tolist(),  # noqa: NPY002
    }


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(process_ledger, "_DONE", [])
    monkeypatch.setattr("idpgan.metrics.features.MIN_STEPS_PER_EPOCH", 1)  # a fit is called here, and not judged
    MADE()


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [each for part in value for each in tensors(part)] if isinstance(value, tuple | list) else []


@pytest.mark.parametrize("name", NAMES)
def test_a_public_call_neither_feels_nor_changes_what_the_host_has_set(name, tmp_path):
    call = calls(tmp_path / "odd")[name]
    with odd_host():
        before = settings()
        found = tensors(call())
        after = settings()
    assert after == before
    usual = tensors(calls(tmp_path / "usual")[name]()) if found else []
    assert [(t.dtype, t.shape, t.device) for t in found] == [(t.dtype, t.shape, t.device) for t in usual]


def test_warnings_as_errors_of_the_host_are_warnings_within(monkeypatch):
    monkeypatch.setattr(host, "WARNED", "default")

    @typed
    def careful():
        warnings.warn("of a library", UserWarning, stacklevel=1)
        return float(np.float64(1) / np.float64(0))

    with warnings.catch_warnings(record=True) as heard, np.errstate(all="raise"):
        warnings.simplefilter("error")
        assert careful() == float("inf")
        with pytest.raises(UserWarning, match="host"):
            warnings.warn("of the host", UserWarning, stacklevel=1)
        with pytest.raises(FloatingPointError):
            _ = np.float64(1) / np.float64(0)
    assert str(heard[0].message) == "of a library"


def test_half_a_picture_is_none_whatever_the_host_has_told_pillow(tmp_path, monkeypatch):
    whole = tmp_path / "whole.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)).save(whole)
    half = tmp_path / "half.jpg"
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
    assert decode(half, 1, (64, 64)).shape == (1, 64, 64)  # the host's own way, outside of a call
    with host.own_state():
        assert decode(whole, 1, (64, 64)).shape == (1, 64, 64)
        with pytest.raises(DataError):
            decode(half, 1, (64, 64))


IMPORTED = """
import importlib, logging, pkgutil, random, signal, sys, warnings
import numpy, scipy.stats, torch, PIL.Image, PIL.ImageFile, pydantic, typer, rich.console, safetensors.torch
def state():
    log, image = logging.getLogger(), PIL.Image
    return (list(warnings.filters), torch.get_default_dtype(), numpy.geterr(), log.level, list(log.handlers),
            [signal.getsignal(each) for each in (2, 15)], sys.excepthook, image.MAX_IMAGE_PIXELS,
            PIL.ImageFile.LOAD_TRUNCATED_IMAGES, torch.get_num_threads(), random.getstate(),
            torch.random.get_rng_state().tolist(), torch.backends.cudnn.benchmark, torch.is_grad_enabled())
before = state()
import idpgan
for each in pkgutil.walk_packages(idpgan.__path__, "idpgan."):
    if not each.name.endswith("__main__"):
        importlib.import_module(each.name)
after = state()
assert {each[2].__module__.split(".")[0] for each in after[0] if each not in before[0]} <= {"sympy"}, after[0]
assert after[1:] == before[1:]
"""


@pytest.mark.slow  # a second process imports torch
def test_importing_all_of_it_changes_nothing_of_the_host():
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
