"""A folder in the layout of `diffusers`, read without its code: known classes, their JSON settings, safetensors.

The folder has ``model_index.json``, and a subfolder with ``config.json`` and weights for each of network (``unet`` or
``transformer``), ``scheduler`` and perhaps autoencoder (``vae``), and CLIP (``text_encoder``, ``tokenizer``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from idpgan.errors import ConfigError, InputError
from idpgan.files import parse_json, read_plain
from idpgan.models.config import PIPELINE_PARTS, PipelineConfig

INDEX = "model_index.json"
_FOLDERS = {"network": ("unet", "transformer"), "autoencoder": ("vae",), "scheduler": ("scheduler",)}
_CONFIGS = {"scheduler": "scheduler_config.json"}
_MOST_TEXT = 1 << 20
_LICENSE = re.compile(r"^license:[ \t]*[\"']?([A-Za-z0-9][A-Za-z0-9 .,:/()+-]{0,99}?)[\"']?[ \t]*$", re.MULTILINE)


def is_pipeline(path: Path) -> bool:
    """Tell whether a folder is one of diffusers, without reading it."""
    return (path / INDEX).is_file()


def describe_pipeline(path: Path, license: str = "") -> dict[str, Any]:  # noqa: A002
    """Return [model.pipeline] of a folder: the settings of its parts, the hash of their weights, their license.

    Raises:
        InputError: If a part is missing or damaged.
        ConfigError: If a part is of a class that is not known.
    """
    found: dict[str, Any] = {"weights": _digest(path)}
    for part, names in _FOLDERS.items():
        folder = _folder(path, names)
        if folder is None:
            if part == "autoencoder":
                continue
            raise InputError(f"{path} has no {' or '.join(names)}, so it is no pipeline of diffusers that can be used.")
        file = folder / _CONFIGS.get(part, "config.json")
        settings = parse_json(read_plain(file, _MOST_TEXT, follow=True))
        kind = settings.get("_class_name") if isinstance(settings, dict) else None
        if kind not in PIPELINE_PARTS[part]:
            raise ConfigError(f"{file} is of class {kind!a}. Known are {', '.join(PIPELINE_PARTS[part])}.")
        kept = {key: value for key, value in settings.items() if not key.startswith("_") or key == "_class_name"}
        found[part] = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    readme = path / "README.md"
    if not license and readme.is_file():
        stated = _LICENSE.search(read_plain(readme, _MOST_TEXT, follow=True).decode(errors="replace"))
        license = stated[1] if stated else ""  # noqa: A001
    text = path / "text_encoder" / "config.json"
    if text.is_file():
        found["tokens"] = int(parse_json(read_plain(text, _MOST_TEXT, follow=True)).get("max_position_embeddings", 77))
    return found | ({"license": license} if license else {})


def build_part(settings: str) -> Any:
    """Make a part of a pipeline, with arbitrary weights, of the JSON settings that `describe_pipeline` returned.

    Raises:
        InputError: If `diffusers` is missing.
    """
    table = json.loads(settings)
    return getattr(_diffusers(), table.pop("_class_name")).from_config(table)


def load_part(path: Path, part: str, settings: str) -> nn.Module:
    """Load network or autoencoder of a folder, in float32 on the CPU; only safetensors are opened."""
    folder = _folder(path, _FOLDERS[part])
    kind = getattr(_diffusers(), json.loads(settings)["_class_name"])
    try:
        loaded: nn.Module = kind.from_pretrained(folder, use_safetensors=True, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{folder} cannot be loaded as {kind.__name__}: {str(error).splitlines()[0]}") from error
    return loaded.float()


def encode(path: Path, prompts: Sequence[str], tokens: int) -> Tensor:
    """Return what the CLIP of a folder makes of prompts, (N, tokens, D); only safetensors are opened.

    Raises:
        InputError: If the folder has no text encoder, or `transformers` is missing.
    """
    try:
        from transformers import CLIPTextModel, CLIPTokenizer
    except ImportError as error:
        raise InputError(f"model.prompts need the package transformers ({error}): pip install transformers.") from error
    if not (path / "text_encoder").is_dir() or not (path / "tokenizer").is_dir():
        raise InputError(f"model.prompts need text_encoder/ and tokenizer/, which {path} has not. Leave them out.")
    tokenizer = CLIPTokenizer.from_pretrained(path / "tokenizer", local_files_only=True)
    encoder = CLIPTextModel.from_pretrained(path / "text_encoder", use_safetensors=True, local_files_only=True)
    asked = {"padding": "max_length", "max_length": tokens, "truncation": True, "return_tensors": "pt"}
    with torch.no_grad():
        found: Tensor = encoder.eval()(tokenizer([*prompts], **asked).input_ids)[0]
    return found.float()


def check_weights(path: Path | None, pipeline: PipelineConfig) -> Path:
    """Return the folder of a pipeline, if it has the weights that the config names.

    Raises:
        ConfigError: If it has others, or none is named.
    """
    if path is None:
        raise ConfigError("a config with model.pipeline needs data.public_generator: the folder of that pipeline.")
    path = path.expanduser()
    if _digest(path) != pipeline.weights:
        raise ConfigError(
            f"'{path}' holds other weights than model.pipeline names ({pipeline.weights[:12]}...). Name the folder "
            "that the run began with."
        )
    return path


def _folder(path: Path, names: tuple[str, ...]) -> Path | None:
    return next((path / name for name in names if (path / name).is_dir()), None)


def _digest(path: Path) -> str:
    """Return the SHA-256 over the weight files of network, autoencoder and text encoder, with their names."""
    folders = [_folder(path, names) for names in (_FOLDERS["network"], _FOLDERS["autoencoder"], ("text_encoder",))]
    files = sorted(file for folder in folders if folder is not None for file in folder.glob("*.safetensors"))
    if not files:
        raise InputError(
            f"{path} holds no weights as safetensors in unet/ or transformer/. Other files can run code when they are "
            "opened: save the pipeline again with save_pretrained(..., safe_serialization=True)."
        )
    sha = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        sha.update(f"{file.relative_to(path).as_posix()} {digest}\n".encode())
    return sha.hexdigest()


def _diffusers() -> Any:
    try:
        import diffusers
    except ImportError as error:
        raise InputError(
            f"a pipeline of diffusers needs that package ({error}): pip install idpgan[diffusers]."
        ) from error
    return diffusers
