"""The cells of `without_guarantee.py`: sets of faces, what is released of them, and what attackers read there."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cells import PACKAGE, code_digest, load_orl, read_or_measure
from papers.disguise import jigsaw, known_plaintext
from papers.splits import person_disjoint, picture_disjoint
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from idpgan.attacks.evaluate import evaluate_scores
from idpgan.attacks.inference import Attacker, train_attacker
from idpgan.attacks.membership import nearest_sample
from idpgan.data.faces import draw, draw_landmarks
from idpgan.data.image_files import decode
from idpgan.data.images import Images, make_grid, png_bytes, to_uint8, to_unit
from idpgan.data.load import Split
from idpgan.data.metadata import read_rows
from idpgan.methods import methods_of, row_of
from idpgan.publish import make_obfuscator, release
from idpgan.trainer import train_on
from idpgan.training.config import build_config

CACHE = Path("runs/without-guarantee")
LABELED = ("faces-wild", "drawn")  # sets with an expression
SETS = (*LABELED, "orl")
MOODS = ("neutral", "happiness")
SIDE, LEAST, MOST, PEOPLE, STRANGERS = 32, 8, 30, 160, 4500
EPOCHS = {"faces-wild": 30, "drawn": 30, "orl": 180}  # some 600 steps on each
MOOD_EPOCHS, SAMPLES, JUDGED, SHOWN, PAIRS = 15, 4000, 1000, 8, 64
FILTERS: dict[str, tuple[str, dict[str, Any]]] = {  # label of a row -> method and options
    "blur, sigma 2": ("blur", {"sigma": 2.0}),
    "blur, sigma 4": ("blur", {"sigma": 4.0}),
    "pixelate, 4 px": ("pixelate", {"block": 4}),
    "pixelate, 8 px": ("pixelate", {"block": 8}),
    "disguise, blocks only": ("disguise", {"transform": False, "noise": 0.0, "key": 1}),
    "disguise": ("disguise", {"key": 1}),
}
TRAINED: dict[str, dict[str, Any]] = {  # about five minutes of one core each; the defaults are five times as long
    "adversarial-encoder": {"width": 24, "batch_size": 32, "steps": 700, "learning_rate": 2e-3},
    "pprl-vgan": {"width": 24, "batch_size": 32, "steps": 1500, "learning_rate": 5e-4},
    "obfuscator": {"width": 24, "batch_size": 32, "steps": 1000},
    "censored": {"width": 24, "batch_size": 32, "steps": 1000},
    "gp-gan": {"width": 12, "batch_size": 16, "steps": 900, "learning_rate": 2e-3},
}
PUBLISHED = [(name, epsilon) for name in ("lap", "codebook") for epsilon in (1.0, 10.0)]
GENERATED: dict[str, dict[str, Any]] = {
    "gaussian": {"model": {"generator": "gaussian", "latent_dim": 160}, "method": {"name": "gaussian"}},
    "aggregate": {
        "model": {"generator": "refined", "latent_dim": 160, "width": 16},
        "method": {
            "name": "idp-gan-aggregate",
            "features": "photos",
            "moments": 24,
            "fourier": 100,
            "augment": 0.0,
            "metric": "none",
            "learning_rate": 3e-4,
            "teacher_share": 0.5,
            "candidates": 8,
        },
        "training": {"steps": 0, "batch_size": 128},
    },
    "evolution": {
        "model": {"generator": "population", "simulator": "faces", "codes": 200},
        "method": {"name": "evolution"},
    },
}
ROWS = ["clear", *FILTERS, *TRAINED, *(f"{n}, eps {e:g}" for n, e in PUBLISHED)]
ROWS += [f"{name}, eps {epsilon:g}" for name in GENERATED for epsilon in (1.0, 10.0)]
_UNLABELED, _UNMARKED = "no expression is known", "photos bring no landmarks"
ABSENT: dict[str, dict[str, str]] = {  # set -> first word of a row -> why it has no cell there
    "faces-wild": {"gp-gan": _UNMARKED},
    "drawn": {},
    "orl": dict.fromkeys(("adversarial-encoder", "pprl-vgan", *GENERATED), _UNLABELED) | {"gp-gan": _UNMARKED},
}


@dataclasses.dataclass(frozen=True)
class Part:
    """Images float32 (N, 1, SIDE, SIDE) in [0, 1], moods and people; landmarks (N, K, 2) in px where they are known."""

    images: Tensor
    moods: Tensor
    people: Tensor
    landmarks: Tensor | None = None

    def __getitem__(self, index: Tensor | slice) -> Part:
        marks = None if self.landmarks is None else self.landmarks[index]
        return Part(self.images[index], self.moods[index], self.people[index], marks)


@dataclasses.dataclass(frozen=True)
class Faces:
    """Known people: photos the attacker has, and photos he is asked about; strangers to learn from and to judge.

    A set without strangers (orl) knows no expression either: all its moods are 0 and mean nothing.
    """

    known: Part
    asked: Part
    learn: Part
    judge: Part

    @property
    def with_moods(self) -> bool:
        """Whether the expression can be learned and judged."""
        return len(self.judge.people) > 0

    @property
    def private(self) -> Part:
        """What the generators are made of."""
        known, learn = self.known, self.learn
        return Part(
            torch.cat([known.images, learn.images]),
            torch.cat([known.moods, learn.moods]),
            torch.cat([known.people, learn.people]),
        )


# The faces ------------------------------------------------------------------------------------------------------


@functools.cache
def faces(name: str, root: Path | None) -> Faces:
    """Return the parts of a set; the same at each call."""
    if name == "drawn":
        known, strangers = drawn_part(PEOPLE, 16, 11, 0), drawn_part(STRANGERS, 1, 12, PEOPLE)
    elif name == "orl":
        known = orl(root)
        strangers = known[:0]
    else:
        everybody = photos(root)
        places = torch.zeros(len(everybody.people), dtype=torch.int64)
        seen: dict[int, int] = {}
        for index, person in enumerate(everybody.people.tolist()):
            places[index] = seen.get(person, 0)
            seen[person] = seen.get(person, 0) + 1
        often = torch.tensor([seen[person] >= LEAST for person in everybody.people.tolist()])
        known, strangers = everybody[often & (places < MOST)], everybody[~often]
    learn, judge = person_disjoint(strangers.people, 2 / 3, seed=1) if len(strangers.people) else (slice(0), slice(0))
    first, second = picture_disjoint(known.people)
    return Faces(known[first], known[second], strangers[learn], strangers[judge])


def drawn_part(people: int, each: int, seed: int, first: int) -> Part:
    """Draw people, who are numbered from the first on."""
    images = draw(size=SIDE, channels=1, people=people, per_person=each, seed=seed)
    smiling = images.attributes[:, images.attribute_names.index("smiling")].long()
    landmarks = draw_landmarks(size=SIDE, people=people, per_person=each, seed=seed)
    return Part(to_unit(images.images), smiling, images.identities + first, landmarks)


def orl(root: Path | None) -> Part:
    """Return ORL's photos, each pixel the mean of those it covers."""
    images, people = load_orl(root)
    small = to_bytes(adaptive_avg_pool2d(images[:, None], (SIDE, SIDE)))
    return Part(small, torch.zeros_like(people), people)


