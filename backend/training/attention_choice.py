"""Chooses a run's attention route: as set, as before a resume, or with auto what is measured fastest here."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import torch
from torch import nn

from backend.base.errors import Refused
from backend.config.family_defaults import shape_mode_of
from backend.config.schema import Config
from backend.runs import record
from backend.runs.events.kinds import AttentionEvent, WarningEvent
from backend.shapes import attention_probe, attention_routes
from backend.shapes.attention_probe import AttentionForm
from backend.shapes.attention_routes import Route
from backend.shapes.shape_runtime import may_pad
from backend.training.inputs import Inputs
from backend.training.run_context import RunContext

log = logging.getLogger(__name__)

FIELD = "attention"
"""Of a run's record: the route that it trains with."""
FEWEST_STEPS = 200
"""A shorter run would spend more on measuring than it could gain."""


def choose_attention(
    context: RunContext, inputs: Inputs, denoiser: nn.Module, dtype: torch.dtype, cache: Path | None, resumed: bool
) -> Route:
    """The run's route, written into its record and told as an event. Refused when the one set has no kernel here.

    dtype: of the denoiser's arithmetic. cache: the compile cache's folder. resumed: the run continues from a state, and
    keeps what it trained with, so that it ends as if it had not been interrupted.
    """
    setting, device = inputs.cfg.compile.attention, inputs.device
    if setting != "auto":
        try:
            route = attention_routes.choose_route(setting, device, dtype)
        except ValueError as error:
            raise Refused.from_error(error, "compile.attention") from error
        return _told(context, route, AttentionEvent(route=route.name, detail=route.detail, how="set"))
    if resumed:
        route = _kept(context, device, dtype)
        if route is not None:
            return _told(context, route, AttentionEvent(route=route.name, detail=route.detail, how="kept"))
    form = attention_form(inputs, denoiser, dtype)
    reason = _why_unmeasured(inputs, form, resumed)
    if not reason and form is not None:
        event = _measured(device, form, cache)
        if event.how != "usual":
            return _told(context, attention_routes.make_route(event.route, device, dtype), event)
        reason = event.reason or ""
    route = attention_routes.choose_route("auto", device, dtype)
    return _told(context, route, AttentionEvent(route=route.name, detail=route.detail, reason=reason))


def attention_form(inputs: Inputs, denoiser: nn.Module, dtype: torch.dtype) -> AttentionForm | None:
    """What the run's largest attention looks like; None where the denoiser's blocks or the plan don't say."""
    cfg, plan = inputs.cfg, inputs.plan
    heads = heads_of(denoiser)
    if heads is None or not plan.graphs.training:
        return None
    shape = max(plan.graphs.training, key=lambda shape: shape.batch * (shape.image_tokens + shape.text_tokens))
    mode = shape_mode_of(cfg)
    padded = (mode == "static" and may_pad(cfg, plan)) or (plan.caption_buckets is not None and shape.batch > 1)
    padded = padded or inputs.family.text_rule == "masked"
    return AttentionForm(
        batch=shape.batch,
        tokens=shape.image_tokens + shape.text_tokens,
        heads=heads[0],
        width=heads[1],
        dtype=dtype,
        padded=padded,
        backend=cfg.compile.compile_backend if cfg.compile.compile else None,
        fixed=_is_fixed(cfg, mode, padded),
    )


def _is_fixed(cfg: Config, mode: str, padded: bool) -> bool:
    """Whether blocks have graphs of fixed sizes, or none, as `ShapeRuntime.expect_graphs` has it.

    Unpadded rows of a static shape go through the operator for open sizes unless compile_dynamic is false.
    """
    if not cfg.compile.compile or mode == "exact_buckets" or (mode == "static" and padded):
        return True
    return mode != "dynamic" and cfg.compile.compile_dynamic == "false"


def heads_of(denoiser: nn.Module) -> tuple[int, int] | None:
    """Heads and their width of most of the attention layers; None where there are none that say."""
    sizes = Counter(
        (module.heads, module.inner_dim // module.heads)
        for module in denoiser.modules()
        if isinstance(getattr(module, "heads", None), int) and isinstance(getattr(module, "inner_dim", None), int)
    )
    return sizes.most_common(1)[0][0] if sizes else None


def _kept(context: RunContext, device: torch.device, dtype: torch.dtype) -> Route | None:
    """The route that the run's record names, where it can be had here; a warning where it can't."""
    name = context.run.record().get(FIELD)
    if name not in attention_routes.ROUTES:
        return None
    why = attention_routes.route_problem(name, device, dtype)
    if why is None:
        return attention_routes.make_route(name, device, dtype)
    text = f"The run has trained with {name} attention, which cannot be used now: {why}"
    remedy = "It continues with another kernel: the same arithmetic, rounded in another order."
    context.events.write(WarningEvent(text=text, remedy=remedy))
    log.warning("%s %s", text, remedy)
    return None


def _why_unmeasured(inputs: Inputs, form: AttentionForm | None, resumed: bool) -> str:
    """Why auto takes its usual order and measures nothing; empty when it measures."""
    if inputs.device.type != "cuda":
        return f"nothing is measured on {inputs.device.type}"
    if form is None:
        return "the plan has no shape to measure"
    if resumed:
        return "a run that continues is not measured"
    if inputs.cfg.training.deterministic:
        return "a deterministic run takes the usual order, whatever is faster"
    steps = inputs.plan.steps.steps
    return f"{steps} steps are too few for measuring to pay" if steps < FEWEST_STEPS else ""


def _measured(device: torch.device, form: AttentionForm, cache: Path | None) -> AttentionEvent:
    """What a probe found, or with ``usual`` why it was not needed or failed."""
    routes, left_out = attention_probe.candidates(device, form)
    if len(routes) < 2:
        return AttentionEvent(route="", reason="there is one kernel to choose from", left_out=left_out)
    try:
        result = attention_probe.fastest_route(device, form, cache, routes, left_out)
    except ValueError as error:
        return AttentionEvent(route="", reason=str(error))
    return AttentionEvent(
        route=result.route,
        detail=routes[result.route].detail,
        how="remembered" if result.cached else "measured",
        milliseconds=dict(result.milliseconds),
        left_out=dict(result.left_out),
        form=form.rounded.words,
    )


def _told(context: RunContext, route: Route, event: AttentionEvent) -> Route:
    """Write the choice into the record, the events and the log."""
    record.update(context.run.record_path, lambda fields: {**fields, FIELD: route.name})
    context.events.write(event)
    times = ", ".join(f"{name} {each:.3g} ms" for name, each in (event.milliseconds or {}).items())
    log.info("attention: %s (%s), %s%s", route.name, route.detail, event.how, f": {times}" if times else "")
    if event.reason:
        log.info("attention: %s", event.reason)
    for name, why in (event.left_out or {}).items():
        log.info("attention: without %s: %s", name, why)
    return route
