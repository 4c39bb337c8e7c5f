"""Times 8-bit products of a FLUX block's layers by themselves, and compares LoRA gradients: a GPU's own figures.

    python -m backend.bench.products --out bench/products
    python -m backend.bench.products --out bench/products --gradients --variants static:sdpa

OUT/products.csv gets a row for each layer and way as it is measured: milliseconds forward and backward, quantising
included, each operation compiled as in training. With `--gradients` OUT/gradients.csv gets, for each way, the cosine of
each LoRA layer's gradient with the one on the same base in bf16: the least and the median one.
"""

from __future__ import annotations

import argparse
import csv
import gc
import logging
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from backend.bench.sizes import SIZES
from backend.bench.step import Step, shapes_of
from backend.bench.variants import Spec, variant
from backend.bench.work import Stream, build
from backend.memory.product_ways import WAYS
from backend.memory.quantized_linear import QuantizedLinear

log = logging.getLogger(__name__)

LAYERS = ((3072, 3072), (3072, 12288), (12288, 3072), (15360, 3072))
"""Inputs and outputs of FLUX's layers."""

_BF16 = "bf16"
_TIMES = 15


def ways() -> list[str]:
    """Names as --products of the bench has them, bf16 first."""
    return [_BF16, *(f"{kind}:{name}" for kind, names in WAYS.items() for name in names)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write the rows; 1 when nothing could be measured."""
    parser = argparse.ArgumentParser(prog="python -m backend.bench.products", description="Measure 8-bit products.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the CSV files")
    parser.add_argument("--rows", type=int, default=4608, help="tokens")
    parser.add_argument("--layers", help="inputs x outputs by comma, such as 3072x12288; FLUX's when left out")
    parser.add_argument("--ways", help="of bf16, fp8:fast, int8:small ... by comma; all when left out")
    parser.add_argument("--gradients", action="store_true", help="compare LoRA gradients instead of timing products")
    parser.add_argument("--size", choices=list(SIZES), default="flux", help="model widths of --gradients")
    parser.add_argument("--variants", default="static:sdpa", help="one variant of the bench, for --gradients")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    names = options.ways.replace(" ", "").split(",") if options.ways else ways()
    if unknown := [name for name in names if name not in ways()]:
        parser.error(f"--ways has {', '.join(unknown)}; known: {', '.join(ways())}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if options.gradients:
        rows = gradient_rows(Spec(options.variants, size=options.size, checkpointing=False), names, device)
        return _written(options.out / "gradients.csv", rows)
    layers = [tuple(map(int, each.split("x"))) for each in options.layers.split(",")] if options.layers else LAYERS
    return _written(options.out / "products.csv", product_rows(options.rows, layers, names, device))


def _written(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write each row at once, and to stdout; 1 when there is none."""
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        for row in rows:
            if not count:
                csv.DictWriter(file, row).writeheader()
            csv.DictWriter(file, row).writerow(row)
            file.flush()
            sys.stdout.write("  ".join(f"{name} {value}" for name, value in row.items()) + "\n")
            count += 1
    return 0 if count else 1


def product_rows(
    rows: int, layers: Iterable[tuple[int, int]], names: Sequence[str], device: torch.device
) -> Iterable[dict[str, Any]]:
    """Row for each layer (inputs, outputs) and way: milliseconds, times bf16, errors of output and gradient."""
    for inputs, outputs in layers:
        generator = torch.Generator(device).manual_seed(0)
        real = nn.Linear(inputs, outputs, device=device, dtype=torch.bfloat16).requires_grad_(False)
        x = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16, generator=generator).requires_grad_()
        upstream = torch.randn(rows, outputs, device=device, dtype=torch.bfloat16, generator=generator)
        wanted = real(x)
        (wanted_grad,) = torch.autograd.grad(wanted, x, upstream)
        base: dict[str, float] = {}
        for name in names:
            row: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "rows": rows, "way": name}
            columns = ("forward_ms", "backward_ms", "times_bf16", "output_error", "gradient_error", "failed")
            row |= dict.fromkeys(columns, "")
            try:
                row |= _timed(_layer(real, name), x, upstream, device, base)
                out, grad = row.pop("results")
                row["output_error"] = f"{_error(out, wanted):.4f}"
                row["gradient_error"] = f"{_error(grad, wanted_grad):.4f}"
            except (RuntimeError, ValueError) as error:
                # what a GPU does not have is a result
                row["failed"] = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            yield row


def _layer(real: nn.Linear, name: str) -> nn.Module:
    kind, _, products = name.partition(":")
    return real if name == _BF16 else QuantizedLinear(real.weight, kind, WAYS[kind][products], real.bias)


def _timed(
    layer: nn.Module, x: Tensor, upstream: Tensor, device: torch.device, base: dict[str, float]
) -> dict[str, Any]:
    """Milliseconds of both passes with an activation before and an addition after, as blocks have them."""
    torch._dynamo.reset()

    def block(x: Tensor) -> Tensor:
        return layer(nn.functional.gelu(x)) * 0.5

    run = torch.compile(block, fullgraph=True) if device.type == "cuda" else block
    out = run(x)
    (grad,) = torch.autograd.grad(out, x, upstream, retain_graph=True)
    forward = _milliseconds(lambda: run(x), device)
    backward = _milliseconds(lambda: torch.autograd.grad(out, x, upstream, retain_graph=True), device)
    base.setdefault("ms", forward + backward)
    plain = layer(x)
    (grad,) = torch.autograd.grad(plain, x, upstream)
    return {
        "forward_ms": f"{forward:.4f}",
        "backward_ms": f"{backward:.4f}",
        "times_bf16": f"{base['ms'] / (forward + backward):.3f}",
        "results": (plain, grad),
    }


def _milliseconds(work: Callable[[], object], device: torch.device) -> float:
    """Median time of `work` on the device."""
    if device.type != "cuda":
        from time import perf_counter

        began = perf_counter()
        work()
        return 1000 * (perf_counter() - began)
    times = []
    for _ in range(_TIMES):
        # so much to do first that launching is not what is timed
        torch.cuda._sleep(400_000)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def _error(one: Tensor, other: Tensor) -> float:
    one, other = one.detach().float(), other.detach().float()
    return float((one - other).norm() / other.norm())


def gradient_rows(spec: Spec, names: Sequence[str], device: torch.device) -> Iterable[dict[str, Any]]:
    """Row for each way: cosines of the LoRA's gradients, layer by layer, with those on the base in bf16."""
    wanted = _gradients(spec, device)
    for name in names:
        kind, _, products = name.partition(":")
        row: dict[str, Any] = {"way": name, "least": "", "layer": "", "percentile_1": "", "median": "", "failed": ""}
        try:
            ours = _gradients(replace(spec, base_compute=kind, base_products=products or "small"), device)
            cosines = {
                path: float(torch.cosine_similarity(ours[path].flatten(), grad.flatten(), dim=0))
                for path, grad in wanted.items()
            }
            least = min(cosines, key=lambda path: cosines[path])
            ordered = sorted(cosines.values())
            row |= {"least": f"{cosines[least]:.5f}", "layer": least, "median": f"{statistics.median(ordered):.5f}"}
            row["percentile_1"] = f"{ordered[len(ordered) // 100]:.5f}"
        except (RuntimeError, ValueError) as error:
            row["failed"] = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        yield row


def _gradients(spec: Spec, device: torch.device) -> dict[str, Tensor]:
    """Gradients of a LoRA that is not zero, by name, of one eager step; float32 on the CPU."""
    gc.collect()
    model, lora = build(spec, device)
    generator = torch.Generator().manual_seed(7)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, weight in named.items():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.01)
    kind = variant(spec.variant)
    autocast = torch.autocast(device.type, torch.bfloat16, spec.autocast and SIZES[spec.size].dtype != "fp32")
    # a learning rate of nothing: the step leaves gradients behind, and weights as they are
    optimizer = torch.optim.SGD(lora.parameters(), lr=0.0)
    kept: dict[str, Tensor] = {}
    optimizer.register_step_pre_hook(
        lambda *_: kept.update({n: p.grad.float().cpu() for n, p in named.items() if p.grad is not None})
    )
    shapes, _ = shapes_of(spec, kind, device)
    step = Step(model, optimizer, shapes, autocast, lora.collect_gradients, kind.plain_forward)
    step(Stream(spec, device, False).batch(0))
    return kept


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    sys.exit(main())
