"""Cases that are refused, or that build in spite of strange values: one line and an exit code each."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from box import Box, Case

ONE_IN = 100
VALUES = (
    *("true", "false", "0", "1", "-1", "2", "7", "64", "1000", "2147483648", "9223372036854775807", "0.0", "0.5"),
    *("1.5", "-1.5", "1e-5", "1e-320", "1e308", "inf", "-inf", "nan", "x", "auto", "cuda", "image", "person", "none"),
    *("public", "digits", "faces", "mnist", "folder", "wgan-gp", "dp-gan", "/dev/null", "no/such/place", "[]", "[1]"),
    *('["x"]', "[[1],[2]]", "{}", "{a=1}", '""', '"100"', "2024-01-01", '"a\\nb"', "once", "gaussian", "laplace"),
)
KEYS = ("", "a b", "steps ", "Steps", "stesp", "__class__", "model_config", "é", "0")
CONFIGS = (
    *("digits-wgan-gp", "digits-idp-gan-published", "digits-gaussian", "digits-aggregate"),
    *("digits-evolution", "digits-dssgd", "digits-pgd", "digits-arden", "faces-gaussian", "mnist-wgan-gp"),
)
IMAGES = ["--method", "lap", "--epsilon", "1", "--unit", "image", "--out", "out"]
COMMANDS: tuple[list[str], ...] = (
    [],
    ["nothing"],
    ["train", "--nothing"],
    ["train", "nothing.toml"],
    ["train", "a.toml", "b.toml"],
    ["train", "--resume", "no-such-run"],
    ["train", "--resume", "x", "training.steps=3"],
    ["train", "--resume", "x", "--dry-run"],
    ["train", "--device", "tpu"],
    ["train", "--device", "cuda:99", "--dry-run"],
    ["train", "data.public_share=0.1"],
    ["train", "privacy.delta=0.5"],
    ["train", "privacy.epsilon=0"],
    ["train", "training.steps=0"],
    ["train", "method.features=public"],
    ["train", "privacy.unit=person"],
    ["train", "data.name=mnits"],
    ["train", "method.name=wgan"],
    ["train", "data.name=folder"],
    ["train", "data.name=folder", "data.root=no/such/place"],
    ["train", "--out", "/proc/nothing"],
    ["train", "--out", "a\nb", "digits-gaussian", "privacy.epsilon=-1"],
    ["train", "digits-idp-gan-published", "privacy.accept_unsound=false"],
    ["train", "digits-arden", "privacy.accept_unsound=false"],
    ["train", "digits-dssgd", "privacy.accept_unsound=false"],
    ["train", "faces-gaussian", "data.keep_names=1"],
    ["sample", "nothing", "--num", "1", "--out", "x"],
    ["sample", "TREE/checkpoints/digits-aggregate-eps10", "--num", "0", "--out", "x"],
    ["sample", "TREE/checkpoints/digits-aggregate-eps10", "--num", "2", "--labels", "dog", "--out", "x"],
    ["sample", "TREE/checkpoints/digits-aggregate-eps10", "--num", "2", "--out", "x.jpg"],
    ["sample", "TREE/checkpoints/digits-aggregate-eps10", "--num", "2", "--seed", "-1", "--out", "x"],
    ["sample", "TREE/checkpoints/digits-aggregate-eps10", "--num", "2", "--soft-labels", "--out", "x.npz"],
    ["sample", "--num", "1"],
    ["evaluate", "nothing"],
    ["evaluate", "DATA/classes"],
    ["evaluate", "DATA/classes", "--data", "digits"],
    ["evaluate", "DATA/classes", "--data", "digits", "--only", "beauty"],
    ["evaluate", "DATA/classes", "--data", "digits", "--classifier", "oracle"],
    ["evaluate", "DATA/classes", "--data", "digits", "--seeds", "0"],
    ["evaluate", "DATA/classes", "--data", "digits", "--part", "train"],
    ["evaluate", "DATA/classes", "--data", "digits", "--protocol", "mine"],
    ["evaluate", "DATA/classes", "--data", "digits", "--full"],
    ["evaluate", "DATA/classes", "--data", "digits", "--range", "wide"],
    ["evaluate", "DATA/classes", "--data", "digits", "--features", "inception-v3"],
    ["attack", "nothing"],
    ["attack", "DATA/classes"],
    ["attack", "TREE/checkpoints/digits-aggregate-eps10"],
    ["attack", "nothing", "--attack", "magic"],
    ["attack", "nothing", "--confidence", "2"],
    ["attack", "nothing", "--most", "0"],
    ["audit", "nothing"],
    ["audit", "laplace", "--epsilon", "-1"],
    ["audit", "laplace", "--epsilon", "1", "--runs", "1"],
    ["audit", "laplace", "--epsilon", "1", "--confidence", "1"],
    ["audit", "laplace", "--epsilon", "1", "--unit", "person"],
    ["audit", "laplace", "--epsilon", "1", "--relation", "add-one"],
    ["audit", "laplace", "--epsilon", "1", "--delta", "2"],
    ["audit", "laplace", "--epsilon", "1", "--law", "gaussian"],
    ["audit", "laplace", "--epsilon", "1", "--pair", "extremes"],
    ["audit", "laplace", "--one-run"],
    ["audit", "laplace", "--release"],
    ["audit", "lap", "--epsilon", "1", "--pair", "twins"],
    ["audit", "dp-gan", "--one-run", "--canaries", "1"],
    ["audit", "idp-gan-published", "--noise", "never"],
    ["report", "nothing"],
    ["report", "DATA/classes"],
    ["report", "TREE/checkpoints/digits-aggregate-eps10"],
    ["verify", "nothing"],
    ["verify", "DATA/classes"],
    ["verify", "TREE/configs/default.toml"],
    ["init", "nothing"],
    ["init", "DATA/photos"],
    ["init", "digits", "--method", "magic"],
    ["init", "mnist", "--data-root", "no/such/place"],
    ["prepare", "nothing", "x", "--size", "24"],
    ["prepare", "DATA/photos", "x", "--size", "0"],
    ["prepare", "DATA/photos", "x", "--size", "big"],
    ["prepare", "DATA/photos", "x", "--size", "24", "--crop", "left"],
    ["prepare", "DATA/photos", "x", "--size", "24", "--folders", "name"],
    ["prepare", "DATA/photos", "x", "--size", "24", "--labels", "nothing.csv"],
    ["prepare", "DATA/photos", "DATA/photos/x", "--size", "24"],
    ["publish", "nothing", *IMAGES],
    ["publish", *IMAGES],
    ["publish", "DATA/photos", *IMAGES],
    ["publish", "DATA/faces", *IMAGES, "law=cauchy"],
    ["publish", "DATA/faces", *IMAGES, "block=3"],
    ["publish", "DATA/faces", *IMAGES, "--delta", "1"],
    ["publish", "DATA/faces", *IMAGES, "--delta", "0.5"],
    ["publish", "DATA/faces", *IMAGES, "--epsilon", "0"],
    ["publish", "DATA/faces", *IMAGES, "--epsilon", "nan"],
    ["publish", "DATA/faces", *IMAGES, "--unit", "person"],
    ["publish", "DATA/faces", *IMAGES, "--unit", "row"],
    ["publish", "DATA/faces", *IMAGES, "--method", "magic"],
    ["publish", "DATA/faces", *IMAGES, "--method", "sra"],
    ["publish", "DATA/faces", *IMAGES, "--method", "sra", "--unit", "column"],
    ["publish", "DATA/faces", *IMAGES, "--method", "codebook", "--unit", "pixel"],
    ["publish", "DATA/faces", *IMAGES, "--method", "blur"],
    ["publish", "DATA/faces", *IMAGES, "--device", "tpu"],
    ["publish", "DATA/faces", *IMAGES, "--ledger", "DATA/table/metadata.csv"],
    ["publish", "DATA/faces", *IMAGES, "--out", "DATA/faces/out"],
    ["publish", "DATA/faces", *IMAGES, "--out", "DATA"],
    ["publish", "DATA/faces", "--method", "lap"],
    ["obfuscate", "nothing", "--method", "blur", "--out", "out", "--accept-unsound"],
    ["obfuscate", "DATA/faces", "--method", "blur", "--out", "out"],
    ["obfuscate", "DATA/faces", "--method", "lap", "--out", "out", "--accept-unsound"],
    ["obfuscate", "DATA/faces", "--method", "blur", "--out", "out", "--accept-unsound", "sigma=0"],
    ["obfuscate", "DATA/faces", "--method", "blur", "--out", "out", "--accept-unsound", "block=2"],
    ["obfuscate", "DATA/faces", "--method", "pixelate", "--out", "out", "--accept-unsound", "block=0"],
    ["obfuscate", "DATA/faces", "--method", "gp-gan", "--out", "out", "--accept-unsound"],
    ["obfuscate", "DATA/table", "--method", "censored", "--out", "out", "--accept-unsound", "--keep", "hat"],
    ["obfuscate", "DATA/table", "--method", "obfuscator", "--out", "out", "--accept-unsound"],
    ["obfuscate", "DATA/table", "--method", "blur", "--out", "out", "--accept-unsound", "--fitted", "nothing"],
    ["stream", "--epsilon", "0"],
    ["stream", "--epsilon", "1", "--horizon", "0"],
    ["stream", "--epsilon", "1", "--horizon", "2"],
    ["stream", "--epsilon", "1", "--block", "0"],
    ["stream", "--epsilon", "1", "--first", "3"],
    ["stream", "--epsilon", "1", "--out", "DATA"],
    ["stream"],
)


def refusal_cases(tree: Path) -> Iterator[Case]:
    """Yield the cases."""
    for arguments in COMMANDS:
        yield Case(f"refusal {' '.join(arguments) or 'of nothing'}", command(arguments))
    for config in CONFIGS:
        yield Case(f"settings {config}", dry_runs(config))


def command(arguments: list[str]) -> Callable[[Box], None]:
    """Run one command that must be refused."""

    def act(box: Box) -> None:
        given = [text.replace("TREE", str(box.tree)).replace("DATA", str(box.data)) for text in arguments]
        box.run(*given, stdin="1\n2\nx\n", says="")

    return act


def dry_runs(config: str) -> Callable[[Box], None]:
    """Price a config with strange settings; each entry is named by its settings."""

    def act(box: Box) -> None:
        box.run("train", config, "--dry-run", "--json")
        keys = {name.split(".config.")[1].split("[")[0] for name in box.entries if ".config." in name}
        sections = sorted({key.split(".")[0] for key in keys})
        for setting in chosen_settings(config, [*keys, *(f"{section}.{key}" for section in sections for key in KEYS)]):
            inner = Box(f"settings {config} {setting}", box.folder, box.data, box.tree)
            inner.run("train", config, setting, "--dry-run", "--json")
            box.entries.update(inner.entries)

    return act


def chosen_settings(config: str, keys: list[str]) -> list[str]:
    """Return one in `ONE_IN` of all pairs of key and value, chosen by a hash: a new key changes no other choice."""
    settings = [f"{key}={value}" for key in sorted(keys) for value in VALUES]
    return [text for text in settings if zlib.crc32(f"{config} {text}".encode()) % ONE_IN == 0]
