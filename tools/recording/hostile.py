"""Cases of manipulation and failure: changed releases, edited ledgers, and killed runs that resume."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from box import Box, Case

DP_GAN = [
    *("digits-dp-gan", "training.steps=6", "training.tick_steps=2", "training.batch_size=26", "release.samples=10"),
    *("model.width=4", "model.latent_dim=4", "model.codes=5", "method.critic_steps_per_generator_step=2"),
    *("privacy.sample_rate=0.02", "privacy.noise_multiplier=2.0"),
]
AGGREGATE = [
    *("default", "training.steps=6", "training.tick_steps=2", "training.batch_size=20", "release.samples=10"),
    *("model.width=4", "model.latent_dim=4", "model.codes=5", "method.moments=6", "method.fourier=20"),
]


KILLS = (("config.toml", 1), ("ledger.json", 2), ("ledger.json", 4), ("state.pt", 2), ("privacy.json", 1))


def hostile_cases(tree: Path) -> Iterator[Case]:
    """Yield the cases."""
    for path in sorted((tree / "checkpoints").iterdir()):
        if not path.is_dir():
            continue
        yield Case(f"verify {path.name}", verify_changed(path, lambda folder: None))
        for name, change in CHANGES.items():
            yield Case(f"verify {path.name}, {name}", verify_changed(path, change))
    for name, arguments in (("dp-gan", DP_GAN), ("aggregate", AGGREGATE)):
        for file, number in KILLS:
            yield Case(f"killed {name} before {file} {number}", killed(arguments, file, number))
    yield Case("ledger", edited_ledgers)


# Releases ---------------------------------------------------------------------------------------------------------


def verify_changed(path: Path, change: Callable[[Path], None]) -> Callable[[Box], None]:
    """Verify a changed copy of a release, and try to sample from it."""

    def act(box: Box) -> None:
        shutil.copytree(path, box.folder / "release")
        change(box.folder / "release")
        box.run("verify", "release", "--json")
        box.run("sample", "release", "--num", "4", "--seed", "1", "--out", "drawn.npz", "--json")
        shutil.rmtree(box.folder / "release")

    return act


def edit_json(file: str, *keys: str, value: Any) -> Callable[[Path], None]:
    """Set one value of a JSON file, and update the file's hash in privacy.json."""

    def change(folder: Path) -> None:
        set_value(folder / file, keys, value)
        if file != "privacy.json":
            fit(folder, file)

    return change


