"""Small runs of every method on the digits and on drawn faces: one table of them for all rooms of the tests.

`small_run(name)` of conftest.py is the folder of such a run when it is finished, trained once for all who ask for it.
"""

from __future__ import annotations

from typing import Any

from idpgan.training.config import RunConfig, build_config

STEPS = 6
_BUDGET = {"epsilon": 2.0, "delta": 1e-5}
_MODEL = {"width": 4, "latent_dim": 4}
_WARP = {**_MODEL, "generator": "warp", "codes": 5}
_DIFFUSION = {"generator": "diffusion", "latent_dim": 12, "width": 4}
_AGGREGATE = {"moments": 6, "fourier": 20, "metric_steps": [2]}
_SAMPLED = {**_BUDGET, "sample_rate": 0.02}
METHODS: dict[str, dict[str, Any]] = {
    "gaussian": {
        "model": {"generator": "gaussian", "latent_dim": 12},
        "privacy": _BUDGET,
        "training": {"steps": 0},
    },
    "evolution": {"model": {"generator": "population", "simulator": "fonts", "codes": 6}, "privacy": _BUDGET},
    "dssgd": {
        "method": {"width": 4, "participants": 3},
        "privacy": {"epsilon": 2.0, "accept_unsound": True},
    },
    "arden": {
        "method": {"width": 4},
        "privacy": {"epsilon": 9.0, "label_epsilon": 2.0, "accept_unsound": True},
    },
    "pgd": {"method": {"width": 4, "attack_steps": 2}, "training": {"batch_size": 8}},
    "wgan-gp": {
        "model": _MODEL,
        "method": {"critic_steps_per_generator_step": 2},
        "training": {"batch_size": 9},  # odd, so that two processes share it unevenly
    },
    "idp-gan-aggregate": {
        "model": _WARP,
        "method": _AGGREGATE,
        "privacy": _BUDGET,
        "training": {"batch_size": 50},  # five of each class, which two processes share
    },
    "idp-gan-published": {
        "model": _MODEL,
        "privacy": {"epsilon1": 0.5, "epsilon2": 0.5, "noise": "once", "delta": 1e-5, "accept_unsound": True},
        "training": {"batch_size": 8},
    },
    "dp-gan": {
        "model": _MODEL,
        "method": {"critic_steps_per_generator_step": 2},
        "privacy": _SAMPLED,
        "training": {"batch_size": 26},
    },
    "dp-gan-zhang": {
        "data": {"public_share": 0.05, "confirm_public": True},
        "model": _MODEL,
        "method": {"groups": 3, "public_steps": 2, "critic_steps_per_generator_step": 2},
        "privacy": {**_SAMPLED, "accept_unsound": True},
        "training": {"batch_size": 26},
    },
    "diffusion": {
        "model": _DIFFUSION,
        "method": {"draws": 1},
        "privacy": _BUDGET,
        "training": {"batch_size": 1_000_000},
    },
    "edm": {"model": _DIFFUSION, "training": {"batch_size": 8}},
    "dp-sgd": {"method": {"width": 4}, "privacy": _BUDGET, "training": {"batch_size": 60}},
    "scattering-linear": {"privacy": _BUDGET},
}

# The same methods with other parts. Names of drawing that releases no longer have need the fixture `any_drawing`.
_FACES = {
    "name": "faces",
    "num_images": 60,
    "num_people": 20,
    "image_size": [24, 20],
    "label": ["smiling"],
    "split_by": "identity",
    "holdout_share": 0.0,
    "channels": 1,
}
_TAUGHT = {"teacher_share": 0.5, "candidates": 3}


def _gaussian(**sections: Any) -> dict[str, Any]:
    table = {"method": {}, "model": {}, "training": {"steps": 0}} | sections
    return {
        **table,
        "model": {"generator": "gaussian", "latent_dim": 12} | table["model"],
        "method": {"name": "gaussian"} | table["method"],
        "privacy": {"epsilon": 3.0, "delta": 1e-5} | table.get("privacy", {}),
    }


def _photos(steps: int, share: float) -> dict[str, Any]:
    features = {"features": "photos", "moments": 4, "fourier": 5, "augment": 0.0, "metric_steps": [2]}
    teacher = {"teacher_share": share, "candidates": 2}
    return {
        "model": {"generator": "refined", "latent_dim": 12, "width": 4},
        "method": {"name": "idp-gan-aggregate", **features, **teacher},
        "privacy": {"epsilon": 8.0, "delta": 1e-5},
        "training": {"steps": steps},
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "gaussian, replace-one": _gaussian(privacy={"relation": "replace-one"}),
    "gaussian, taught": _gaussian(
        model={"latent_dim": 30}, method=_TAUGHT, privacy={"epsilon": 8.0}, release={"samples": 20}
    ),
    "gaussian, light": _gaussian(model={"drawing": {"light": True}}),
    "gaussian, light in place": _gaussian(model={"drawing": {"light": True, "shape": 2}}),
    "gaussian, symmetric": _gaussian(
        data=_FACES, model={"latent_dim": 10}, method={"symmetric": True}, privacy={"most_per_person": 2}
    ),
    "gaussian, symmetric in place": _gaussian(
        data=_FACES,
        model={"latent_dim": 10, "drawing": {"shape": 3}},
        method={"symmetric": True},
        privacy={"unit": "person", "most_per_person": 2},
    ),
    "aggregate, taught": {
        "model": {"generator": "warp", "latent_dim": 4, "codes": 4, "width": 4},
        "method": {"name": "idp-gan-aggregate", "moments": 6, "fourier": 20, "metric": "none", **_TAUGHT},
        "privacy": {"epsilon": 8.0, "delta": 1e-5},
        "training": {"steps": 4},
    },
    "photos": _photos(0, 0.0),
    "photos, taught": _photos(3, 0.5),
}


def config_of(name: str) -> RunConfig:
    """Return a run of `STEPS` steps, where its table says no other number, that is saved after every second one."""
    table = {section: dict(keys) for section, keys in (METHODS | VARIANTS)[name].items()}
    table["method"] = {"name": name} | table.get("method", {})
    if "model" in table:
        table["release"] = {"samples": 10} | table.get("release", {})
    training = {"batch_size": 20, "steps": STEPS} | table.get("training", {})
    table["training"] = {**training, "tick_steps": 2, "device": "cpu"}
    return build_config(table, "a small run")
