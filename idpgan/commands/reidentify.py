"""Re-identification: who is on the images that `idpgan publish` has made?

The attacker knows the first half of each person's pictures, and is asked about the other half as it was released. He
learns from the known pictures as they are ("clear"), or as they were released, as Zhang, Fu and Meng (2020) and Liu et
al. (2021) judge what they publish; and he may filter what was released first. Everything here is computed with the
originals: for the curator only.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan.attacks.subspace import subspace_scores
from idpgan.checks import whole
from idpgan.commands.folder import REPORT, read_images
from idpgan.commands.publish import FORMAT as PUBLISHED
from idpgan.config import nearest_hint
from idpgan.data.images import Images, to_unit
from idpgan.data.metadata import METADATA, read_rows
from idpgan.data.sources import face_folder
from idpgan.device import resolve_device
from idpgan.errors import DataError, InputError
from idpgan.files import PRIVATE_FILE, check_writable, parse_json, read_plain, write_bytes_atomic, write_private_json
from idpgan.kinds import KINDS
from idpgan.metrics.accuracy import share_interval
from idpgan.metrics.images import mean_filter, median_filter
from idpgan.metrics.recognition import halves, rank_curve, ranks_of, scores_by_network, scores_by_svm
from idpgan.progress import Progress, silent
from idpgan.release.images import ImagesArtifact
from idpgan.release.verify import open_release
from idpgan.report.page import MOST_BYTES
from idpgan.run import describe_environment

FORMAT = "idpgan re-identification 1"
OBFUSCATED = "idpgan obfuscation 1"  # of the reports that `idpgan obfuscate` wrote until 0.4.0
ATTACK, CURVES = "attack.json", "attack.png"
ATTACKS = ("subspace", "pca-svm", "network")
FILTERS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda images: images,
    "mean": mean_filter,
    "median": median_filter,
}
_COMPONENTS, _LEAST_SIDE, FEW = 50, 16, 5  # of the SVM; px of the network's images; guesses of "top 5"


@dataclass(frozen=True)
class Guesses:
    """How often an attack names the right person.

    Attributes:
        attack: One of `ATTACKS`.
        learned: "clear" or "released": the pictures that it learned from.
        filtered: One of `FILTERS`, which the released images went through; "originals" were attacked in their place.
        ranks: Rank curve: the share of images whose person is among its first k guesses, k = 1 .. people.
        interval: Of the first of these, people as independent, at the confidence asked for of all attacks together.
    """

    attack: str
    learned: str
    filtered: str
    ranks: tuple[float, ...]
    interval: tuple[float, float]

    @property
    def name(self) -> str:
        """As a sentence names it."""
        return f"{self.attack} that learned from {self.learned} pictures, filter {self.filtered}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        who = {"attack": self.attack, "learned_from": self.learned, "filter": self.filtered}
        return {**who, "top1": self.ranks[0], "interval": list(self.interval), "ranks": list(self.ranks)}


@dataclass(frozen=True)
class Reidentification:
    """What the attacks on a publication found.

    Attributes:
        guesses: Of all attacks on what was released.
        originals: Of the same attacks on the originals: what they can do at best.
        chance: Share of the most frequent person: what one constant guess gets.
        facts: JSON values that say what was compared with what.
        notes: What a reader has to know.
    """

    guesses: tuple[Guesses, ...]
    originals: tuple[Guesses, ...]
    chance: float
    facts: dict[str, Any]
    notes: tuple[str, ...]

    @cached_property
    def best(self) -> Guesses:
        """The attack that names most."""
        return max(self.guesses, key=lambda guesses: guesses.ranks[0])

    @property
    def leak(self) -> bool:
        """Whether an attack surely names more than a constant guess does."""
        return max(guesses.interval[0] for guesses in self.guesses) > self.chance

    def to_json(self) -> dict[str, Any]:
        """Return the content of attack.json."""
        head = {"format": FORMAT, "curator_only": True, **self.facts, "leak": self.leak, "chance": self.chance}
        attacks, originals = ([guess.to_json() for guess in part] for part in (self.guesses, self.originals))
        return {**head, "attacks": attacks, "originals": originals, "notes": list(self.notes)}

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table: attack, learned from, filter, first guess with its interval, first five."""
        table = list[tuple[str, ...]]()
        for guess in (*self.guesses, *self.originals):
            low, high = guess.interval
            first, few = guess.ranks[0], guess.ranks[min(FEW, len(guess.ranks)) - 1]
            table.append(
                (guess.attack, guess.learned, guess.filtered, f"{first:.1%} [{low:.1%}, {high:.1%}]", f"{few:.1%}")
            )
        return table

    def page(self) -> list[str]:
        """Return the verdict, and what stands below the table."""
        best = self.best
        named = f"the {best.name}, names {best.ranks[0]:.1%} (a constant guess: {self.chance:.1%})"
        if self.leak:
            verdict = f"RE-IDENTIFIED. Who has clear pictures of these people finds them in what was released: {named}."
        else:
            verdict = f"NOBODY RE-IDENTIFIED by these attacks, which is no evidence of privacy. The best: {named}."
        return [verdict, *(f"note: {note}" for note in self.notes)]

    def write(self, curator: Path) -> tuple[Path, Path]:
        """Write attack.json and attack.png, the rank curves; return where."""
        write_private_json(curator / ATTACK, self.to_json())
        write_bytes_atomic(curator / CURVES, self._curves(), mode=PRIVATE_FILE)
        return curator / ATTACK, curator / CURVES

    def _curves(self) -> bytes:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 5), layout="constrained")
        axes = figure.add_subplot()
        for guess in (*self.guesses, *self.originals):
            style = ":" if guess.filtered == "originals" else "-" if guess.learned == "clear" else "--"
            label = f"{guess.attack}, {guess.learned}, {guess.filtered}"
            axes.plot(range(1, len(guess.ranks) + 1), guess.ranks, style, label=label)
        axes.plot([1, len(self.best.ranks)], [self.chance, 1], color="grey", lw=0.8, label="guess")
        axes.set(xlabel="guesses", ylabel="share of images named", ylim=(0, 1), title="Rank curves")
        axes.legend(fontsize="x-small", loc="lower right")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=120)
        return buffer.getvalue()


