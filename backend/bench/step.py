"""Builds one training step of a bench, and the shapes that it sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.bench.clips import static_counts
from backend.bench.sizes import SIZES
from backend.bench.variants import Spec, Variant
from backend.families.table import family
from backend.shapes import attention_routes


class Step:
    """One optimizer step on a batch; `forward` alone serves validation."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        shapes: Any,
        autocast: Any,
        collect: Callable[[], object] = lambda: None,
        plain_forward: bool = False,
    ) -> None:
        self.model, self.optimizer, self.shapes, self.autocast = model, optimizer, shapes, autocast
        self.collect, self.plain_forward = collect, plain_forward

    def forward(self, batch: Any) -> Any:
        """Mean squared error of what the objective asks for over the batch, float32."""
        import torch

        from backend.bench import diffusers_forward
        from backend.models.family_classes import load_family_of

        ours = load_family_of(type(self.model).__name__).predict
        predict = diffusers_forward.predict if self.plain_forward else ours
        rows = list(zip(batch.latents, batch.noise, batch.sigma, strict=True))
        noisy = [batch.objective.noisy(x, n, level) for x, n, level in rows]
        with self.autocast:
            out = predict(self.model, noisy, batch.sigma, batch.text, 1.0, self.shapes)
        errors = [
            (o - batch.objective.target(x, n, level)).square().mean()
            for o, (x, n, level) in zip(out, rows, strict=True)
        ]
        return torch.stack(errors).mean()

    def __call__(self, batch: Any) -> Any:
        loss = self.forward(batch)
        loss.backward()
        self.collect()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def shapes_of(spec: Spec, kind: Variant, device: Any, folder: Path | None = None) -> tuple[Any, str]:
    """Runtime of the variant, and what was measured of attention for it, in words or empty.

    Eager and the native-size variants use plain SDPA. folder: of the compile cache, which holds earlier measurements.
    """
    from backend.memory.devices import DTYPES

    size = SIZES[spec.size]
    if size.lacks(kind.mode):
        raise ValueError(size.lacks(kind.mode))
    dtype, measured = DTYPES[size.dtype], ""
    if kind.route == "unmasked":
        route = _unmasked_route()
    elif kind.route in PROBED:
        route, measured = _fastest_route(spec, device, dtype, folder, kind.route == "noextras")
    else:
        route = attention_routes.choose_route(kind.route, device, dtype)
    from backend.shapes.shape_runtime import ShapeRuntime  # of the compiler, which a refused route does not need

    geometry = family(size.family).default_geometry
    clips = [geometry.image_tokens(*clip) for clip in spec.buckets]
    counts = static_counts(clips) or (size.tokens * size.pictures,)
    static = counts if kind.mode == "static" else None
    longest = max(counts) + size.text_tokens if kind.mode == "dynamic" else None
    captions, text = tuple(size.read + length for length in spec.captions) or None, size.text_tokens
    if kind.compile is None and size.masked_text:
        # Eager gains nothing by equal lengths: it runs on real tokens alone, as fast as it can.
        captions, text = None, None
    # As the plan of a run has it: no mask where no clip is padded.
    padded = not clips or not set(clips) <= set(counts)
    runtime = ShapeRuntime(kind.mode, static, captions, text, route, padding=padded, longest=longest)
    if kind.compile is not None:
        runtime.expect_graphs(kind.dynamic, device, dtype)
    return runtime, measured


PROBED = ("auto", "noextras")
"""Routes of variants that stand for the one that a probe finds."""
_EXTRAS = ("flash2", "fa3", "fa4")


def _fastest_route(spec: Spec, device: Any, dtype: Any, folder: Path | None, plain: bool) -> tuple[Any, str]:
    """The route that a probe finds for the spec's padded rows, and its times. plain: without flash packages."""
    from backend.shapes import attention_probe

    size = SIZES[spec.size]
    heads, width = size.config["num_attention_heads"], size.config["attention_head_dim"]
    form = attention_probe.AttentionForm(
        batch=spec.batch,
        tokens=size.tokens * size.pictures + size.text_tokens,
        heads=heads,
        width=width,
        dtype=dtype,
        padded=True,
        backend=spec.backend,
    )
    routes, left_out = attention_probe.candidates(device, form)
    routes = {name: route for name, route in routes.items() if not (plain and name in _EXTRAS)}
    result = attention_probe.fastest_route(device, form, folder, routes, left_out)
    times = ", ".join(f"{name} {each} ms" for name, each in result.milliseconds.items())
    failed = "".join(f"; {name}: {why}" for name, why in result.left_out.items() if name in routes)
    return routes[result.route], f" (measured: {times}{failed})"


def _unmasked_route() -> Any:
    """Padding attended like anything else: what static tokens cost without being exact. Only the bench has it."""
    from backend.shapes import attention_routes, padding

    class Unmasked(attention_routes.Route):
        name, detail = "unmasked", "plain SDPA over padding and all"

        def prepare(self, runs: Any, device: Any) -> Any:
            return padding.pad_counts(runs, device)

        def attend(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
            return attention_routes.plain_attention(q, k, v)

    return Unmasked()