def photos(root: Path | None) -> Part:
    if root is None:
        raise SystemExit("--data-root is needed: a folder of 32 x 32 grey photos with metadata.csv")
    rows = read_rows(root, ["expression"])
    chosen = [index for index, mood in enumerate(rows.values[0]) if mood in MOODS]
    pixels = torch.stack([torch.from_numpy(decode(rows.paths[index], 1, (SIDE, SIDE)).copy()) for index in chosen])
    moods = torch.tensor([MOODS.index(rows.values[0][index]) for index in chosen])
    people = torch.tensor([rows.people[index] for index in chosen])
    return Part(to_unit(pixels.reshape(-1, 1, SIDE, SIDE)), moods, people.unique(return_inverse=True)[1])


# Cells ----------------------------------------------------------------------------------------------------------


def absent(name: str, row: str) -> str | None:
    """Return why a set has no such row; None where it has one."""
    return ABSENT[name].get(row.split(",")[0])


def cell(row: str, arguments: argparse.Namespace, *, compute: bool = True) -> dict[str, Any] | None:
    """Return a cell, measured or read back; None where it is missing and is not to be computed."""
    name = row.split(",")[0]
    config = {"benchmark": "without-guarantee", "set": arguments.set, "row": row, "seed": arguments.seed}
    if name in TRAINED:
        config |= TRAINED[name]
    elif row in FILTERS:
        config |= FILTERS[row][1]
    files = [PACKAGE / "attacks" / "inference.py"]
    if name in methods_of("obfuscator"):
        shared = [PACKAGE / "publish" / "obfuscators" / "networks.py"] if name in TRAINED else []
        files += [*shared, PACKAGE / f"{row_of(name).code.partition(':')[0].replace('.', '/')}.py"]
    digest = code_digest(sorted(files))

    def measure(seed: int) -> dict[str, Any]:
        if not compute:
            raise LookupError(row)
        return measured(row, arguments)

    try:
        return read_or_measure(config, measure, digest, CACHE, any_code=arguments.any_code)
    except LookupError:
        return None


