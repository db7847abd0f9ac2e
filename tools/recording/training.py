"""Cases that train: every config at small size, method variants that no config uses, and the price of each config."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from box import Box, Case

SMALL = {  # settings that make a run of a method short
    "idp-gan-aggregate": "method.moments=6 method.fourier=20 method.metric_steps=[2]",
    "idp-gan-published": "model.width=4 model.latent_dim=4",
    "dp-gan": "method.critic_steps_per_generator_step=2 privacy.sample_rate=0.02",
    "wgan-gp": "model.width=4 model.latent_dim=4",
    "evolution": "model.codes=6",
    "gaussian": "model.latent_dim=12",
    "pgd": "method.width=4 method.attack_steps=2",
    "dssgd": "method.width=4 method.participants=3",
    "arden": "method.width=4",
}
STEPPED = {"gaussian", "evolution", "scattering-linear"}  # these define their own steps
GENERAL = "training.steps=4 training.tick_steps=2 training.batch_size=20 release.samples=10"
WILD = "data.num_images=240 data.num_people=80 data.root=DATA/wild{side}"
PUBLIC = "method.pretrain_steps=3 method.embedding_steps=10"
SMALL_CONFIG = {
    **dict.fromkeys(("celeba-aggregate", "celeba-idp-gan-published", "celeba-wgan-gp"), "data.image_size=28"),
    "celeba-dp-gan": "data.image_size=28 privacy.sample_rate=0.25",
    "digits-aggregate-public": PUBLIC,
    "mnist-aggregate": f"data.public_share=0.3 {PUBLIC}",
    "mnist-aggregate-no-public": "method.candidates=2",
    "faces-aggregate": f"data.num_images=600 data.num_people=100 data.image_size=28 data.public_share=0.2 "
    f"method.fourier=30 {PUBLIC}",
    "faces-gaussian": "data.num_images=400 data.num_people=400 data.image_size=28 method.candidates=2",
    "faces-wild-aggregate": "training.steps=0 method.candidates=2 model.latent_dim=12 model.width=4",
    "mnist-dp-gan": "privacy.sample_rate=0.04",
    "mnist-idp-gan-published": "data.public_share=0.05",
}
FEW = {  # settings for the price of a config on few images
    "mnist-dp-gan": "privacy.sample_rate=0.5",
    "celeba-dp-gan": "training.batch_size=20",
}
WARP = "model.width=4 model.codes=5 model.latent_dim=4"
PHOTOS = "model.drawing=photos"
VARIANTS = {  # name: config and settings of a method variant
    "aggregate replace-one": "default privacy.relation=replace-one method.augment=0",
    "aggregate laplace": "default method.law=laplace privacy.delta=0 method.moments=3 method.fourier=4",
    "aggregate scattering": "default method.features=scattering method.moments=4",
    "aggregate dcgan": "default model.generator=dcgan method.metric=none",
    "aggregate unlabeled": "default model.conditional=false",
    "aggregate public": f"digits-aggregate-public method.features=public {PUBLIC}",
    "aggregate teacher": "default method.teacher_share=0.5 method.candidates=2",
    "aggregate person": "celeba-aggregate privacy.unit=person privacy.most_per_person=2 data.split_by=identity",
    "gaussian replace-one": "digits-gaussian privacy.relation=replace-one",
    "gaussian teacher": "digits-gaussian method.teacher_share=0.3 method.candidates=2",
    "gaussian light": f"digits-gaussian {PHOTOS}",
    "gaussian person": "faces-wild-gaussian privacy.unit=person",
    "gaussian public": "digits-gaussian data.public_share=0.1 data.confirm_public=true",
    "evolution public": "digits-evolution model.simulator=public data.public_share=0.1 data.confirm_public=true",
    "evolution person": "faces-wild-evolution privacy.unit=person privacy.relation=replace-one",
    "published per step": "digits-idp-gan-published privacy.noise=per_step",
    "published per batch": "digits-idp-gan-published privacy.noise=per_batch",
    "published linear": "digits-idp-gan-published method.first_layer=linear privacy.label_path=autograd",
    "published relevance": "digits-idp-gan-published method.allocation=relevance data.public_share=0.1 "
    "data.confirm_public=true",
    "published labels": "digits-idp-gan-published method.label_input=true privacy.label_epsilon=2",
    "dp-gan wgan-gp": "digits-dp-gan method.loss=wgan-gp method.mismatch=0",
    "dp-gan separate": "digits-dp-gan method.fakes=separate method.mismatch=0",
    "dp-gan adaptive": "digits-dp-gan method.adaptive_below=0.9 model.generator=dcgan",
    "dp-gan sigma": "digits-dp-gan privacy.noise_multiplier=3.0",
    "scattering person": "digits-scattering-linear training.steps=3",
    "dssgd noisy": "digits-dssgd privacy.epsilon=2.0",
    "folder gaussian": "digits-gaussian data.name=folder data.root=DATA/classes data.image_size=28 data.channels=1 "
    'data.classes=["grave","merry"] data.num_images=60',
}


def settings_of(config: str, tree: Path) -> list[str]:
    """Return the settings that make a run of a config small."""
    table = tomllib.loads((tree / "configs" / f"{config}.toml").read_text(encoding="utf-8"))
    method, source = table["method"]["name"], table["data"]["name"]
    text = SMALL.get(method, "")
    if method not in STEPPED:
        text += f" {GENERAL}"
    if table.get("model", {}).get("generator") == "warp":
        text += f" {WARP}"
    if source == "folder":
        text += f" {WILD.format(side=table['data']['image_size'])}"
    return f"{text} {SMALL_CONFIG.get(config, '')}".split()


def training_cases(tree: Path) -> Iterator[Case]:
    """Yield the cases; a config's own price is that of its real size, on the small data."""

    def run_of(config: str, settings: list[str]) -> Callable[[Box], None]:
        def act(box: Box) -> None:
            given = [text.replace("DATA/", f"{box.data}/") for text in settings]
            if box.run("train", config, *given, "--out", "run", "--json"):
                return
            box.run("verify", "run", "--json")
            if (box.folder / "run/release/generator.safetensors").is_file():
                box.run("sample", "run", "--num", "6", "--seed", "1", "--out", "drawn.npz", "--json")

        return act

    def price_of(config: str) -> Callable[[Box], None]:
        def act(box: Box) -> None:
            wild = [*WILD.replace("DATA", str(box.data)).format(side=32).split(), "data.image_size=32"]
            given = [*(wild if "faces-wild" in config else []), *FEW.get(config, "").split()]
            box.run("train", config, *given, "--dry-run", "--json")
            try:
                from idpgan import trainer
            except ImportError:  # before the house
                from idpgan import jobs as trainer

            box.say("identity", trainer.load_config(Path(config), []).identity())

        return act

    for path in sorted((tree / "configs").glob("*.toml")):
        yield Case(f"train {path.stem}", run_of(path.stem, settings_of(path.stem, tree)))
    named = (tree / "idpgan" / "models" / "drawing.py").is_file()
    for name, text in VARIANTS.items():
        config, *settings = text.replace(
            *("", "") if named else (PHOTOS, "model.light=true model.truncation=0.7")
        ).split()
        yield Case(f"train variant {name}", run_of(config, [*settings_of(config, tree), *settings]))
    for path in sorted((tree / "configs").glob("*.toml")):
        yield Case(f"price {path.stem}", price_of(path.stem))