def recognize_people(
    out: Path,
    originals: Path,
    attacks: Sequence[str] = ("all",),
    *,
    most: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
    device: str = "auto",
    progress: Progress = silent,
) -> Reidentification:
    """Attack what `publish` has written to ``out``; nothing is written.

    Args:
        out: The folder.
        originals: The folder that it was made from.
        attacks: Some of `ATTACKS`, or "all".
        most: Images that are taken, at most.
        confidence: Of all intervals together.
        seed: Of what attacks draw.

    Raises:
        InputError: If nothing says who is on the originals, or they are not those that ``out`` was made from.
    """
    whole(most, "most", 2)
    whole(seed, "seed")
    names = ATTACKS if tuple(attacks) == ("all",) else attacks
    for name in names:
        if name not in ATTACKS:
            raise InputError(f"There is no attack '{name}' on a publication. {nearest_hint(name, ATTACKS)}")
    curator, started = out / "curator", time.monotonic()
    check_writable(curator / ATTACK)
    where = resolve_device(device, "--device")
    released, names_of_files, method = _released(out)
    files = [originals / name for name in names_of_files]
    people = _people(originals, files)
    channels, height, width = released.shape[1:]
    clear_images = read_images(files, (channels, height, width), progress)
    chosen, notes = _chosen(clear_images, people, most)
    clear, shown, people = clear_images.images[chosen], released[chosen], people[chosen]
    known, queries = halves(people)
    jobs = list(_jobs(names, shown, notes))
    judged, truth = [], torch.searchsorted(people.unique(), people[queries])
    strict = 1 - (1 - confidence) / len(jobs)
    for number, (attack, learned, filtered) in enumerate(jobs):
        progress("attacks", number, len(jobs), f"{attack}, {filtered}")
        view = clear if filtered == "originals" else FILTERS[filtered](shown)
        learning = clear[known] if learned == "clear" else view[known]
        scores = _scores(attack, learning, people[known], view[queries], seed, str(where))
        ranks = ranks_of(scores, truth)
        interval = share_interval((ranks == 1).double().numpy(), truth.numpy(), strict)
        judged.append(Guesses(attack, learned, filtered, rank_curve(ranks, scores.shape[1]), interval))
    progress("attacks", len(jobs), len(jobs))
    facts = {
        "publication": str(out),
        "method": method,
        "originals": str(originals),
        "num_people": len(people.unique()),
        "num_known": len(known),
        "num_asked": len(queries),
        "confidence": confidence,
        "seconds": round(time.monotonic() - started, 1),
        "environment": describe_environment(where.type),
    }
    notes.append(
        "computed with the originals: for the curator only, covered by no epsilon. Intervals hold for all attacks "
        f"together with {confidence:.3g} confidence"
    )
    guesses, best = (
        tuple(guess for guess in judged if (guess.filtered == "originals") is of_originals)
        for of_originals in (False, True)
    )
    return Reidentification(guesses, best, int(truth.bincount().max()) / len(truth), facts, tuple(notes))


