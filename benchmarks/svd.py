r"""Batched SVD with reconstruction: NumPy loop, torch.linalg.svd and idpgan.publish.batched_svd, one JSON line each.

Contenders of a size take turns, so that other load on the machine hits all alike; `seconds` is the median of the turns
after a burn-in, `ratio_numpy` and `ratio_torch` are those contenders' medians over it, `cpu_seconds` is the time of
all threads (half of it is what two idle cores would take: the number to look at on a loaded machine). Truncated rows
compare with the same loop, cut after the full decomposition. NumPy computes float32 in float64 and rounds. Errors
against torch.linalg.svd in float64 on the first matrices, relative to the largest singular value. `flop_fraction`:
14 m n^2 + 8 n^3 operations (Golub and Van Loan, Golub-Reinsch thin SVD) plus 2 m n r for the product, at the rate of a
batched matrix product of (m, n) x (n, n) measured in the same run and dtype, over the time taken: 1/3 is "within 3x".

OMP_NUM_THREADS=2 python benchmarks/svd.py [--quick] [--device cuda] [--sizes orl faces94 drawn] [--methods all]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idpgan.numerics.svd import LAPACK, SUBSPACE, batched_svd, choose_method, decompose

SIZES = {  # N, m, n, truncated rank; --quick takes a tenth of N
    "orl": (400, 112, 92, 20),
    "faces94": (3_040, 200, 180, 20),
    "drawn": (60_000, 48, 48, 8),  # 20,000 images of three channels
}
CHECKED = 50  # matrices whose errors are computed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--quick", action="store_true", help="a tenth of the matrices")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--methods", nargs="+", default=[], choices=["all", LAPACK, SUBSPACE], help="force these methods, too"
    )
    parser.add_argument("--npy", help="array (400, 112, 92) of ORL's faces in [0, 1] in place of made images")
    parser.add_argument("--skip-full", action="store_true", help="the truncated rows only")
    arguments = parser.parse_args()
    for name in arguments.sizes:
        count, m, n, rank = SIZES[name]
        count = max(count // 10, 1) if arguments.quick else count
        matrices = images(count, m, n, getattr(torch, arguments.dtype))
        if name == "orl" and arguments.npy:
            matrices = torch.from_numpy(np.load(arguments.npy)[:count]).to(matrices)
        for cut in [rank] if arguments.skip_full else [None, rank]:
            for row in measure(matrices.to(arguments.device), cut, arguments):
                print(json.dumps({"size": name, **row}), flush=True)


def images(count: int, m: int, n: int, dtype: torch.dtype) -> Tensor:
    """Make images with the spectrum of ORL's faces: the k-th singular value is 0.3 / k of the first, falling faster."""
    generator = torch.Generator().manual_seed(0)
    order = torch.arange(1, n + 1, dtype=torch.float32)
    falloff = 0.15 / order * torch.exp(-order / 45)
    left = torch.randn(min(count, 500), m, n, generator=generator) * falloff
    right = torch.randn(min(count, 500), n, n, generator=generator)
    base = (left @ right).add(0.5)
    return base.repeat(-(-count // len(base)), 1, 1)[:count].to(dtype)


def numpy_loop(matrices: Tensor, rank: int | None) -> Tensor:
    array = matrices.cpu().numpy()
    out = np.empty_like(array)
    for i, matrix in enumerate(array):
        U, S, Vh = np.linalg.svd(matrix, full_matrices=False)  # noqa: N806
        out[i] = (U[:, :rank] * S[:rank]) @ Vh[:rank]
    return torch.from_numpy(out)


def torch_svd(matrices: Tensor, rank: int | None) -> tuple[Tensor, Tensor, Tensor]:
    U, S, Vh = torch.linalg.svd(matrices, full_matrices=False)  # noqa: N806
    return U[..., :rank], S[:, :rank], Vh[:, :rank]


def contenders(matrices: Tensor, rank: int | None, chosen: list[str]) -> dict[str, Callable[[], Any]]:
    """Return what takes turns; every one reconstructs."""
    found: dict[str, Callable[[], Any]] = {"torch": lambda: torch_svd(matrices, rank)}
    found["ours"] = lambda: batched_svd(matrices, rank)
    if matrices.device.type == "cuda" and matrices.shape[1] >= matrices.shape[2]:
        found["torch gesvda"] = lambda: torch.linalg.svd(matrices, full_matrices=False, driver="gesvda")
    for name in (LAPACK, SUBSPACE) if "all" in chosen else chosen:
        found[f"ours: {name}"] = lambda name=name: decompose(matrices, rank, name)
    products = {name: lambda solve=solve: reconstruct(*solve()) for name, solve in found.items()}
    return {"numpy": lambda: numpy_loop(matrices, rank), **products} if matrices.device.type == "cpu" else products


def reconstruct(U: Tensor, S: Tensor, Vh: Tensor) -> Tensor:  # noqa: N803
    return (U * S.unsqueeze(1)) @ Vh


def measure(matrices: Tensor, rank: int | None, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time all contenders in turns and return one row each."""
    count, m, n = matrices.shape
    runs = contenders(matrices, rank, arguments.methods)
    for run in runs.values():
        run()  # burn-in
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    busy: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.repeats):
        for name, run in runs.items():
            before = time.process_time()
            seconds[name].append(timed(run, matrices.device))
            busy[name].append(time.process_time() - before)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    need = count * (14 * m * n**2 + 8 * n**3 + 2 * m * n * (rank or n)) / matmul_rate(matrices)
    best = choose_method(matrices.dtype, m, n, rank)
    rows = []
    for name, time_taken in median.items():
        row = {"contender": name, "method": best if name == "ours" else None, "N": count, "m": m, "n": n, "rank": rank}
        row |= {"seconds": round(time_taken, 4), "fastest": round(min(seconds[name]), 4)}
        row |= {"cpu_seconds": round(statistics.median(busy[name]), 4)}
        row |= {"images_per_s": round(count / time_taken), "flop_fraction": round(need / time_taken, 4)}
        row |= {f"ratio_{name}": round(median[name] / time_taken, 2) for name in ("numpy", "torch") if name in median}
        row |= accuracy(name, matrices[:CHECKED], rank) | about(matrices)
        rows.append({key: value for key, value in row.items() if value is not None})
    return rows


def timed(run: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def matmul_rate(matrices: Tensor) -> float:
    """Return operations per second of the batched product (m, n) x (n, n), best of five."""
    some = matrices[:400].contiguous()
    square = some.mT @ some
    best = min(timed(lambda: some @ square, matrices.device) for _ in range(5))
    return 2 * some.numel() * some.shape[2] / best


def accuracy(name: str, some: Tensor, rank: int | None) -> dict[str, float]:
    """Return errors against float64: singular values, orthogonality of U and V, distance to the best approximation."""
    if name == "numpy":
        factors = [torch.from_numpy(part) for part in np.linalg.svd(some.cpu().numpy(), full_matrices=False)]
        U, S, Vh = factors[0][..., :rank], factors[1][:, :rank], factors[2][:, :rank]  # noqa: N806
    elif name == "torch gesvda":
        U, S, Vh = torch.linalg.svd(some, full_matrices=False, driver="gesvda")  # noqa: N806
    elif name == "torch":
        U, S, Vh = torch_svd(some, rank)  # noqa: N806
    else:
        forced = name.removeprefix("ours: ")
        U, S, Vh = batched_svd(some, rank) if forced == "ours" else decompose(some, rank, forced)  # noqa: N806
    U, S, Vh, some = (part.double().cpu() for part in (U, S, Vh, some))  # noqa: N806
    reference = torch_svd(some, S.shape[1])
    largest = reference[1][:, :1]
    identity = torch.eye(S.shape[1], dtype=torch.float64)
    product = torch.linalg.matrix_norm(reconstruct(U, S, Vh) - reconstruct(*reference)) / largest.squeeze(1)
    errors = {
        "error_values": ((S - reference[1]).abs() / largest).max(),
        "error_left": (U.mT @ U - identity).abs().max(),
        "error_right": (Vh @ Vh.mT - identity).abs().max(),
        "error_product": product.max(),
    }
    return {key: float(f"{value.item():.2g}") for key, value in errors.items()}


def about(matrices: Tensor) -> dict[str, Any]:
    """Return what a reader needs to judge the times."""
    row: dict[str, Any] = {"dtype": str(matrices.dtype).removeprefix("torch."), "torch": torch.__version__}
    if matrices.device.type == "cuda":
        memory = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        return row | {"device": torch.cuda.get_device_name(), "peak_gib": memory}
    openblas = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    return row | {
        "threads": torch.get_num_threads(),
        "numpy_threads": int(openblas),
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    main()
