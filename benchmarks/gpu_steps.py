"""What only a device tells: facts that proofs rest on, steps a second and peak memory by size, SVD, sampling.

python benchmarks/gpu_steps.py facts [--device cuda]        public numbers alone; one JSON value
python benchmarks/gpu_steps.py svd [--device cuda]          batched_svd beside the CPU and beside torch's own
python benchmarks/gpu_steps.py step METHOD SIDE WIDTH       one training run on drawn faces in this process
python benchmarks/gpu_steps.py step lora SIDE WIDTH         the same by adapters of a random pipeline of diffusers
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from idpgan.commands import main as idpgan
from idpgan.device import is_gpu, resolve_device
from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import Critic
from idpgan.numerics.svd import batched_svd
from idpgan.privacy import DPSGDPlan, clip_kernel
from idpgan.privacy.layer_gradients import cut, norms
from idpgan.private.steps import PrivateSteps
from idpgan.synthesis.critic_loss import CriticLoss
from idpgan.training.stats import read_stats

SHAPES = (256, 28, 28), (64, 112, 92), (16, 200, 180)  # matrices, height, width
KEYS = {"dp-gan": "method.critic_width", "dp-sgd": "method.width", "diffusion": "model.width"}
LORA = [
    "data.public_disjoint=true",
    'model.trained=["lora:8"]',
    "model.generator=pipeline",
    "model.conditional=false",
    "method.start_share=0.0",
]


def main() -> None:
    """Measure one part and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("facts", "svd", "step"))
    parser.add_argument("case", nargs="*", help="of step: METHOD SIDE WIDTH")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--graphs", action="store_true", help="of step: chunks as CUDA graphs, where they hold")
    options = parser.parse_args()
    device = resolve_device(options.device, "--device")
    if options.part == "step":
        method, side, width = options.case
        found: Any = step(method, int(side), int(width), options)
    else:
        found = facts(device) if options.part == "facts" else svd(device)
    print(json.dumps(found))


def facts(device: torch.device) -> dict[str, bool]:
    """Return what holds on this device of what the CPU's tests prove there."""
    found: dict[str, bool] = {"kernel holds": clip_kernel.holds(device)}
    for width in (1, 1000, 1 << 16, 1 << 20):
        draws = torch.Generator().manual_seed(width)
        rows = torch.randn(64, width, generator=draws) * torch.logspace(-10, 3, 64)[:, None]
        factors = 2.0**24 / rows.abs().amax(1).clamp(min=1e-28)
        rows[5, 0], factors[5] = torch.nan, 0.0
        here, there = rows.to(device), factors.to(device)
        exact = torch.linalg.vector_norm(rows.double(), dim=1)
        off = (norms([here], there).cpu() - exact).abs() / exact  # a NaN at record 5 alone
        found[f"norms of {width} within 131 / 2^25"] = bool((off[factors > 0] <= 131 / 2**25).all())
        expected = cut(rows.clone(), factors)
        if clip_kernel.holds(device):
            added = torch.zeros(width, dtype=torch.int32, device=device)
            clip_kernel.add_scaled(here, there, added)
            found[f"kernel's sum of {width}"] = torch.equal(added.cpu(), expected.sum(0, dtype=torch.int32))
        found[f"cut of {width} in the same memory"] = torch.equal(cut(here, there).cpu(), expected)
    far = torch.tensor([2**53 + 1, -(2**53) - 3, 2**60 + 1])
    found["whole numbers to float64 as on the CPU"] = torch.equal(far.to(device).double().cpu(), far.double())
    return found | graph_facts(device) if is_gpu(device) else found


