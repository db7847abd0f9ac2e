"""What people do in the place of a guarantee beside the private methods: utility kept against identity leaked.

python benchmarks/without_guarantee.py measure --set faces-wild|drawn [--data-root DIR] [--only NAME ...]
                                    prints a JSON line a cell; a cell that runs/without-guarantee holds is read back
python benchmarks/without_guarantee.py table [--any-code] [--out docs/without-a-guarantee.md]
                                    prints the Markdown tables of what has been measured, or puts them into the page
python benchmarks/without_guarantee.py plot --out docs/without-a-guarantee.png [--any-code]
python benchmarks/without_guarantee.py sheet --out docs/without-a-guarantee-drawn.png       examples, drawn faces only

faces-wild needs a folder of 32 x 32 grey photos with metadata.csv (file_name, expression, person). Known people are
those with at least 8 photos, at most 30 of each are taken; every other photo of theirs is the attacker's and what the
trained obfuscators are fitted on, the rest is asked about. Everybody else is a stranger: two thirds of them teach a
network the expression (smiling or neutral) on released images, the others test it. Attackers and judges are one network
(`idpgan.attacks.train_attacker`); the static one knows clear images, the adaptive one released ones as well. A
generator releases nobody's image, so that there is nobody to re-identify: for it stands the area under the ROC curve by
which the nearest of its images tells private photos from strangers' (1/2 is chance; releasing the private photos
themselves is 1).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cells import PACKAGE, code_digest, read_or_measure
from torch import Tensor

from idpgan.attacks import (
    evaluate_scores,
    jigsaw,
    known_plaintext,
    nearest_sample,
    person_disjoint,
    picture_disjoint,
    train_attacker,
)
from idpgan.attacks.inference import Attacker
from idpgan.data.faces import draw
from idpgan.data.folder import decode
from idpgan.data.images import Images, to_uint8, to_unit
from idpgan.data.load import Split
from idpgan.data.metadata import read_rows
from idpgan.data.picture import make_grid, png_bytes
from idpgan.jobs.methods import REGISTRY
from idpgan.jobs.train import train_on
from idpgan.obfuscate import METHODS, make_obfuscator
from idpgan.publish import release

CACHE = Path("runs/without-guarantee")
SETS = ("faces-wild", "drawn")
BEGIN, END = "<!-- tables: written by benchmarks/without_guarantee.py -->", "<!-- end of tables -->"
MOODS = ("neutral", "happiness")
SIDE, LEAST, MOST, PEOPLE, STRANGERS = 32, 8, 30, 160, 4500
EPOCHS, MOOD_EPOCHS, SAMPLES, JUDGED, SHOWN, PAIRS = 30, 15, 4000, 1000, 8, 64
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


@dataclasses.dataclass(frozen=True)
class Part:
    """Images float32 (N, 1, SIDE, SIDE) in [0, 1], moods and people."""

    images: Tensor
    moods: Tensor
    people: Tensor

    def __getitem__(self, index: Tensor) -> Part:
        return Part(self.images[index], self.moods[index], self.people[index])


@dataclasses.dataclass(frozen=True)
class Faces:
    """Known people: photos the attacker has, and photos he is asked about; strangers to learn from and to judge."""

    known: Part
    asked: Part
    learn: Part
    judge: Part

    @property
    def private(self) -> Part:
        """What the generators are made of."""
        known, learn = self.known, self.learn
        return Part(
            torch.cat([known.images, learn.images]),
            torch.cat([known.moods, learn.moods]),
            torch.cat([known.people, learn.people]),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("measure", "table", "plot", "sheet"))
    parser.add_argument("--set", choices=SETS, default="drawn")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--only", nargs="*", help="first words of rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--any-code", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    CACHE.mkdir(parents=True, exist_ok=True)
    if arguments.do == "measure":
        for row in ROWS:
            if not arguments.only or row.startswith(tuple(arguments.only)):
                cell(row, arguments)
    elif arguments.do == "table":
        text = "\n\n".join([*(table(name, arguments) for name in SETS), *details(arguments)])
        if arguments.out is None:
            print(text)
        else:
            head, rest = arguments.out.read_text(encoding="utf-8").split(BEGIN)
            arguments.out.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    elif arguments.do == "plot":
        plot(arguments)
    else:
        sheet(arguments)


# The faces ------------------------------------------------------------------------------------------------------


@functools.cache
def faces(name: str, root: Path | None) -> Faces:
    """Return the parts of a set; the same at each call."""
    if name == "drawn":
        crowd, alone = (
            draw(size=SIDE, channels=1, people=people, per_person=each, seed=seed)
            for people, each, seed in ((PEOPLE, 16, 11), (STRANGERS, 1, 12))
        )
        known, strangers = drawn_part(crowd, 0), drawn_part(alone, PEOPLE)
    else:
        everybody = photos(root)
        places = torch.zeros(len(everybody.people), dtype=torch.int64)
        seen: dict[int, int] = {}
        for index, person in enumerate(everybody.people.tolist()):
            places[index] = seen.get(person, 0)
            seen[person] = seen.get(person, 0) + 1
        often = torch.tensor([seen[person] >= LEAST for person in everybody.people.tolist()])
        known, strangers = everybody[often & (places < MOST)], everybody[~often]
    learn, judge = person_disjoint(strangers.people, 2 / 3, seed=1)
    first, second = picture_disjoint(known.people)
    return Faces(known[first], known[second], strangers[learn], strangers[judge])


def drawn_part(images: Images, offset: int) -> Part:
    smiling = images.attributes[:, images.attribute_names.index("smiling")].long()
    return Part(to_unit(images.images), smiling, images.identities + offset)


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


def cell(row: str, arguments: argparse.Namespace, *, compute: bool = True) -> dict[str, Any] | None:
    """Return a cell, measured or read back; None where it is missing and is not to be computed."""
    name = row.split(",")[0]
    config = {"benchmark": "without-guarantee", "set": arguments.set, "row": row, "seed": arguments.seed}
    if name in TRAINED:
        config |= TRAINED[name]
    elif row in FILTERS:
        config |= FILTERS[row][1]
    files = [PACKAGE / "attacks" / "inference.py"]
    if name in METHODS:
        shared = [PACKAGE / "obfuscate" / "networks.py"] if name in TRAINED else []
        files += [*shared, PACKAGE / "obfuscate" / name.replace("-", "_") / "method.py"]
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


def changing(row: str, data: Faces, arguments: argparse.Namespace) -> tuple[Callable[[Tensor], Tensor], dict[str, Any]]:
    """Return what releases images in a row, and facts about it."""
    name = row.split(",")[0]
    if row == "clear":
        return lambda images: images, {}
    if row in FILTERS:
        method = make_obfuscator(FILTERS[row][0], (1, SIDE, SIDE), **FILTERS[row][1])
        return lambda images: to_bytes(method.transform(images)), {}
    if name in TRAINED:
        people, numbers = data.known.people.unique(return_inverse=True)
        method = make_obfuscator(
            name, (1, SIDE, SIDE), num_utilities=2, num_identities=len(people),
            seed=arguments.seed, **TRAINED[name],
        )  # fmt: skip
        started = time.process_time()
        method.fit(data.known.images, data.known.moods, numbers, device=arguments.device)
        facts = {
            "parameters": method.num_parameters,
            "steps": method.steps,
            "training_parameters": method.training_parameters,
            "fit_cpu_seconds": round(time.process_time() - started),
        }
        return lambda images: to_bytes(method.transform(images)), facts
    epsilon = float(row.split()[-1])

    def published(images: Tensor) -> Tensor:
        return to_unit(release(images[:, 0], name, epsilon=epsilon, unit="image").to_uint8())[:, None]

    return published, {"epsilon": epsilon}


def to_bytes(images: Tensor) -> Tensor:
    """Round as a file does."""
    return (images * 255).round() / 255


@functools.cache
def clear_attacker(name: str, root: Path | None, about: str, seed: int) -> Attacker:
    """Return the static attacker: on people, or on the expression of strangers."""
    data = faces(name, root)
    if about == "people":
        return train_attacker([(data.known.images, data.known.people)], epochs=EPOCHS, seed=seed)
    return train_attacker([(data.learn.images, data.learn.moods)], epochs=MOOD_EPOCHS, seed=seed)


def of_images(
    row: str, change: Callable[[Tensor], Tensor], data: Faces, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return what is leaked and kept by released images that belong to private ones."""
    mirror = not row.startswith("disguise")
    key = (arguments.set, arguments.data_root)
    asked, judged = change(data.asked.images), change(data.judge.images)
    static = clear_attacker(*key, "people", arguments.seed)
    guess = clear_attacker(*key, "moods", arguments.seed)
    if row == "clear":
        adaptive, reader = static, guess
    else:
        shown = change(data.known.images)
        known = [(data.known.images, data.known.people), (shown, data.known.people)]
        adaptive = train_attacker(known, epochs=EPOCHS, mirror=mirror, seed=arguments.seed)
        learned = [(change(data.learn.images), data.learn.moods)]
        reader = train_attacker(learned, epochs=MOOD_EPOCHS, mirror=mirror, seed=arguments.seed)
    found = {
        "static": static.infer(asked, data.asked.people, people=data.asked.people).to_json(),
        "adaptive": adaptive.infer(asked, data.asked.people, people=data.asked.people).to_json(),
        "mood": reader.infer(judged, data.judge.moods, people=data.judge.people).to_json(),
        "mood_static": guess.infer(judged, data.judge.moods, people=data.judge.people).to_json(),
        "changed": float((asked - data.asked.images).abs().mean()),
    }
    if row.startswith("disguise"):
        found |= reconstructed(change, data, static)
    show(arguments, row, asked)
    return found