def set_value(path: Path, keys: tuple[str, ...], value: Any) -> None:
    """Set one value in nested keys."""
    content = json.loads(path.read_text(encoding="utf-8"))
    inner = content
    for key in keys[:-1]:
        inner = inner[int(key) if isinstance(inner, list) else key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


def fit(folder: Path, file: str) -> None:
    """Write the hash of a changed file into privacy.json, as a forger would."""
    set_value(folder / "privacy.json", ("files", file), hashlib.sha256((folder / file).read_bytes()).hexdigest())


def flip(file: str, place: int, fitting: bool) -> Callable[[Path], None]:
    """Change one byte of a file."""

    def change(folder: Path) -> None:
        content = bytearray((folder / file).read_bytes())
        content[place] ^= 1
        (folder / file).write_bytes(content)
        if fitting:
            fit(folder, file)

    return change


def append(file: str, text: str, fitting: bool) -> Callable[[Path], None]:
    """Append to a text file."""

    def change(folder: Path) -> None:
        with (folder / file).open("a", encoding="utf-8") as opened:
            opened.write(text)
        if fitting:
            fit(folder, file)

    return change


CHANGES: dict[str, Callable[[Path], None]] = {
    "smaller epsilon": edit_json("privacy.json", "report", "proven", "epsilon", value=0.1),
    "other unit": edit_json("privacy.json", "report", "proven", "unit", value="person"),
    "other relation": edit_json("privacy.json", "relation", value="replace-one"),
    "more noise": edit_json("privacy.json", "events", "0", "noise_multiplier", value=100.0),
    "no event": edit_json("privacy.json", "events", value=[]),
    "unknown event": edit_json("privacy.json", "events", "0", "kind", value="magic"),
    "fewer images": edit_json("privacy.json", "num_private", value=10),
    "not private": edit_json("privacy.json", "report", "private", value=False),
    "other reason": edit_json("privacy.json", "report", "reason", value="believe me"),
    "other format": edit_json("privacy.json", "format", value="idpgan release 99"),
    "unknown key": edit_json("privacy.json", "surprise", value=1),
    "other config": edit_json("config.json", "settings", "privacy", "epsilon", value=0.5),
    "unknown config key": edit_json("config.json", "settings", "privacy", "surprise", value=0.5),
    "other model": edit_json("config.json", "generator", "model", "latent_dim", value=7),
    "infinite epsilon": edit_json("privacy.json", "report", "proven", "epsilon", value="inf"),
    "weights changed": flip("generator.safetensors", -9, fitting=False),
    "weights forged": flip("generator.safetensors", -9, fitting=True),
    "weights without a header": flip("generator.safetensors", 3, fitting=True),
    "card changed": append("README.md", "It is very private.\n", fitting=False),
    "card forged": append("README.md", "It is very private.\n", fitting=True),
    "config cut": append("config.json", "}", fitting=True),
    "privacy cut": append("privacy.json", "}", fitting=False),
    "picture changed": flip("samples.png", -30, fitting=True),
    "without picture": lambda folder: (folder / "samples.png").unlink(),
    "without card": lambda folder: (folder / "README.md").unlink(),
    "without privacy": lambda folder: (folder / "privacy.json").unlink(),
    "without weights": lambda folder: (folder / "generator.safetensors").unlink(),
    "with another file": lambda folder: (folder / "notes.txt").write_text("hello") and None,
    "with a pickle": lambda folder: (folder / "model.pkl").write_bytes(b"\x80\x04.") and None,
}


# Runs -------------------------------------------------------------------------------------------------------------


def killed(arguments: list[str], file: str, number: int) -> Callable[[Box], None]:
    """Kill a run before the n-th time that it puts a file in place, and resume it: the result is as if undisturbed."""

    def act(box: Box) -> None:
        box.killed(file, number, "train", *arguments, "--out", "run", "--json")
        if (box.folder / "run/config.toml").is_file():
            box.run("train", "--resume", "run", "--json")
        else:
            shutil.rmtree(box.folder / "run", ignore_errors=True)
            box.run("train", *arguments, "--out", "run", "--json")
        box.run("verify", "run", "--json")

    return act


def edited_ledgers(box: Box) -> None:
    """Kill a run, and resume copies whose ledger has one change each and a valid checksum."""
    box.killed("state.pt", 2, "train", *DP_GAN, "--out", "whole", "--json")
    for name, edit in EDITS.items():
        shutil.copytree(box.folder / "whole", box.folder / "run")
        path = box.folder / "run/state/ledger.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        edit(content)
        content.pop("checksum", None)
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        content["checksum"] = hashlib.sha256(text.encode()).hexdigest()
        path.write_text(json.dumps(content), encoding="utf-8")
        inner = Box(f"ledger {name}", box.folder, box.data, box.tree)
        inner.run("train", "--resume", "run", "--json")
        box.entries.update(inner.entries)
        shutil.rmtree(box.folder / "run")
    shutil.rmtree(box.folder / "whole")


EDITS: dict[str, Callable[[dict[str, Any]], None]] = {
    "untouched": lambda books: None,
    "of another owner": lambda books: books.update(owner="0" * 64),
    "with a larger target": lambda books: books["target"].update(epsilon=100.0),
    "with another delta": lambda books: books["target"].update(delta=1e-3),
    "of another unit": lambda books: books.update(unit="person"),
    "without events": lambda books: books.update(events=[]),
    "with fewer events": lambda books: books["events"][0].update(count=1),
    "with more events": lambda books: books["events"][0].update(count=1000),
    "with other noise": lambda books: books["events"][0].update(noise_multiplier=50.0),
    "with an unknown kind": lambda books: books["events"][0].update(kind="magic"),
    "of another format": lambda books: books.update(format="idpgan ledger 99"),
    "of other images": lambda books: books["fingerprint"].update({"private data": "0" * 64}),
    "of other code": lambda books: books["fingerprint"].update(code="0" * 64),
    "of another state": lambda books: books.update(state="0" * 64),
    "with another key": lambda books: books.update(surprise=1),
}
