"""Measures which attention route is fastest on this GPU for a run's shape, and remembers it on disk.

Each route that can be had here runs forward and backward in a small function, compiled as the run's blocks are, and is
compared with SDPA. What is exact and fastest wins; the answer lies in a file beside the compile cache, which is one
folder a GPU and torch version. An answer with a route that failed holds for the versions that it failed with, and a
route that there was no time for is measured once more, by a later run.
"""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.base.files import write_atomic
from backend.shapes import attention_routes, padding
from backend.shapes.attention_routes import Route

log = logging.getLogger(__name__)

FILE = "attention.json"
"""In the folder of the compile cache of this GPU and torch version."""
MARGIN = 0.02
"""Least part of the time that a route has to save over the ones before it: less is noise."""

_UNIT = 512
"""Tokens are rounded to multiples of this, so that runs of nearly one size share an answer."""
_MOST_NUMBERS = 1 << 25
"""Of each of q, k and v: more rows and heads than fill a GPU change no ranking, and video would take gigabytes."""
_PADDED = 0.03
"""Part of a row that is padding where rows are padded, as buckets of one token count have it."""
_APART = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 3e-2}
"""Most that output and gradients may differ from SDPA's, as a share of their length."""
_SECONDS = 0.3
"""Time to measure each route for, after it is compiled; at least three passes."""
_MOST_SECONDS = 90.0
"""For all routes, compiling included: what is not measured by then is left out."""
_SEGMENTS = ("varlen", "flash2")
"""Routes whose kernels see padded rows alone."""
_FULL = "too little of the GPU's memory is free to measure attention"
_PACKAGES = ("flash-attn", "flash-attn-4", "flash_attn_3")
_COMPILERS = ("torch", "triton", "nvidia-cutlass-dsl")
"""What else decides whether a kernel works here. A new one makes no other one the fastest, so names no entry."""
_LATE = "not measured: "
"""How the reason begins of a route that there was no time for; any other one of an entry is a failure."""
_MOST_TRIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionForm:
    """What decides how fast a kernel is: sizes of q, k and v (batch, tokens, heads, width), their dtype, and masks.

    padded: rows carry a mask. backend: torch.compile's backend of the blocks, None where they run eagerly.
    fixed: graphs are of fixed sizes.
    """

    batch: int
    tokens: int
    heads: int
    width: int
    dtype: torch.dtype
    padded: bool
    backend: str | None = "inductor"
    fixed: bool = True

    @property
    def rounded(self) -> AttentionForm:
        """The form that stands for all of its class: tokens in steps of 512, and no more than fills a GPU."""
        tokens = max(_UNIT, round(self.tokens / _UNIT) * _UNIT)
        heads = max(1, min(self.heads, _MOST_NUMBERS // (tokens * self.width)))
        batch = max(1, min(self.batch, _MOST_NUMBERS // (tokens * self.width * heads)))
        return replace(self, batch=batch, tokens=tokens, heads=heads)

    @property
    def words(self) -> str:
        """``1 x 4608 tokens, 24 heads of 128, bfloat16, padded``."""
        dtype, rows = str(self.dtype).removeprefix("torch."), "padded" if self.padded else "not padded"
        sizes = f"{self.batch} x {self.tokens} tokens, {self.heads} heads of {self.width}, {dtype}, {rows}"
        return sizes if self.fixed else f"{sizes}, open sizes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a probe found. route: the winner; milliseconds: of a forward and backward pass, by route.

    left_out: why a route was not measured or is not exact. cached: read from the file, not measured now.
    """

    route: str
    milliseconds: Mapping[str, float]
    left_out: Mapping[str, str]
    cached: bool = False


def candidates(device: torch.device, form: AttentionForm) -> tuple[dict[str, Route], dict[str, str]]:
    """Routes that can be had for a form, the usual choice first, and why the others can't."""
    routes: dict[str, Route] = {}
    left_out: dict[str, str] = {}
    for name in (*attention_routes.AUTO_ORDER, *attention_routes.ROUTES):
        if name in routes or name in left_out:
            continue
        why = attention_routes.route_problem(name, device, form.dtype)
        if why is None and name == "flex" and (form.backend != "inductor" or not form.fixed):
            why = "flex attention is fast only inside blocks that inductor compiles for fixed sizes"
        if why is None and name in _SEGMENTS and not form.padded:
            why = f"without padding {name} is what sdpa is"
        if why is None:
            try:
                routes[name] = attention_routes.make_route(name, device, form.dtype)
            except Exception as error:  # noqa: BLE001 - a package of another version lacks something of its own
                why = _failure(error)
        if why is not None:
            left_out[name] = why
        elif not form.fixed and attention_routes.has_flash(device, form.dtype):
            routes[name].open_sizes()
    return routes, left_out


def fastest_route(
    device: torch.device,
    form: AttentionForm,
    folder: Path | None,
    routes: Mapping[str, Route],
    left_out: Mapping[str, str] | None = None,
) -> Measurement:
    """The fastest exact one of `routes`, from the file in `folder` or measured now.

    ValueError where none computes, or where memory ran out, which says nothing about any of them.

    routes: the usual choice first, which stays unless another one is faster by MARGIN. folder: of the compile cache;
    None measures each time.
    """
    form = form.rounded
    key = _key(form, routes)
    known = _read(folder).get(key) if folder is not None else None
    if known is not None and not _holds_here(known, routes):
        known = None
    late = [name for name in known["left_out"] if name in routes and _is_late(known, name)] if known else []
    if known is not None and not (late and known.get("tries", 1) < _MOST_TRIES):
        return Measurement(
            route=known["route"],
            milliseconds=known["milliseconds"],
            left_out={**(left_out or {}), **known["left_out"]},
            cached=True,
        )
    # what won then is measured again beside those that were late
    again = [name for name in routes if known is None or name in (known["route"], *late)]
    times, wrong = _measured(device, form, {name: routes[name] for name in again})
    if known is not None:
        before = {**known["milliseconds"], **times}
        times = {name: before[name] for name in routes if name in before and name not in wrong}
        wrong = {name: why for name, why in known["left_out"].items() if name not in again} | wrong
    if not times:
        raise ValueError(f"no attention route computes here: {'; '.join(f'{n}: {why}' for n, why in wrong.items())}")
    route = winner(times)
    if folder is not None:
        tries = 1 if known is None else known.get("tries", 1) + 1
        entry = {"route": route, "milliseconds": times, "left_out": wrong, "versions": _versions(), "tries": tries}
        _write(folder, key, entry)
    return Measurement(route=route, milliseconds=times, left_out={**(left_out or {}), **wrong})


def _holds_here(entry: Mapping[str, Any], routes: Mapping[str, Route]) -> bool:
    """Whether an entry's winner can be had, and whatever failed would fail again: the versions are the same."""
    failed = any(not _is_late(entry, name) for name in entry["left_out"])
    return entry["route"] in routes and (not failed or entry.get("versions") == _versions())


def _is_late(entry: Mapping[str, Any], name: str) -> bool:
    return entry["left_out"][name].startswith(_LATE)


def winner(times: Mapping[str, float]) -> str:
    """The route to take of those measured, the usual choice first."""
    first, *others = times
    best = first
    for name in others:
        if times[name] < times[best] * (1 - (MARGIN if best == first else 0.0)):
            best = name
    return best


def _measured(
    device: torch.device, form: AttentionForm, routes: Mapping[str, Route]
) -> tuple[dict[str, float], dict[str, str]]:
    """Milliseconds of a pass by route, and why a route has none."""
    if device.type == "cuda":
        attention_routes.pin_sdpa_backends()
    log.info("measuring attention once for this GPU, of %s: %s", form.words, ", ".join(routes))
    try:
        inputs, wanted = _inputs(device, form), None
    except torch.OutOfMemoryError:
        raise ValueError(_FULL) from None
    times: dict[str, float] = {}
    wrong: dict[str, str] = {}
    began = time.monotonic()
    for name, route in routes.items():
        if times and time.monotonic() - began > _MOST_SECONDS:
            wrong[name] = f"{_LATE}the others took {_MOST_SECONDS:.0f} s"
            continue
        try:
            if wanted is None:
                wanted = _results(_pass_of(attention_routes.MaskedSdpa(), form, inputs, None), inputs)
            run = _pass_of(route, form, inputs, form.backend)
            apart = _furthest(_results(run, inputs), wanted)
            if not apart <= _APART[form.dtype]:
                wrong[name] = f"its result is {apart:.1%} away from SDPA's"
                continue
            times[name] = _milliseconds(run, device)
        except torch.OutOfMemoryError:
            raise ValueError(_FULL) from None
        except Exception as error:  # noqa: BLE001 - a binary package that does not fit fails in its own way
            wrong[name] = _failure(error)
            log.warning("attention = auto passes over %s: %s", name, wrong[name])
    if device.type == "cuda":
        del inputs, wanted
        torch.cuda.empty_cache()
    return times, wrong


def _failure(error: Exception) -> str:
    return f"it fails here ({type(error).__name__}: {next(iter(str(error).splitlines()), '')})"


def _inputs(device: torch.device, form: AttentionForm) -> list[Tensor]:
    """q, k, v (B, S, H, D) that want a gradient, and the output's gradient."""
    source = torch.Generator(device).manual_seed(0)
    size = (form.batch, form.tokens, form.heads, form.width)
    made = [torch.randn(size, generator=source, device=device).to(form.dtype) for _ in range(4)]
    return [*(tensor.requires_grad_() for tensor in made[:3]), made[3]]


def _pass_of(route: Route, form: AttentionForm, inputs: Sequence[Tensor], backend: str | None) -> Callable[[], Tensor]:
    """A forward and backward pass through `route` as a block has it; gives the output, its padding zero."""
    spans = padding.joint_spans((0,) * form.batch, (_real(form),) * form.batch, 0, form.tokens)
    query, key, value, dout = inputs
    mask = route.prepare(spans, query.device) if form.padded else None

    def block(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        # What stands before and after attention in a block, which the compiler joins to it where it can.
        q, k = (torch.nn.functional.rms_norm(t, t.shape[-1:]) for t in (q, k))
        return route.attend(q, k, v, mask) * 1.0

    function = block if backend is None else torch.compile(block, backend=backend, dynamic=False)
    real = torch.zeros(form.tokens, device=query.device, dtype=torch.bool)
    real[: _real(form)] = True
    gradient = torch.where(real[:, None, None], dout, 0.0) if form.padded else dout

    def run() -> Tensor:
        with torch.enable_grad():
            out = function(query, key, value, mask)
        out.backward(gradient)
        return torch.where(real[:, None, None], out.detach(), 0.0) if form.padded else out.detach()

    return run


def _real(form: AttentionForm) -> int:
    return form.tokens - int(form.tokens * _PADDED) if form.padded else form.tokens


def _results(run: Callable[[], Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Output and gradients of q, k and v of one pass."""
    leaves = inputs[:3]
    for leaf in leaves:
        leaf.grad = None
    out = run()
    results = [out, *(leaf.grad for leaf in leaves)]
    for leaf in leaves:
        leaf.grad = None
    return results


def _furthest(results: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Largest distance of a result from the wanted one, as a share of its length."""
    shares = [
        (a.float() - b.float()).norm() / b.float().norm().clamp(min=1e-12) for a, b in zip(results, wanted, strict=True)
    ]
    return float(torch.stack(shares).max())


def _milliseconds(run: Callable[[], Tensor], device: torch.device) -> float:
    """Median time of a pass, at least three of them; the caller has run it once."""
    run()
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    times: list[float] = []
    wait()
    while len(times) < 3 or (sum(times) < _SECONDS and len(times) < 30):
        began = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - began)
    return round(1000 * statistics.median(times), 4)


def _key(form: AttentionForm, routes: Mapping[str, Route]) -> str:
    """Name of an entry: the form, and whatever else may change the answer on one GPU and torch version."""
    return "; ".join([form.words, form.backend or "eager", ",".join(routes), *_installed(_PACKAGES)])


def _versions() -> list[str]:
    return _installed((*_COMPILERS, *_PACKAGES))


def _installed(packages: Sequence[str]) -> list[str]:
    """``flash-attn 2.8.3`` for each of the packages that is here."""
    versions = []
    for package in packages:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return versions


def _read(folder: Path) -> dict[str, dict[str, Any]]:
    """Entries of the file that are whole; none where it is missing or broken."""
    try:
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {key: entry for key, entry in data.items() if _is_whole(entry)}
    except (OSError, ValueError, AttributeError):
        return {}


def _is_whole(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("route"), str)
        and _holds(entry.get("milliseconds"), int | float)
        and _holds(entry.get("left_out"), str)
        and isinstance(entry.get("tries", 1), int)
    )


def _holds(values: Any, kind: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(value, kind) for value in values.values())


def _write(folder: Path, key: str, entry: dict[str, Any]) -> None:
    """Add an entry; a disk that takes none costs the next run a measurement, and nothing else."""
    try:
        write_atomic(folder / FILE, json.dumps(_read(folder) | {key: entry}, indent=1))
    except OSError as error:
        log.warning("what was measured of attention could not be kept: %s", error)
