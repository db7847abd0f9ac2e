"""Pipelines of `diffusers` as simulators of `evolution`: their network and scheduler are driven from latent numbers.

Images: unconditional (DDPM, DDIM), class-conditional, or in the latent space of an autoencoder (LDM, DiT). A pipeline
that wants a prompt is called by a few lines of your own instead (docs/methods/own-generator.md). Variation is image to
image: noise is added up to a share of the schedule, and taken away again (Meng et al. 2022, "SDEdit").

Nothing is imported here but torch: whoever has a pipeline has `diffusers` (``pip install idpgan[diffusers]``).

A pipeline of `diffusers` as a generator: its network with adapters, which alone are its weights in a release.

The frozen rest, and what else an image passes (schedule, autoencoder), lies in the folder of the pipeline
(`idpgan.models.pipeline_folder`). The loss is the pipeline's own (Ho, Jain and Abbeel 2020): the mean square of what
the network predicts, noise, image or velocity, at a uniform step of the schedule. Images are drawn by
`idpgan.models.pipelines.PipelineSimulator`, deterministic from z by DDIM (Song, Meng and Ermon 2021).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend

from idpgan.errors import ConfigError, InputError
from idpgan.models.adapters import adapt, adapter_weights, label_rows, rows_of
from idpgan.models.config import ModelConfig
from idpgan.models.generator import Generator
from idpgan.models.own import NETWORK, GeneratorOutline
from idpgan.models.pipeline_folder import build_part, check_weights, encode, load_part
from idpgan.models.tangent import factors
from idpgan.privacy.precision import attention_by


class PipelineSimulator:
    """A pipeline as a simulator: ``model.simulator = "mine:simulator"`` with ``simulator = PipelineSimulator(...)``.

    Args:
        pipeline: With a network (``unet`` or ``transformer``), a ``scheduler`` and perhaps an autoencoder (``vae`` or
            ``vqvae``).
        image_shape: (C, H, W) in px of the data; what the pipeline draws is brought to that size, and to grey or RGB.
        steps: Denoising steps of an image.
        classes: Number that the pipeline gives to each of our classes; None = the same numbers.
        guidance: Weight of the class against ``no_class`` (Ho and Salimans 2022, "Classifier-free diffusion guidance");
            1 = none.
        no_class: Number that the pipeline gives to no class; needed for guidance.
        batch_size: Images of a call.
        labeled: Whether the network takes classes; None = its settings say so.

    Attributes:
        numbers: Length of z.

    Raises:
        InputError: If it is not such a pipeline.
    """

    def __init__(
        self,
        pipeline: Any,
        image_shape: Sequence[int],
        *,
        steps: int = 50,
        classes: Sequence[int] | None = None,
        guidance: float = 1.0,
        no_class: int | None = None,
        batch_size: int = 16,
        labeled: bool | None = None,
    ) -> None:
        self.pipeline, self.image_shape, self.steps, self.batch_size = pipeline, tuple(image_shape), steps, batch_size
        self.classes, self.guidance, self.no_class = classes, guidance, no_class
        self.network = next((part for part in self._parts("unet", "transformer")), None)
        self.autoencoder = next((part for part in self._parts("vae", "vqvae")), None)
        if self.network is None or not hasattr(pipeline, "scheduler") or self._parts("text_encoder"):
            raise InputError(
                f"a {type(pipeline).__name__} is not driven from z and classes: PipelineSimulator takes pipelines with "
                "a network, a scheduler and no prompt. Write draw(z, labels) yourself, which calls it with latents=z."
            )
        if guidance != 1 and no_class is None:
            raise InputError("guidance needs no_class, the number that the pipeline gives to no class.")
        config = self.network.config
        side = config.sample_size
        self._latent = (config.in_channels, *((side, side) if isinstance(side, int) else map(int, side)))
        self.numbers = self._latent[0] * self._latent[1] * self._latent[2]
        known = ("num_class_embeds", "class_embed_type", "num_embeds_ada_norm")
        self._labeled = any(getattr(config, key, None) for key in known) if labeled is None else labeled

    def draw(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Denoise latent numbers z (B, numbers), standard normal, to images (B, C, H, W) in [-1, 1]."""
        self._ready(z.device)
        latents = z.view(-1, *self._latent) * getattr(self.pipeline.scheduler, "init_noise_sigma", 1.0)
        return self._decoded(self._denoised(latents, self.pipeline.scheduler.timesteps, labels))

    def vary(self, images: Tensor, strength: float, labels: Tensor | None) -> Tensor:
        """Add noise up to a share ``strength`` of the schedule to images (B, C, H, W) in [-1, 1], and denoise them."""
        self._ready(images.device)
        ahead = max(1, round(strength * self.steps))
        timesteps = self.pipeline.scheduler.timesteps[-ahead:]
        clean = self.encoded(images)
        noise = torch.randn(clean.shape).to(clean.device)
        noisy = self.pipeline.scheduler.add_noise(clean, noise, timesteps[:1].expand(len(clean)))
        return self._decoded(self._denoised(noisy, timesteps, labels))

    def encoded(self, images: Tensor) -> Tensor:
        """Return what the network sees of images (B, C, H, W) in [-1, 1] without noise, each by itself."""
        if self.autoencoder is None:
            return fitted(images, self._latent)
        times = 2 ** (len(self.autoencoder.config.block_out_channels) - 1)
        shape = (self.autoencoder.config.in_channels, *(times * side for side in self._latent[1:]))
        found = self.autoencoder.encode(fitted(images, shape))
        latents: Tensor = found.latent_dist.mean if hasattr(found, "latent_dist") else found.latents
        return latents * self._scale

    def _parts(self, *names: str) -> list[Any]:
        return [part for name in names if (part := getattr(self.pipeline, name, None)) is not None]

    def _ready(self, device: torch.device) -> None:
        for part in (self.network, self.autoencoder):
            if part is not None:
                part.to(device).eval()
        self.pipeline.scheduler.set_timesteps(self.steps)

    def _denoised(self, latents: Tensor, timesteps: Tensor, labels: Tensor | None) -> Tensor:
        """Take the scheduler's steps."""
        known = None
        if self._labeled:  # the classes as the pipeline numbers them
            if labels is None:
                raise InputError("the pipeline wants a class for each image. Set model.conditional = true.")
            known = labels if self.classes is None else torch.tensor(self.classes, device=labels.device)[labels]
        for time in timesteps:
            scaled = self.pipeline.scheduler.scale_model_input(latents, time)
            noise = self._predicted(scaled, time, known)
            if self.guidance != 1 and known is not None:
                other = self._predicted(scaled, time, torch.full_like(known, int(self.no_class or 0)))
                noise = other + self.guidance * (noise - other)
            latents = self.pipeline.scheduler.step(noise, time, latents).prev_sample
        return latents

    def _predicted(self, latents: Tensor, time: Tensor, labels: Tensor | None) -> Tensor:
        given = {} if labels is None else {"class_labels": labels}
        times = time.expand(len(latents)).to(latents.device)
        noise: Tensor = self.network(latents, timestep=times, **given).sample  # type: ignore[misc]  # checked above
        return noise[:, : latents.shape[1]]  # some predict a variance too

    def _decoded(self, latents: Tensor) -> Tensor:
        """Decode latents, and bring what comes out to our shape."""
        images = latents if self.autoencoder is None else self.autoencoder.decode(latents / self._scale).sample
        return fitted(images, self.image_shape).clamp(-1, 1)

    @property
    def _scale(self) -> float:
        return float(getattr(self.autoencoder.config, "scaling_factor", 1.0))  # type: ignore[union-attr]