def measured(row: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return a cell's numbers."""
    started, wall = time.process_time(), time.perf_counter()
    data = faces(arguments.set, arguments.data_root)
    name = row.split(",")[0]
    if name in GENERATED:
        found = of_generator(name, float(row.split()[-1]), data, arguments, row)
    else:
        change, facts = changing(row, data, arguments)
        found = {**facts, **of_images(row, change, data, arguments)}
    return {**found, "cpu_seconds": round(time.process_time() - started), "seconds": round(time.perf_counter() - wall)}


def changing(row: str, data: Faces, arguments: argparse.Namespace) -> tuple[Callable[[Part], Tensor], dict[str, Any]]:
    """Return what releases images in a row, and facts about it."""
    name = row.split(",")[0]
    if row == "clear":
        return lambda part: part.images, {}
    if row in FILTERS:
        method = make_obfuscator(FILTERS[row][0], (1, SIDE, SIDE), **FILTERS[row][1])
        return lambda part: to_bytes(method.transform(part.images)), {}
    if name in TRAINED:
        people, numbers = data.known.people.unique(return_inverse=True)
        method = make_obfuscator(
            name, (1, SIDE, SIDE), num_utilities=2, num_identities=len(people),
            seed=arguments.seed, **TRAINED[name],
        )  # fmt: skip
        started = time.process_time()
        marks = data.known.landmarks if method.landmarked else None
        method.fit(data.known.images, data.known.moods, numbers, landmarks=marks, device=arguments.device)
        facts = {
            "parameters": method.num_parameters,
            "steps": method.steps,
            "training_parameters": method.training_parameters,
            "fit_cpu_seconds": round(time.process_time() - started),
        }

        def changed(part: Part) -> Tensor:
            marks = part.landmarks if method.landmarked else None
            return to_bytes(method.transform(part.images, landmarks=marks))

        return changed, facts
    epsilon = float(row.split()[-1])

    def published(part: Part) -> Tensor:
        return to_unit(release(part.images[:, 0], name, epsilon=epsilon, unit="image").to_uint8())[:, None]

    return published, {"epsilon": epsilon}


def to_bytes(images: Tensor) -> Tensor:
    """Round as a file does."""
    return (images * 255).round() / 255


@functools.cache
def clear_attacker(name: str, root: Path | None, about: str, seed: int) -> Attacker:
    """Return the static attacker: on people, or on the expression of strangers."""
    data = faces(name, root)
    if about == "people":
        return train_attacker([(data.known.images, data.known.people)], epochs=EPOCHS[name], seed=seed)
    return train_attacker([(data.learn.images, data.learn.moods)], epochs=MOOD_EPOCHS, seed=seed)


def of_images(row: str, change: Callable[[Part], Tensor], data: Faces, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what is leaked and kept by released images that belong to private ones."""
    mirror = not row.startswith("disguise")
    key = (arguments.set, arguments.data_root)
    asked = change(data.asked)
    static = clear_attacker(*key, "people", arguments.seed)
    adaptive = static
    if row != "clear":
        shown = change(data.known)
        known = [(data.known.images, data.known.people), (shown, data.known.people)]
        adaptive = train_attacker(known, epochs=EPOCHS[arguments.set], mirror=mirror, seed=arguments.seed)
    found = {
        "static": static.infer(asked, data.asked.people, people=data.asked.people).to_json(),
        "adaptive": adaptive.infer(asked, data.asked.people, people=data.asked.people).to_json(),
        "changed": float((asked - data.asked.images).abs().mean()),
    }
    if data.with_moods:
        judged = change(data.judge)
        guess = reader = clear_attacker(*key, "moods", arguments.seed)
        if row != "clear":
            learned = [(change(data.learn), data.learn.moods)]
            reader = train_attacker(learned, epochs=MOOD_EPOCHS, mirror=mirror, seed=arguments.seed)
        found |= {
            "mood": reader.infer(judged, data.judge.moods, people=data.judge.people).to_json(),
            "mood_static": guess.infer(judged, data.judge.moods, people=data.judge.people).to_json(),
        }
    if row.startswith("disguise"):
        found |= reconstructed(change, data, static)
    show(arguments, row, asked)
    return found


def reconstructed(change: Callable[[Part], Tensor], data: Faces, static: Attacker) -> dict[str, Any]:
    """Return errors of reconstruction, and what the static attacker makes of reconstructed images."""
    block, known = 4, data.known
    some = torch.randperm(len(known.people), generator=torch.Generator().manual_seed(1))[:PAIRS]
    hidden = change(data.asked)
    key = known_plaintext(known.images[some], change(known[some]), block)
    pieced = jigsaw(hidden, block, typical=(data.learn if data.with_moods else data.known).images.mean(0))
    truth = data.asked.images
    again = key.reconstruct(hidden)
    return {
        "pairs": PAIRS,
        "error_mean_image": float((truth - known.images.mean(0)).square().mean()),
        "error_known_plaintext": float((again - truth).square().mean()),
        "error_jigsaw": float((pieced.reconstruct(hidden) - truth).square().mean()),
        "after_known_plaintext": static.infer(again, data.asked.people, people=data.asked.people).to_json(),
    }


def of_generator(name: str, epsilon: float, data: Faces, arguments: argparse.Namespace, row: str) -> dict[str, Any]:
    """Return what a generator's images teach, and whether they tell private photos from strangers'."""
    private = data.private
    shown = (private.images * 255).round().to(torch.uint8)
    images = Images(shown, private.moods, MOODS, identities=private.people)
    few = images.select(torch.arange(0))
    test = Images((data.judge.images * 255).round().to(torch.uint8), data.judge.moods, MOODS)
    section = {
        "name": "folder", "num_images": len(images), "num_people": len(private.people.unique()), "image_size": SIDE,
        "channels": 1, "label": ["expression"], "classes": list(MOODS), "holdout_share": 0.0,
    }  # fmt: skip
    config = build_config(
        {**GENERATED[name], "data": section, "privacy": {"epsilon": epsilon, "delta": 1e-5}}, "the benchmark"
    )
    generator = train_on(config, Split(few, images, few, test)).product
    drawn = to_uint8(generator.sample(SAMPLES, seed=arguments.seed))
    moods = generator.sample_labels(SAMPLES)
    reader = train_attacker([(to_unit(drawn), moods)], epochs=MOOD_EPOCHS, seed=arguments.seed)
    order = torch.randperm(len(shown), generator=torch.Generator().manual_seed(2))[:JUDGED]
    members, others = shown[order], test.images[:JUDGED]
    scores = [nearest_sample(part, drawn) for part in (members, others)]
    result = evaluate_scores(*scores)
    show(arguments, row, to_unit(drawn))
    return {
        "epsilon": epsilon,
        "private": len(shown),
        "mood": reader.infer(data.judge.images, data.judge.moods, people=data.judge.people).to_json(),
        "membership": result.to_json(),
    }


def show(arguments: argparse.Namespace, row: str, images: Tensor) -> None:
    """Keep some examples; of drawn faces alone."""
    if arguments.set == "drawn":
        pixels = (images[:SHOWN] * 255).round().to(torch.uint8)
        (CACHE / f"drawn {row}.png").write_bytes(png_bytes(make_grid(pixels, SHOWN)))