def graph_facts(device: torch.device, side: int = 28) -> dict[str, bool]:
    """Return whether a recorded chunk gives its bits, and slots of one kind the same numbers in a replay."""
    critic = Critic(ModelConfig(width=8), (1, side, side), 10).to(device)
    weights, loss = dict(critic.named_parameters()), CriticLoss(critic, "hinge", penalty=0.0, paired=True).of_record
    image, label = torch.rand(1, 1, side, side, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    record = [image, label, image.flip(3), image[:, 0, 0, 0], label]
    plan = DPSGDPlan(sample_rate=0.25, clip_norm=1.0, divisor=32, noise_multiplier=1.0)
    tiles = plan.tiles(loss, weights, record, num=128, most=32, way="graph")
    if tiles.way != "graph":
        return {"a captured chunk's bits": False}
    of_kind, alike = dict[int, torch.Tensor](), True
    records = [part.expand(tiles.rows, *part.shape[1:]).contiguous() for part in record]
    for slot, kind in enumerate(tiles.kinds.tolist()):
        null = torch.arange(tiles.rows, device=device) != slot
        sums = plan.clipped_sum(loss, weights, [(records, null)], tiles).sums
        row = torch.cat([part.flatten() for part in sums.values()])
        alike &= torch.equal(of_kind.setdefault(kind, row), row) and bool(row.any())
    return {"a captured chunk's bits": True, "tile proof under graphs": alike}


def svd(device: torch.device) -> list[dict[str, Any]]:
    """Return seconds of a batch by ours here, by ours on the CPU and by torch here, and our largest backward error."""
    rows = []
    for shape in SHAPES:
        matrices = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        here = matrices.to(device)
        left, values, right = batched_svd(here)
        error = ((left * values.unsqueeze(1)) @ right - here).abs().amax((1, 2)) / values[:, 0]
        ways: dict[str, Callable[[], object]] = {
            "ours": lambda here=here: batched_svd(here),
            "ours, CPU": lambda matrices=matrices: batched_svd(matrices),
            "torch": lambda here=here: torch.linalg.svd(here, full_matrices=False),
        }
        taken = {name: seconds(way, device) for name, way in ways.items()}
        rows.append({"shape": shape, "seconds": taken, "backward error": error.max().item()})
    return rows


def seconds(call: Callable[[], object], device: torch.device, turns: int = 3) -> float:
    """Return the least time of some calls after one that warms up."""
    found = []
    for _ in range(turns + 1):
        started = time.perf_counter()
        call()
        if is_gpu(device):
            torch.cuda.synchronize()
        found.append(time.perf_counter() - started)
    return min(found[1:])


def step(method: str, side: int, width: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train some steps on drawn faces; return weights, way, steps a second of the last tick, and peak memory in GiB."""
    if method == "lora" and importlib.util.find_spec("diffusers") is None:
        return {"skipped": "diffusers is not installed: pip install idpgan[diffusers]"}
    weights, inner = list[int](), DPSGDPlan.grid_noise
    DPSGDPlan.grid_noise = lambda plan, count, noise: weights.append(count) or inner(plan, count, noise)  # type: ignore
    ways, settle = list[str](), PrivateSteps.settle
    PrivateSteps.settle = lambda made, exact: (settle(made, exact), ways.append(made.tiles.way))[0]  # type: ignore
    PrivateSteps.graphs = options.graphs
    drawn = [f"data.num_images={options.images}", f"data.image_size={side}", "data.channels=1"]
    drawn += ["data.name=faces", "data.num_people=64", 'data.label=["smiling"]']
    length = [f"training.steps={options.steps}", f"training.tick_steps={max(1, options.steps // 3)}"]
    length += [f"training.batch_size={options.images}"]  # all in every step
    length += ["privacy.sample_rate=1.0"] if method == "dp-gan" else []
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        if method == "lora":
            drawn += [f"data.public_generator={pipeline(Path(folder) / 'pipeline', side, width)}", *LORA]
        else:
            drawn.append(f"{KEYS[method]}={width}")
        arguments = [
            f"digits-{'diffusion' if method == 'lora' else method}",
            *drawn,
            *length,
            "--device",
            options.device,
            "--out",
            str(run),
            "--no-progress",
        ]
        try:
            idpgan(["train", *arguments])
        except SystemExit as ended:
            if ended.code:
                raise
        speed = read_stats(run / "stats.jsonl")[-1]["steps_per_second"]
    peak = torch.cuda.max_memory_allocated() / 2**30 if options.device.startswith("cuda") else None
    return {"weights": max(weights), "way": ways[-1], "steps per second": speed, "peak GiB": peak}


def pipeline(folder: Path, side: int, width: int) -> Path:
    """Save a DDPM of such images with random weights, as large as its width makes it, and return its folder."""
    diffusers = importlib.import_module("diffusers")
    unet = diffusers.UNet2DModel(
        sample_size=side,
        in_channels=1,
        out_channels=1,
        block_out_channels=(width, 2 * width, 4 * width),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )
    diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler()).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n", encoding="utf-8")
    return folder


if __name__ == "__main__":
    main()