def _jobs(names: Sequence[str], images: Tensor, notes: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield what is tried: attack, what it learns from, filter; those that cannot be become notes."""
    if "network" in names and min(images.shape[-2:]) < _LEAST_SIDE:
        notes.append(f"the network takes images of at least {_LEAST_SIDE} px: left out")
        names = [name for name in names if name != "network"]
    if not names:
        raise InputError(f"no attack is left: {notes[-1]}. Name others, --attack {' or '.join(ATTACKS)}.")
    for name in names:
        for learned in ("clear",) if name == "subspace" else ("clear", "released"):
            yield from ((name, learned, filtered) for filtered in FILTERS)
        yield name, "clear", "originals"
    if "subspace" in names:
        notes.append(
            "subspaces are matched after rounding to 8 bits, which destroys most of the evidence: before it the attack "
            "is far stronger"
        )


def _scores(attack: str, known: Tensor, identities: Tensor, queries: Tensor, seed: int, device: str) -> Tensor:
    """Return how likely each person is on each query, (N, P), people ascending."""
    if attack == "pca-svm":
        components = min(_COMPONENTS, len(known), known[0].numel())
        return scores_by_svm(known, identities, queries, components, seed=seed)
    if attack == "network":
        return scores_by_network(known, identities, queries, seed=seed, device=device)
    scores = subspace_scores(*(to_unit(images).mean(1) for images in (queries, known)))
    people, person = identities.unique(return_inverse=True)
    best = torch.full((len(queries), len(people)), -1.0, dtype=scores.dtype)
    return best.scatter_reduce_(1, person.expand(len(queries), -1), scores, "amax")


def _released(out: Path) -> tuple[Tensor, list[str], str]:
    """Return the released images, uint8 (N, C, H, W), the originals' names below their folder, and the method."""
    report = out / "curator" / REPORT
    try:
        content = parse_json(read_plain(report, MOST_BYTES))
        if content["format"] not in (PUBLISHED, OBFUSCATED):
            raise ValueError(f"its format is {content['format']!r:.40}")
        names = [str(row["original"] if isinstance(row, dict) else row) for row in content["images"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{report} cannot be read ({error}). Restore it from a copy, or publish again.") from error
    opened = open_release(out / "release", KINDS)
    artifact = opened.artifact
    if not isinstance(artifact, ImagesArtifact) or artifact.num != len(names):
        raise InputError(f"{out} has no released image for each of the {len(names):,} originals. Publish again.")
    contents, without = opened.stated.unmarked(opened.files)
    wrong = [f"{name} lacks its mark." for name in without] or artifact.read(contents)
    if wrong or artifact.images is None:
        raise InputError(f"{out / 'release'} was changed: {wrong[0]} Copy it again.")
    return artifact.images, names, opened.settings.method


def _people(folder: Path, files: Sequence[Path]) -> Tensor:
    """Return who is on each file, int64 (N,): by metadata.csv, else by the layout of the folder."""
    persons: dict[Path, int] = {}
    if (folder / METADATA).is_file():
        rows = read_rows(folder, ())
        persons = {} if rows.people is None else dict(zip(rows.paths, rows.people, strict=True))
    else:
        with contextlib.suppress(DataError):  # no layout of people: the message below
            groups = face_folder.scan(folder).values()
            persons = {path: person for person, own in enumerate(groups) for path in own}
    unknown = [path for path in files if path not in persons]
    if missing := [path for path in unknown if not path.is_file()]:
        raise InputError(f"{missing[0]} is not there: the publication was made from another folder than {folder}.")
    if unknown:
        raise InputError(
            f"nothing says who is on {unknown[0]}. Put a {METADATA} with file_name and person into {folder}, or a "
            "folder for each person."
        )
    return torch.tensor([persons[path] for path in files])


def _chosen(originals: Images, people: Tensor, most: int) -> tuple[Tensor, list[str]]:
    """Return the positions of images that exist and of people with two of them, at most so many; and notes."""
    notes, there = list[str](), (~originals.is_null).nonzero().flatten()
    _, person, counts = people[there].unique(return_inverse=True, return_counts=True)
    kept = there[counts[person] >= 2]
    if left := len(people) - len(kept):
        notes.append(f"{left:,} images were left out: null records, or the only one of a person")
    if len(kept) > most:
        kept = kept[people[kept] < people[kept].sort().values[most]]  # the first people, whole
        notes.append(f"the {len(kept):,} images of the first people ({most:,} at most)")
    if len(people[kept].unique()) < 2:
        raise InputError("two people with two pictures each are needed: one to know and one to ask about.")
    return kept, notes
