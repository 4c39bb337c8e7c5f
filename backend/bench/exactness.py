"""Measures how exact a route is at full width: padded and unpadded bf16, each compared with an unpadded float32 run."""

from __future__ import annotations

import copy
from typing import Any

from backend.bench.sizes import SIZES
from backend.bench.step import Step, shapes_of
from backend.bench.variants import Spec, variant


def measure_exactness(spec: Spec) -> dict[str, Any]:
    """Root mean square errors of outputs and LoRA gradients, relative to the float32 run's size.

    One image whose bucket leaves the most padding, batch 1, B of the LoRA random and not zero.
    """
    import torch

    from backend.bench.work import DTYPES, Stream, build
    from backend.shapes.attention_routes import MaskedSdpa
    from backend.shapes.shape_runtime import ShapeRuntime

    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, size = variant(spec.variant), SIZES[spec.size]
    static, _ = shapes_of(spec, kind, device)
    model, lora = build(spec, device)
    source = torch.Generator().manual_seed(spec.seed)
    with torch.no_grad():
        for parameter in lora.parameters():
            values = torch.randn(parameter.shape, generator=source) * parameter.shape[-1] ** -0.5
            parameter.copy_(values)
    lora.publish()
    stream = Stream(spec, device, exact=False)
    tokens = [stream.geometry.image_tokens(*bucket) for bucket in stream.buckets]
    padding = [static.image_size([count * size.pictures]) - count * size.pictures for count in tokens]
    most = padding.index(max(padding))
    batch = stream.batch(most)
    dtype = DTYPES[size.dtype]

    def run(net: Any, shapes: Any, autocast: bool) -> tuple[Any, Any]:
        step = Step(net, None, shapes, torch.autocast(device.type, torch.bfloat16, enabled=autocast))
        outs: list[Any] = []
        hook = net.proj_out.register_forward_hook(lambda _m, _a, out: outs.append(out.detach().float()))
        step.forward(batch).backward()
        hook.remove()
        # The last block's text goes nowhere in some families: its layers get no gradient.
        grads = torch.cat([p.grad.float().flatten() for p in net.parameters() if p.grad is not None])
        for parameter in net.parameters():
            parameter.grad = None
        return outs[0][:, : tokens[most]], grads

    half = spec.autocast and dtype != torch.float32
    bare = run(model, ShapeRuntime(route=MaskedSdpa()), half)
    padded = run(model, static, half)
    exact = run(copy.deepcopy(model).float(), ShapeRuntime(route=MaskedSdpa()), False)

    def error(result: Any, reference: Any) -> float:
        return ((result - reference).square().mean().sqrt() / reference.square().mean().sqrt()).item()

    return {
        "padding": padding[most],
        "output_error": error(padded[0], exact[0]),
        "output_error_unpadded": error(bare[0], exact[0]),
        "gradient_error": error(padded[1], exact[1]),
        "gradient_error_unpadded": error(bare[1], exact[1]),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }
