"""What f(I) of PPRL-VGAN serves for: the expression is to be read from it, and not who it shows. A JSON line a seed.

python benchmarks/papers/representation.py [--data-root DIR] [--people 160] [--strangers 4500] [--steps 1500]

Chen, Konrad, Ishwar 2018: the first of two aims. DIR is a folder as of `without_guarantee.py --set faces-wild`; without
it faces are drawn. `pprl-vgan` is fitted on half of the pictures of known people. The same reader, a support vector
machine on scaled numbers, is then trained on pixels and on f(I), and asked about the other pictures of these people
(person, and expression as in the paper), and about the expression of strangers whom neither has seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))
from cells import spread
from without_guarantee_cells import SIDE, TRAINED, Faces, drawn_part, faces

from idpgan.publish import make_obfuscator
from idpgan.publish.obfuscators.pprl_vgan import PprlVgan
from papers.splits import person_disjoint, picture_disjoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, help="folder of 32 x 32 grey photos; default: drawn faces")
    parser.add_argument("--people", type=int, default=160, help="of drawn faces")
    parser.add_argument("--strangers", type=int, default=4500, help="of drawn faces")
    parser.add_argument("--steps", type=int, default=1500, help="of the obfuscator")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = drawn(arguments.people, arguments.strangers)
    if arguments.data_root is not None:
        data = faces("faces-wild", arguments.data_root)
    rows = []
    for seed in arguments.seeds:
        rows.append(row(data, arguments.steps, seed))
        print(json.dumps(rows[-1]), flush=True)
    numbers = [key for key in rows[0] if " from " in key]
    print(json.dumps({number: [round(value, 4) for value in spread(rows, number) or ()] for number in numbers}))


def drawn(people: int, strangers: int) -> Faces:
    """Return drawn faces: known people with 16 pictures, half of them to be asked about, and strangers."""
    known, others = drawn_part(people, 16, 11, 0), drawn_part(strangers, 1, 12, people)
    first, second = picture_disjoint(known.people)
    learn, judge = person_disjoint(others.people, 2 / 3, seed=1)
    return Faces(known[first], known[second], others[learn], others[judge])


def row(data: Faces, steps: int, seed: int) -> dict[str, Any]:
    """Fit the obfuscator, and read pixels and f(I) of the same pictures."""
    people, numbers = data.known.people.unique(return_inverse=True)
    options = {**TRAINED["pprl-vgan"], "steps": steps, "seed": seed}
    method = make_obfuscator("pprl-vgan", (1, SIDE, SIDE), num_utilities=2, num_identities=len(people), **options)
    method.fit(data.known.images, data.known.moods, numbers)
    views = {"pixels": lambda images: images.flatten(1), "f(I)": lambda images: codes(method, images)}
    found: dict[str, Any] = {"seed": seed, "steps": steps, "people": len(people), "asked": len(data.asked.people)}
    for name, seen in views.items():
        known, asked, learn, judge = (seen(part.images) for part in (data.known, data.asked, data.learn, data.judge))
        found |= {
            f"person from {name}": read(known, data.known.people, asked, data.asked.people),
            f"expression from {name}": read(known, data.known.moods, asked, data.asked.moods),
            f"expression of strangers from {name}": read(learn, data.learn.moods, judge, data.judge.moods),
        }
    chance = {"person": data.asked.people, "expression": data.asked.moods, "expression of strangers": data.judge.moods}
    return found | {f"majority {name}": majority(labels) for name, labels in chance.items()}


@torch.inference_mode()
def codes(method: PprlVgan, images: Tensor) -> Tensor:
    """Return the mean of f(I), (N, code), of images in [0, 1]."""
    return torch.cat([method.encode(part * 2 - 1)[0] for part in images.split(500)])


def read(known: Tensor, labels: Tensor, asked: Tensor, truth: Tensor) -> float:
    """Return the accuracy of a support vector machine that has learned from known pictures."""
    reader = make_pipeline(StandardScaler(), SVC(C=10.0))
    return float(reader.fit(known.numpy(), labels.numpy()).score(asked.numpy(), truth.numpy()))


def majority(labels: Tensor) -> float:
    return float(labels.unique(return_counts=True)[1].max() / len(labels))


if __name__ == "__main__":
    main()
