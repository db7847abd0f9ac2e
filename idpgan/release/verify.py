"""Check a release without its data: everything in it is derived again from the settings, and compared."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import io
import itertools
import math
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from idpgan.audit.cases import audited_again
from idpgan.data.load import DataShape
from idpgan.data.split import Sizes
from idpgan.errors import InputError
from idpgan.files import read_plain
from idpgan.models.checkpoint import (
    CONFIG,
    MOST_TEXT_BYTES,
    WEIGHTS,
    config_text,
    describe_generator,
    most_weight_bytes,
    put_weights,
)
from idpgan.models.generator import Generator
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, number_to_json
from idpgan.privacy.ledger import Ledger
from idpgan.privacy.noise import SOURCES
from idpgan.release.card import render_card
from idpgan.release.folder import CARD, FILES, PRIVACY, SAMPLES, card_facts, privacy_text, public_settings
from idpgan.release.received import Stated, read_privacy, release_config
from idpgan.training.config import RunConfig
from idpgan.training.samples import sample_grid

_TOLERANCE = 1e-6  # the same code on the same settings: only the rounding of another machine is let pass
_PIXEL_TOLERANCE = 2  # of 255, for the same reason
_MOST_PICTURE_BYTES = 1 << 28


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        recomputed: Epsilon of the released events, at the released delta; None where they are not those of the
            settings, since a forged list may be long to price.
        report: What the release says.
        problems: One sentence per thing that does not fit; empty = consistent.
        files: Content of the files that were checked, by name.
    """

    recomputed: float | None
    report: PrivacyReport
    problems: tuple[str, ...]
    files: dict[str, bytes] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def consistent(self) -> bool:
        """Whether everything fits together. Whether the run was as it says, nobody can tell from a release."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "consistent": self.consistent,
            "recomputed_epsilon": None if self.recomputed is None else number_to_json(self.recomputed),
            "report": self.report.to_json(),
            "problems": list(self.problems),
        }


def verify_release(path: Path) -> Verification:
    """Verify a release folder, or the ``release/`` of a run.

    The charges are derived from the settings, every number and sentence of report and card from the charges, and the
    sample grid from the weights; each is compared with what is there. That shows that a release is consistent, not that
    it is true: what was really charged, and how many images there were, is the word of whoever ran the training.

    Raises:
        InputError: If privacy.json is missing, damaged or of another format.
    """
    folder = path / "release" if (path / "release" / PRIVACY).exists() else path
    if not (folder / PRIVACY).exists():
        raise InputError(f"{folder} is no release: it holds no {PRIVACY}. Name a run or its release folder.")
    stated = read_privacy(folder / PRIVACY)
    recomputed = None
    files: dict[str, bytes] = {}
    problems = _strangers(folder)
    try:
        generator = _read_files(folder, files)
        config = release_config(files[CONFIG], stated.document["num_public"])
        problems += _check_hashes(files, stated)
        problems += _check_config(files[CONFIG], config, generator, stated)
        shape = _shape(generator, stated)
        wrong = _check_charges(config, shape, stated)
        problems += wrong
        if not wrong:
            recomputed = compose_epsilon(stated.events, stated.document["delta"])
            problems += _check_report(config, shape, stated, recomputed)
        problems += _check_samples(files[SAMPLES], config, generator)
        problems += _check_texts(files, config, generator, stated)
    except InputError as error:
        problems.append(str(error))
    return Verification(recomputed, stated.report, tuple(problems), files)


# Files ---------------------------------------------------------------------------------------------------------


def _strangers(folder: Path) -> list[str]:
    """Name what does not belong to a release, and what is no plain file."""
    problems = []
    for item in sorted(folder.iterdir()):
        name = ascii(item.name)[1:-1]
        if item.name not in (*FILES, PRIVACY):
            problems.append(f"{name} does not belong to the release: no epsilon covers it.")
        elif not stat.S_ISREG(item.lstat().st_mode):
            problems.append(f"{name} is a link, a folder, a pipe or a device, not a plain file.")
    return problems


def _read_files(folder: Path, files: dict[str, bytes]) -> Generator:
    """Fill `files`, and return the generator that they hold."""
    missing = [name for name in FILES if not (folder / name).exists()]
    if missing:
        raise InputError(f"{missing[0]} is missing.")
    files[CONFIG] = read_plain(folder / CONFIG, MOST_TEXT_BYTES)
    generator = describe_generator(files[CONFIG], folder / CONFIG)
    files[WEIGHTS] = read_plain(folder / WEIGHTS, most_weight_bytes(generator))
    files[CARD] = read_plain(folder / CARD, MOST_TEXT_BYTES)
    files[SAMPLES] = read_plain(folder / SAMPLES, _MOST_PICTURE_BYTES)
    put_weights(generator, files[WEIGHTS], folder / WEIGHTS)
    return generator.eval()


def _check_hashes(files: dict[str, bytes], stated: Stated) -> list[str]:
    hashes = stated.document["files"]
    problems = [f"{PRIVACY} speaks of other files than {', '.join(FILES)}."] if set(hashes) != set(FILES) else []
    changed = [name for name in FILES if hashes.get(name) != hashlib.sha256(files[name]).hexdigest()]
    return problems + [f"{name} was changed after the release." for name in changed]


# Numbers -------------------------------------------------------------------------------------------------------


def _check_config(content: bytes, config: RunConfig, generator: Generator, stated: Stated) -> list[str]:
    """Compare config.json with what would be written for the run that it describes."""
    problems, document = [], stated.document
    if content.decode() != config_text(generator, generator.classes, {"run": public_settings(config)}):
        problems.append(f"{CONFIG} is not what is written for these settings: it holds more, less or other values.")
    if generator.config != config.model:
        problems.append(f"{CONFIG}: the generator is not of the run's [model].")
    if config.model.conditional and generator.num_classes != document["num_classes"]:
        problems.append(f"the generator has {generator.num_classes} classes, not {document['num_classes']}.")
    if (config.data.public_share or config.data.public) and not document["num_public"]:
        problems.append("num_public = 0, but the settings have public images.")
    return problems


def _shape(generator: Generator, stated: Stated) -> DataShape:
    """Return what is public of the data, as far as charges and report depend on it."""
    document = stated.document
    classes = generator.classes or tuple(map(str, range(document["num_classes"])))
    return DataShape(Sizes(document["num_public"], document["num_private"], 0, 0), generator.image_shape, classes)


def _check_charges(config: RunConfig, shape: DataShape, stated: Stated) -> list[str]:
    """Derive delta and charges from the settings."""
    document, delta = stated.document, config.stated_delta(shape.num_private)
    if document["delta"] != delta:
        return [f"delta = {document['delta']:g}, but the settings state epsilon at {delta:g}."]
    if {(event.unit, event.relation) for event in stated.events} != {(stated.unit, stated.relation)}:
        return [f"the events are not all of unit {stated.unit}, {stated.relation}, or there is none."]
    most = math.prod(shape.image_shape) + len(shape.classes) + 1  # where every pixel has a price of its own
    if len(stated.events) > most:
        return [f"{len(stated.events):,} charges are listed, and no run of these settings has more than {most:,}."]
    return _check_events(stated.events, config.planned_events(shape), config, delta, math.prod(shape.image_shape))


def _check_events(
    listed: tuple[Event, ...], planned: tuple[Event, ...], config: RunConfig, delta: float, num_pixels: int
) -> list[str]:
    """Compare the charges with those that the settings plan."""
    if not config.plans_exactly:
        if compose_epsilon(listed, delta) > compose_epsilon(planned, delta) * (1 + _TOLERANCE):
            return ["the events cost more than the settings can."]
        if [event.kind for event in listed if event.pure_epsilon] != [e.kind for e in planned[1:] if e.pure_epsilon]:
            return ["the events are not those of the settings."]
        return _check_divided(listed, planned, num_pixels)
    if config.ledger_terms()[2] is None and _repeats(listed, planned):
        return []
    if len(listed) != len(planned) or not all(map(_alike, listed, planned)):
        wrong = next((pair for pair in zip(listed, planned, strict=False) if not _alike(*pair)), None)
        what = f": {_said(wrong[0])} stands for {_said(wrong[1])}" if wrong else f": {len(planned)} are planned"
        return [f"the events are not those of the settings{what}."]
    if any(event.count != plan.count for event, plan in zip(listed[:-1], planned[:-1], strict=True)):
        return ["an event that happens once or a planned number of times has another count."]
    return _check_steps(listed, planned[-1].count, config)


def _check_divided(listed: tuple[Event, ...], planned: tuple[Event, ...], num_pixels: int) -> list[str]:
    """Check charges that public images divide among the pixels: their number is known, and the least sum of them."""
    private = [event for event in listed if event.is_private]
    number = sum(event.count for event in private)
    expected = [(e, e.count * (num_pixels if e.kind == "exponential" else 1)) for e in planned if e.is_private]
    if number != sum(count for _, count in expected):
        return ["the events are not as many as the settings plan."]
    least = math.fsum(event.pure * event.count for event, _ in expected)
    if math.fsum(event.pure * event.count for event in private) < least * (1 - _TOLERANCE):
        return ["the events cost less than the settings can."]
    return []


def _repeats(listed: tuple[Event, ...], planned: tuple[Event, ...]) -> bool:
    """Whether a run without a target charged all that was planned and some of it again: it went on with fresh noise."""

    def charged(events: tuple[Event, ...], plan: Event) -> int:
        return sum(event.count for event in events if _alike(event, plan))

    return all(any(_alike(event, plan) for plan in planned) for event in listed) and all(
        charged(listed, plan) >= charged(planned, plan) for plan in planned
    )


def _check_steps(listed: tuple[Event, ...], planned: int, config: RunConfig) -> list[str]:
    """Check the count of the last event: fewer only where the target ended the run, more only within the target.

    More happen where a run was resumed and its repeated steps were charged again.
    """
    *others, last = listed
    if last.count == planned or (last.count > planned and not last.is_private):
        return []
    _, _, target = config.ledger_terms()
    if target is None:
        return [f"{last.count:,} x {last.kind} are listed, and {planned:,} are planned."]
    epsilon = target.epsilon * (1 + _TOLERANCE)
    if compose_epsilon(listed, target.delta) > epsilon:
        return [f"{last.count:,} x {last.kind} exceed the target epsilon = {target.epsilon:g}."]
    if last.count < planned and compose_epsilon([*others, last.repeated(last.count + 1)], target.delta) <= epsilon:
        return [f"{last.count:,} x {last.kind} are listed, {planned:,} are planned, and the target allows more."]
    return []


def _alike(event: Event, plan: Event) -> bool:
    """Whether two events are the same read but for their count."""
    first, second = event.to_json(), plan.to_json()
    for name in ("noise_multiplier", "pure_epsilon"):
        if name in first and name in second and math.isclose(first[name], second[name], rel_tol=_TOLERANCE):
            first[name] = second[name]
    return {**first, "count": 1} == {**second, "count": 1}


def _said(event: Event) -> str:
    numbers = (event.noise_multiplier, event.pure_epsilon, event.sample_rate)
    return " ".join([event.kind, *(f"{number:.6g}" for number in numbers if number is not None)])


def _check_report(config: RunConfig, shape: DataShape, stated: Stated, recomputed: float) -> list[str]:
    """Derive the report for every known source of noise; one of them must give what is stated."""
    said = stated.report
    ledger = Ledger(stated.unit, stated.relation)
    for event in stated.events:
        ledger.charge(event)
    proven = ledger.proven(stated.document["delta"])
    problems = _check_audited(said.audited, said.proven, stated.document["delta"])
    if not math.isclose(said.proven.epsilon, recomputed, rel_tol=_TOLERANCE):
        problems.append(f"the events cost epsilon = {recomputed:.6g}, the report says {said.proven.epsilon:.6g}.")
    proven = dataclasses.replace(proven, epsilon=said.proven.epsilon)
    best: list[str] | None = None
    for sources in itertools.product(SOURCES, repeat=2):
        expected = config.report(shape, stated.events, proven, sources)
        fields = [field.name for field in dataclasses.fields(expected) if field.name != "audited"]
        wrong = [name for name in fields if getattr(said, name) != getattr(expected, name)]
        if best is None or len(wrong) < len(best):
            best = wrong
    problems += [f"report: '{name}' is not what follows from the settings and the events." for name in best or []]
    return problems


def _check_audited(audited: Guarantee | None, proven: Guarantee, delta: float) -> list[str]:
    """Check what can be known of a measured number: it is finite, speaks of the same thing, and refutes nothing."""
    if audited is None:
        return []
    if not audited.finite or (audited.unit, audited.relation) != (proven.unit, proven.relation):
        return ["the audited value is infinite, or of another unit or relation than the proven one."]
    if audited.delta > delta:
        return [f"the audited value holds at delta = {audited.delta:g}, above {delta:g}."]
    if audited.delta == proven.delta and audited.epsilon > proven.epsilon:
        return [f"audited {audited.epsilon:.6g} exceeds proven {proven.epsilon:.6g}: the proof would be refuted."]
    problem = audited_again(audited)
    return [] if problem is None else [problem]


# Picture and texts ---------------------------------------------------------------------------------------------


def _check_samples(content: bytes, config: RunConfig, generator: Generator) -> list[str]:
    """Draw the sample grid again: a picture of anything else would be covered by no epsilon."""
    expected = sample_grid(generator, num=config.release.samples).permute(1, 2, 0).numpy()
    wrong = [f"{SAMPLES} is not the grid that the generator draws."]
    if not _only_pixels(content):
        return [f"{SAMPLES} is damaged, or holds more than pixels."]
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            if (picture.height, picture.width) != expected.shape[:2] or picture.mode not in ("L", "RGB"):
                return wrong
            pixels = np.asarray(picture).reshape(*expected.shape[:2], -1)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return [f"{SAMPLES} is damaged ({error})."]
    if pixels.shape != expected.shape or np.abs(pixels.astype(int) - expected).max() > _PIXEL_TOLERANCE:
        return wrong
    return []


def _only_pixels(content: bytes) -> bool:
    """Whether a PNG has no chunks but head, pixels and end, and nothing behind them."""
    kinds, offset = [], 8
    while offset + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, offset)
        kinds.append(kind)
        offset += 12 + length
    return offset == len(content) and set(kinds) <= {b"IHDR", b"IDAT", b"IEND"} and kinds[-1:] == [b"IEND"]


def _check_texts(files: dict[str, bytes], config: RunConfig, generator: Generator, stated: Stated) -> list[str]:
    """Write card and privacy.json again from what they state, and compare byte for byte."""
    problems, document = [], stated.document
    if files[CARD] != render_card(stated.report, card_facts(document, config, generator)).encode():
        ours, theirs = importlib.metadata.version("idpgan"), document["idpgan"]
        other = "" if ours == theirs else f" Its words may be those of version {theirs}: verify with that version."
        problems.append(f"{CARD} is not the card of these numbers and settings.{other}")
    without = {name: value for name, value in document.items() if name != "files"}
    again = {**without, "report": stated.report.to_json(), "events": [event.to_json() for event in stated.events]}
    if stated.content != privacy_text(again, document["files"]).encode():
        problems.append(f"{PRIVACY} is not written as a release writes it.")
    return problems