def fitted(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Bring images (B, C, H, W) to another size, and to grey or RGB."""
    if images.shape[1] != shape[0]:
        images = images.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
    if tuple(images.shape[2:]) == tuple(shape[1:]):
        return images
    return functional.interpolate(images, size=tuple(shape[1:]), mode="bilinear", antialias=True, align_corners=False)


LORA_FILE = "pytorch_lora_weights.safetensors"  # that `load_lora_weights` of diffusers reads
_DRAWN = 50  # steps of an image
_PREFIX = {"UNet2DModel": "unet", "UNet2DConditionModel": "unet"}  # of a network's weights in LORA_FILE; else:
_TRANSFORMER = "transformer"
_MODEL = "model."


class _Predictor(nn.Module):
    """A network of diffusers, called alike whatever its class; its tables of classes have one row for each of ours.

    Args:
        model: The network.
        num_classes: 0 for none.
        rows: Which class of the network each of ours is, None = the mean of all.
        tokens: Vectors that a network with cross attention sees of a class, zero at first: those of a prompt.

    Attributes:
        label_layers: Names of the embeddings of classes; see `idpgan.models.adapters.adapt`.
    """

    def __init__(self, model: Any, num_classes: int, rows: Sequence[int | None], tokens: int = 1) -> None:
        super().__init__()
        self.model, self.num_classes, self.tokens = model, num_classes, tokens
        self.config: Any = model.config
        cross = getattr(self.config, "cross_attention_dim", None) if _is(model, "UNet2DConditionModel") else None
        self.prompts = None if cross is None else nn.Embedding(max(num_classes, 1), tokens * int(cross))
        if self.prompts is not None:
            nn.init.zeros_(self.prompts.weight)
        names = [name for name, part in model.named_modules() if isinstance(part, nn.Embedding)]
        if num_classes and not names and cross is None and _is(model, "UNet2DModel"):  # it learns of classes now
            width = int(model.time_embedding.linear_2.out_features)
            model.class_embedding, names = nn.Embedding(1, width), ["class_embedding"]
            nn.init.zeros_(model.class_embedding.weight)
        for name in names:
            table = model.get_submodule(name).weight.detach()
            model.set_submodule(name, nn.Embedding.from_pretrained(rows_of(table, rows or [None])))
        self._labeled = bool(names)
        self.label_layers = tuple(f"{_MODEL}{name}" for name in names) if num_classes else ()
        if self.prompts is not None and num_classes:
            self.label_layers += ("prompts",)

    def forward(self, latents: Tensor, timestep: Tensor, class_labels: Tensor | None = None) -> SimpleNamespace:
        """Return what the network predicts, as ``.sample``."""
        rows = timestep.new_zeros(len(latents)).long() if class_labels is None else class_labels
        given: dict[str, Any] = {"class_labels": rows} if self._labeled else {}
        if self.prompts is not None:
            given["encoder_hidden_states"] = self.prompts(rows).unflatten(1, (self.tokens, -1))
        found: SimpleNamespace = self.model(latents, timestep=timestep, **given)
        return found


def _is(model: Any, name: str) -> bool:
    return type(model).__name__ == name


class PipelineGenerator(Generator):
    """Draw images by a pipeline whose network has adapters; see the module.

    Args:
        config: [model] with ``pipeline`` and ``trained``.
        image_shape: (C, H, W) in px; without an autoencoder that of the network.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        seed: Of the adapters.
        folder: Whence the weights come; None = arbitrary ones.
        classes: Names of the classes: a number is a class of the network; so is the look of a name in ``looks``.

    Attributes:
        network: A `_Predictor`; its state is that of the trained weights alone.
        known_numbers: Numbers that the steps keep of each image: its latents, or none without an autoencoder.
    """

    def __init__(
        self,
        config: ModelConfig,
        image_shape: Sequence[int],
        num_classes: int,
        *,
        seed: int = 0,
        folder: Path | None = None,
        classes: Sequence[str] = (),
        looks: Mapping[str, str] | None = None,
    ) -> None:
        pipeline = config.pipeline
        if pipeline is None:
            raise TypeError("a pipeline is described in the config.")
        if folder is None:
            model = build_part(pipeline.network)
            autoencoder = None if pipeline.autoencoder is None else build_part(pipeline.autoencoder)
        else:
            check_weights(folder, pipeline)
            model = load_part(folder, "network", pipeline.network)
            autoencoder = (
                None if pipeline.autoencoder is None else load_part(folder, "autoencoder", pipeline.autoencoder)
            )
        side = model.config.sample_size
        self._latent = (int(model.config.in_channels), *((side, side) if isinstance(side, int) else map(int, side)))
        super().__init__(config, image_shape, num_classes, math.prod(self._latent))
        if autoencoder is None and self._latent != self.image_shape:
            raise ConfigError(
                f"the pipeline of data.public_generator draws {' x '.join(map(str, self._latent))} (channels x height "
                f"x width), and the images are {' x '.join(map(str, self.image_shape))}. Prepare them so (idpgan "
                "prepare --size)."
            )
        rows = label_rows([str(number) for number in range(_known(model))], classes, looks or {})
        self.network = _Predictor(model.eval(), self.num_classes, rows or [None] * self.num_classes, pipeline.tokens)
        if config.prompts:
            self._set_prompts(config.prompts, folder)
        self.network.requires_grad_(False)
        adapt(self.network, config.trained, seed=seed)
        self._own = tuple(adapter_weights(self.network))
        self.autoencoder = None if autoencoder is None else autoencoder.eval().requires_grad_(False)
        self.known_numbers = 0 if autoencoder is None else self.latent_dim
        with torch.device("cpu"):
            noise = build_part(pipeline.scheduler)
            self._schedule: Tensor = noise.alphas_cumprod.clone()
        self._predicts = str(noise.config.prediction_type)
        self._scheduler = noise.config

    def _set_prompts(self, prompts: Sequence[str], folder: Path | None) -> None:
        """Let the network see what a text encoder makes of a prompt of each class, or of one for all."""
        table = cast(nn.Embedding, self.network.prompts).weight
        if len(prompts) not in (1, len(table)):
            raise ConfigError(
                f"model.prompts has {len(prompts)} prompts for {len(table)} classes: give one of each, or one for all."
            )
        if folder is not None:
            found = encode(folder, prompts, self.network.tokens)
            table.data.copy_(found.flatten(1).expand(len(table), -1))

    # The steps: see `DiffusionGenerator`, which has the same doors --------------------------------------------------

    def levels(self, normal: Tensor) -> Tensor:
        """Return uniform steps of the schedule, from standard normal numbers of any shape."""
        last = len(self._schedule) - 1
        return (torch.special.ndtr(normal.double()) * len(self._schedule)).floor().clamp(0, last).to(normal)

    @torch.no_grad()
    def known(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """Return the latents of images (B, C, H, W), (B, D), each by itself; (B, 0) without an autoencoder."""
        if self.autoencoder is None:
            return images.new_zeros(len(images), 0)
        return self._simulator().encoded(images).flatten(1)

    def states(self, images: Tensor, known: Tensor) -> Tensor:
        """Return the rows (B, D) that the diffusion moves, of images and what is `known` of them."""
        return known if self.known_numbers else images.flatten(1)

    def problem(self, states: Tensor, labels: Tensor | None, levels: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        """Return noisy latents (B, C, h, w), and what the network should predict of them; row i of row i."""
        kept = self._schedule.to(states.device)[levels.long()].to(states)[:, None]
        signal, noise = kept.sqrt(), (1 - kept).sqrt()
        target = {"epsilon": normal, "sample": states, "v_prediction": signal * normal - noise * states}[self._predicts]
        return (signal * states + noise * normal).view(-1, *self._latent), target.view(-1, *self._latent)

    def loss(
        self, weights: Mapping[str, Tensor], inputs: Tensor, levels: Tensor, label: Tensor, target: Tensor
    ) -> Tensor:
        """Return the mean loss of K noisy copies of one image, 0-d; see `DiffusionGenerator.loss`.

        Attention is computed in parts that `torch.func` can differentiate record by record: its fused kernels cannot.
        """
        labels = label.expand(len(inputs)) if self.num_classes else None
        with attention_by(SDPBackend.MATH):
            answer = functional_call(self.network, dict(weights), (inputs, levels, labels)).sample
        return (answer[:, : inputs.shape[1]] - target).square().mean()  # some predict a variance too

    # Drawing --------------------------------------------------------------------------------------------------------

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Draw images of noise ``z`` (B, D)."""
        return self._simulator().draw(z, labels)

    def _simulator(self) -> PipelineSimulator:
        import diffusers

        parts: dict[str, Any] = {"unet": self.network, "vae": self.autoencoder}
        scheduler = diffusers.DDIMScheduler.from_config(self._scheduler)
        pipeline = SimpleNamespace(scheduler=scheduler, **parts)
        return PipelineSimulator(pipeline, self.image_shape, steps=_DRAWN, labeled=bool(self.num_classes))

    # What a release and a state hold --------------------------------------------------------------------------------

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]  # it has overloads
        """Return the trained weights alone."""
        return {f"{NETWORK}{name}": weight.detach() for name, weight in self._adapters().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Take trained weights."""
        own = self._adapters()
        names = {f"{NETWORK}{name}" for name in own}
        if names != set(state_dict) or any(own[name].shape != state_dict[f"{NETWORK}{name}"].shape for name in own):
            raise RuntimeError("these are other adapters than the config describes.")
        with torch.no_grad():
            for name, weight in own.items():
                weight.copy_(state_dict[f"{NETWORK}{name}"])

    def __deepcopy__(self, memo: dict[int, Any]) -> PipelineGenerator:
        """Return a copy that has the frozen weights in common: they may be large, and nothing moves them."""
        frozen = [weight for weight in self.parameters() if not weight.requires_grad]
        memo.update({id(tensor): tensor for tensor in (*frozen, *self.buffers())})
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__ = copy.deepcopy(self.__dict__, memo)
        return made

    def _adapters(self) -> dict[str, nn.Parameter]:
        """Return what the adapters have; an average has frozen all of it."""
        found = dict(self.network.named_parameters())
        return {name: found[name] for name in self._own}


def _known(model: Any) -> int:
    """Return how many classes a network of diffusers knows."""
    return int(
        getattr(model.config, "num_class_embeds", None) or getattr(model.config, "num_embeds_ada_norm", None) or 0
    )


class PipelineOutline(GeneratorOutline):
    """Released adapters without the pipeline that they belong to."""

    @property
    def missing(self) -> InputError:
        """What is said where the pipeline is needed."""
        pipeline = self.config.pipeline
        what = "" if pipeline is None else f" ({pipeline.kind}, weights of SHA-256 {pipeline.weights})"
        return InputError(
            f"This release holds adapters of a pipeline{what}. Name its folder: load_generator(RELEASE, "
            "module=FOLDER) or --module FOLDER."
        )

    @property
    def unchecked(self) -> str:
        """What `verify` cannot check."""
        return (
            "the pipeline that is adapted is not in the release: the picture was not drawn again, and that it shows "
            "what the adapters draw is the word of whoever wrote the release"
        )

    def with_code(self, module: Any) -> Generator:
        """Return the pipeline of a folder with these adapters, in eval mode.

        Raises:
            ConfigError: If the folder holds another pipeline.
        """
        made = PipelineGenerator(self.config, self.image_shape, self.num_classes, folder=Path(module))
        made.load_state_dict(self.state_dict())
        made.classes = self.classes
        return made.eval()


def lora_bytes(generator: Generator) -> bytes | None:
    """Return `LORA_FILE` of adapters, made of their weights alone; None where they have no LoRA.

    A tangent of rank R is LoRA of rank 2 R.
    """
    pipeline = generator.config.pipeline
    if pipeline is None:
        return None
    prefix, found = _PREFIX.get(pipeline.kind, _TRANSFORMER), {}
    weights = {name: weight.detach().cpu() for name, weight in generator.state_dict().items()}
    for tangent in [name.removesuffix(".wide") for name in weights if name.endswith(".wide")]:
        down, up = factors(*(weights.pop(f"{tangent}.{part}") for part in ("left", "right", "wide", "tall")))
        weights |= {f"{tangent}.down.weight": down, f"{tangent}.up.weight": up}
    for name, weight in weights.items():
        inner = name.removeprefix(f"{NETWORK}{_MODEL}")
        for own, theirs in (("down", "lora_A"), ("up", "lora_B")):
            if inner.endswith(f".{own}.weight") and inner != name:
                layer = inner.removesuffix(f".{own}.weight")
                found[f"{prefix}.{layer}.{theirs}.weight"] = weight.contiguous()
    return save(found) if found else None