def reconstructed(change: Callable[[Tensor], Tensor], data: Faces, static: Attacker) -> dict[str, Any]:
    """Return errors of reconstruction, and what the static attacker makes of reconstructed images."""
    block, known = 4, data.known.images
    some = torch.randperm(len(known), generator=torch.Generator().manual_seed(1))[:PAIRS]
    hidden = change(data.asked.images)
    key = known_plaintext(known[some], change(known[some]), block)
    pieced = jigsaw(hidden, block, typical=data.learn.images.mean(0))
    truth = data.asked.images
    again = key.reconstruct(hidden)
    return {
        "pairs": PAIRS,
        "error_mean_image": float((truth - known.mean(0)).square().mean()),
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
    config = REGISTRY.build_config(
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


# What is shown --------------------------------------------------------------------------------------------------


def read(name: str, arguments: argparse.Namespace) -> dict[str, dict[str, Any] | None]:
    """Return all rows of a set; None for one that is missing."""
    given = argparse.Namespace(**{**vars(arguments), "set": name})
    with contextlib.redirect_stdout(io.StringIO()):
        return {row: cell(row, given, compute=False) for row in ROWS}


def share(value: dict[str, Any] | None) -> str:
    return "-" if value is None else f"{100 * value['accuracy']:.1f} %"


def interval(value: dict[str, Any] | None) -> str:
    return "-" if value is None else f"{share(value)} ({100 * value['low']:.1f} to {100 * value['high']:.1f})"


def auc_of(row: dict[str, Any]) -> float | None:
    return row["membership"]["auc"] if "membership" in row else None


def table(name: str, arguments: argparse.Namespace) -> str:
    """Return the Markdown table of a set."""
    rows = read(name, arguments)
    lines = [
        f"**{name}**\n",
        "| | expression kept | the same by a clear-trained network | re-identified, static | re-identified, adaptive | "
        "private told from strangers (AUC) | processor seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, row in rows.items():
        if row is None:
            lines.append(f"| {label} | missing | | | | | |")
            continue
        auc = auc_of(row)
        lines.append(
            f"| {label} | {interval(row['mood'])} | {share(row.get('mood_static'))} | {share(row.get('static'))} | "
            f"{interval(row.get('adaptive'))} | {'-' if auc is None else f'{auc:.3f}'} | {row['cpu_seconds']} |"
        )
    clear = rows["clear"]
    if clear is not None:
        mood, person = (100 * clear[what]["chance"] for what in ("mood", "adaptive"))
        lines.append(f"| *chance* | {mood:.1f} % | | | {person:.1f} % | 0.5 | |")
    return "\n".join(lines)


def details(arguments: argparse.Namespace) -> list[str]:
    """Return the tables of the trained networks and of reconstruction."""
    trained = [
        "| | trained parameters | of them of the transformation itself | steps | fitted in, processor seconds | "
        "mean change of a pixel |",
        "|---|---|---|---|---|---|",
    ]
    undone = [
        "| | error of the mean face | of `jigsaw`, no pair known | of `known_plaintext`, 64 pairs | re-identified "
        "before | and after reconstruction, static attacker |",
        "|---|---|---|---|---|---|",
    ]
    for name in SETS:
        for label, row in read(name, arguments).items():
            if row is not None and label in TRAINED:
                trained.append(
                    f"| {label}, {name} | {row['training_parameters']:,} | {row['parameters']:,} | {row['steps']:,} | "
                    f"{row['fit_cpu_seconds']} | {row['changed']:.3f} |"
                )
            if row is not None and "error_jigsaw" in row:
                undone.append(
                    f"| {label}, {name} | {row['error_mean_image']:.4f} | {row['error_jigsaw']:.4f} | "
                    f"{row['error_known_plaintext']:.5f} | {share(row['static'])} | "
                    f"{share(row['after_known_plaintext'])} |"
                )
    rows = [row for name in SETS for row in read(name, arguments).values()]
    minutes = sum(row["cpu_seconds"] for row in rows if row is not None) / 60
    missing = sum(row is None for row in rows)
    said = f"All cells together took {minutes:.0f} minutes of one core" + (
        f"; {missing} are missing." if missing else "."
    )
    return ["\n".join(trained), "\n".join(undone), said]


def leaked(row: dict[str, Any], clear: dict[str, Any]) -> float:
    """Return the leak as a share of what clear images leak: 0 is chance."""
    auc = auc_of(row)
    if auc is not None:
        return 2 * auc - 1
    chance = clear["adaptive"]["chance"]
    return (row["adaptive"]["accuracy"] - chance) / (clear["adaptive"]["accuracy"] - chance)


def plot(arguments: argparse.Namespace) -> None:
    """Draw utility against leak, a panel a set."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(SETS), figsize=(13, 5.5), sharey=True)
    for axis, name in zip(axes, SETS, strict=True):
        rows = {label: row for label, row in read(name, arguments).items() if row is not None}
        axis.set_title(name)
        axis.set_xlabel("identity leaked, share of what clear images leak")
        if "clear" not in rows:
            continue
        axis.margins(x=0.12, y=0.12)
        axis.axhline(100 * rows["clear"]["mood"]["chance"], color="0.7", lw=1, ls=":")
        axis.axvline(0, color="0.7", lw=1, ls=":")
        for label, row in rows.items():
            private = label.split(",")[0] in (*GENERATED, "lap", "codebook")
            x, y = leaked(row, rows["clear"]), 100 * row["mood"]["accuracy"]
            axis.plot(x, y, "o" if private else "^", color="tab:blue" if private else "tab:red")
            axis.annotate(label, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=6, rotation=35)
    axes[0].set_ylabel("expression recognized, %")
    figure.suptitle("blue: a proven epsilon; red: none")
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=90)


def sheet(arguments: argparse.Namespace) -> None:
    """Write a row of examples for each method, of drawn faces."""
    from PIL import Image, ImageDraw

    strips = [(row, CACHE / f"drawn {row}.png") for row in ROWS if (CACHE / f"drawn {row}.png").is_file()]
    pictures = [(row, Image.open(path)) for row, path in strips]
    height = max(picture.height for _, picture in pictures)
    page = Image.new("L", (150 + pictures[0][1].width, height * len(pictures)), 255)
    pen = ImageDraw.Draw(page)
    for index, (row, picture) in enumerate(pictures):
        page.paste(picture, (150, index * height))
        pen.text((4, index * height + height // 2 - 5), row, fill=0)
    page.save(arguments.out, optimize=True)


if __name__ == "__main__":
    main()
