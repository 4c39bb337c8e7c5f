"""Finds what to know about a plan: what is enlarged, cropped, left out, never trained, extra graphs, the best mode."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from backend.config.family_defaults import ShapeMode
from backend.config.graph_choice import RECORDING_MODES, recording_of
from backend.dataset.buckets import BucketTable, bucket_table, tokens_of, whole_step
from backend.dataset.items import DatasetScan, Finding, Item, count_of, name_files
from backend.plan import image_findings
from backend.plan.mode_plan import fitting_frames, fitting_size, prompt_tokens, sampling_is_on
from backend.plan.plan import Plan
from backend.plan.training_findings import experts, picture_losses, regularization

if TYPE_CHECKING:
    from backend.config.schema import Config

# Padding costs time in every layer: with more than this share of it, open sizes are the better bargain.
_MUCH_PADDING = 0.12
# Cropping worth naming a picture for.
_MUCH_CROP = 0.1
# Enlarging worth naming a picture for: less comes from rounding to the step. Above the second it costs sharpness.
_ENLARGED = 1.05
_MUCH_ENLARGED = 2.0


def plan_findings(cfg: Config, scan: DatasetScan, plan: Plan) -> Iterable[Finding]:
    """Everything to say about the chosen mode, errors first."""
    mode = plan.chosen
    if mode.impossible is not None:
        yield Finding("no_buckets", "error", mode.impossible, "", (), "dataset.resolution")
        return
    if plan.geometry.most_side is not None:
        yield from _too_long(cfg, plan, plan.geometry.most_side * plan.geometry.pixels_per_token)
    if scan.train.items:
        yield from _steps(cfg, plan)
        yield from experts(cfg, plan.steps.steps)
        yield from regularization(cfg, plan)
        yield from image_findings.masks(cfg, plan)
        yield from image_findings.variants(plan)
        yield from _left_out(cfg, plan)
        yield from _scaled(cfg, plan)
        yield from _cropped(cfg, plan)
    yield from _sampling(cfg, plan)
    yield from picture_losses(cfg, plan)
    yield from _settings(cfg, plan)


def recommend(cfg: Config, plan: Plan) -> tuple[ShapeMode, str]:
    """The shape mode that suits these pictures, and why, in words."""
    static, exact, off = (plan.modes[mode] for mode in ("static", "exact_buckets", "off"))
    if static.impossible is not None and exact.impossible is None:
        return _without_static(plan)
    if not plan.items or static.impossible is not None:
        return "static", "One token count for every image needs one graph, whatever the sizes are."
    sizes = len({fit.bucket.tokens for fit in off.fits})
    if not cfg.compile.compile and plan.batch_size == 1:
        return "off", "Nothing is compiled and each batch has one image, so padding would only cost time."
    if len({*off.graphs.training, *off.graphs.sampling, *off.graphs.validation}) == 1:
        return "static", "All images and samples already have one shape: one graph, and no padding."
    if static.padding > _MUCH_PADDING:
        return "dynamic", (
            f"The images differ so much in size that static would pad {static.padding:.0%} of all image tokens. "
            f"dynamic compiles once for all {count_of(sizes, 'token count')} and pads nothing."
        )
    kept = len(static.static_token_counts)
    become = "become one" if kept == 1 else f"become {kept}, one for clips of each length"
    reason = (
        f"{count_of(sizes, 'different token count')} {become}, with {static.padding:.1%} padding, masked exactly: "
        f"{count_of(static.graphs.per_class, 'graph')} a block class, where separate sizes would need "
        f"{_fixed_graphs(plan)}"
    )
    if plan.batch_size > 1 and len(off.never) + off.steps.left_per_epoch > static.steps.left_per_epoch:
        reason += "; images of all sizes share batches, so fewer are left out"
    if exact.impossible is None and exact.crop <= static.crop + 0.01:
        reason += (
            f". exact_buckets would pad nothing, but needs {count_of(exact.graphs.per_class, 'graph')} a block class "
            f"and {exact.crop:.1%} mean cropping (static: {static.crop:.1%})"
        )
    return "static", reason + "."


def _without_static(plan: Plan) -> tuple[ShapeMode, str]:
    """The mode for a family or a table that can't have static."""
    exact, off = plan.modes["exact_buckets"], plan.modes["off"]
    if not plan.compile:
        return "off", "Nothing is compiled, and buckets in equal steps crop least."
    if off.impossible is None and off.graphs.per_class <= exact.graphs.per_class:
        return "off", f"The images make {count_of(off.graphs.per_class, 'graph')} a block class as they are."
    return "exact_buckets", (
        f"{count_of(exact.graphs.per_class, 'graph')} a block class for all sizes, without padding and with "
        f"{exact.crop:.1%} mean cropping (off: {count_of(off.graphs.per_class, 'graph')}, {off.crop:.1%}). "
        f"No static: {_static_reason(plan)}."
    )


def _static_reason(plan: Plan) -> str:
    """Why there is no static plan, without the family's name and a full stop."""
    return (plan.modes["static"].impossible or "").partition(": ")[2].rstrip(".") or "no bucket fits"


def _fixed_graphs(plan: Plan) -> int:
    """Graphs a class would need if every shape of the mode off had its own."""
    graphs = plan.modes["off"].graphs
    return len(set(graphs.training)) + len({*graphs.validation, *graphs.sampling})


def _steps(cfg: Config, plan: Plan) -> Iterable[Finding]:
    steps = plan.steps
    if steps.batches_per_epoch == 0:
        text = f"No batch can be made: no group of images is large enough for a batch of {plan.batch_size}"
        yield Finding("no_batches", "error", text, "Lower batch_size, or add images.", (), "dataset.batch_size")
    elif steps.steps == 0:
        text = (
            f"The run has no step: {count_of(steps.asked_epochs or 0, 'epoch')} make {steps.batches_over} batches, and "
            f"one step needs {steps.batches_per_step}"
        )
        lower = "gradient_accumulation_steps" + (" or num_processes" if steps.processes > 1 else "")
        remedy = f"Lower {lower}, or raise max_train_epochs."
        yield Finding("no_steps", "error", text, remedy, (), "training.gradient_accumulation_steps")
    elif steps.batches_over:
        text = f"The last {count_of(steps.batches_over, 'batch')} are not enough for a step"
        yield Finding("batches_over", "note", text, "", (), "training.gradient_accumulation_steps")
    if 0 < steps.epochs < 1 and cfg.dataset.sample_ratio >= 1:
        share = f"{steps.epochs:.0%}" if steps.epochs >= 0.01 else f"{steps.epochs:.2%}"
        text = f"The run ends after {share} of the first epoch: not all images are trained"
        remedy = f"Set max_train_steps to {math.ceil(steps.batches_per_epoch / steps.batches_per_step)} or more."
        yield Finding("short_run", "warning", text, remedy, (), "training.max_train_steps")


def _too_long(cfg: Config, plan: Plan, most: int) -> Iterable[Finding]:
    """Sizes with a side above `most` px, where the model's positions end."""
    pairs = [*zip(plan.items, plan.fits, strict=True)]
    for name, fits in plan.validation_fits.items():
        pairs += zip(plan.validation[name], fits, strict=True)
    longer = [item.path for item, fit in pairs if max(fit.bucket.width, fit.bucket.height) > most]
    end = f"and this model supports at most {most} px"
    if longer:
        names = name_files([path.name for path in longer])
        text = f"{count_of(len(longer), 'image')} would have a longer side than the model supports, {end}: {names}"
        remedy = f"Set max_bucket_size to {most} or less."
        yield Finding("too_long", "error", text, remedy, tuple(map(str, longer)), "dataset.max_bucket_size")
    for index, prompt in enumerate(cfg.sampling.prompts if sampling_is_on(cfg) else ()):
        size = fitting_size(prompt.width, prompt.height, plan.geometry)
        if max(size) > most:
            text = f"Sample {index + 1} is {size[0]}x{size[1]} px, {end}"
            yield Finding("too_long", "error", text, "Make it smaller.", (), f"sampling.prompts[{index}].width")


def _left_out(cfg: Config, plan: Plan) -> Iterable[Finding]:
    mode, steps = plan.chosen, plan.steps
    if mode.never and steps.batches_per_epoch:
        files = tuple(str(plan.items[index].path) for index in mode.never)
        names = name_files([plan.items[index].path.name for index in mode.never])
        few = sum(1 for group in steps.groups if not group.used)
        text = (
            f"{count_of(len(files), 'image')} never trained: {count_of(few, 'group')} of equal size with fewer than "
            f"batch_size = {plan.batch_size}: {names}"
        )
        remedy = "Lower batch_size, or add images of these sizes."
        if plan.mode != "static" and len(plan.modes["static"].never) < len(files) and not _lacks(plan, "static"):
            remedy = "Set shape_mode to static, where all sizes share batches, or batch_size to 1."
        yield Finding("never_trained", "warning", text, remedy, files, "dataset.batch_size")
    falling = sum(group.left for group in steps.groups if group.used)
    if falling:
        what = (
            count_of(falling, "image") if steps.images == steps.entries else f"{falling:,} of {steps.entries:,} turns"
        )
        if plan.sample_ratio < 1:
            text = f"{what} left out of each epoch by sample_ratio {plan.sample_ratio:g}, others each time"
            yield Finding("sampled", "note", text, "", (), "dataset.sample_ratio")
        else:
            text = f"{what} left over by incomplete batches in each epoch, others each time"
            yield Finding("left_over", "note", text, "", (), "dataset.batch_size")
    partial = sorted({group.used % plan.batch_size for group in steps.groups} - {0})
    if partial:
        sizes = ", ".join(map(str, partial))
        text = f"With sample_ratio below 1 incomplete batches are kept: batches of {sizes} add graphs"
        remedy = "Set sample_ratio to 1, or batch_size to 1, to have batches of one size."
        yield Finding("partial_batches", "note", text, remedy, (), "dataset.sample_ratio")


def _scaled(cfg: Config, plan: Plan) -> Iterable[Finding]:
    fits = plan.fits
    larger = [index for index, fit in enumerate(fits) if fit.scale > _ENLARGED]
    if larger:
        most = max(fits[index].scale for index in larger)
        worst = sorted(larger, key=lambda index: -fits[index].scale)
        names = name_files([plan.items[index].path.name for index in worst])
        text = f"{count_of(len(larger), 'image')} smaller than their bucket, enlarged up to {most:.3g} times: {names}"
        remedy = "Turn on no_upscale to keep them at their own size, or remove small ones."
        if cfg.dataset.no_upscale and plan.mode == "exact_buckets":
            remedy = "no_upscale does not work with exact_buckets; choose another shape_mode to use it."
        elif cfg.dataset.no_upscale:
            remedy = "They are smaller than one token or step; remove them."
        files = tuple(str(plan.items[index].path) for index in worst)
        severity = "warning" if most > _MUCH_ENLARGED else "note"
        yield Finding("enlarged", severity, text, remedy, files, "dataset.no_upscale")
    asked, count = tokens_of(cfg.dataset.resolution, plan.geometry), cfg.compile.static_token_count
    if plan.mode == "static" and count is not None and count < asked:
        side = math.isqrt(count) * plan.geometry.pixels_per_token
        over = _above(cfg, plan, count)
        text = (
            f"static_token_count {count} is less than the {asked} tokens of {cfg.dataset.resolution} px: "
            f"{count_of(len(over), 'image')} scaled to fit, to about {side} x {side} px"
        )
        remedy = f"Raise static_token_count to {asked}, or lower resolution to {side}."
        files = tuple(str(plan.items[index].path) for index in over)
        yield Finding("scaled_to_fit", "warning", text, remedy, files, "compile.static_token_count")


def _above(cfg: Config, plan: Plan, count: int) -> list[int]:
    """Items that would have more than `count` tokens at the resolution's own buckets."""
    data = cfg.dataset
    try:
        table = bucket_table(
            data.resolution,
            data.min_bucket_size,
            data.max_bucket_size,
            data.bucket_step,
            plan.geometry,
            data.no_upscale,
            "static",
        )
    except ValueError:
        return list(range(len(plan.items)))
    return [i for i, item in enumerate(plan.items) if table.assign(item.width, item.height).bucket.tokens > count]


def _lacks(plan: Plan, mode: ShapeMode) -> bool:
    """Whether a shape mode is no way out: these pictures or this family can't have it."""
    return plan.modes[mode].impossible is not None


def _nearer_limit(cfg: Config, plan: Plan, table: BucketTable, item: Item) -> tuple[str, str]:
    """The setting that keeps a picture from a bucket of its own aspect ratio, and what to do with it."""
    ratio = max(item.width / item.height, item.height / item.width)
    # Sides of the picture at the table's area, in whole steps.
    area = table.budget * table.geometry.pixels_per_token**2
    short = max(1, int(math.sqrt(area / ratio)) // table.step) * table.step
    long = math.ceil(math.sqrt(area * ratio) / table.step) * table.step
    data, changes = cfg.dataset, []
    if short < data.min_bucket_size:
        changes.append(("dataset.min_bucket_size", f"lower min_bucket_size to {short} or less"))
    if long > data.max_bucket_size:
        changes.append(("dataset.max_bucket_size", f"raise max_bucket_size to {long} or more"))
    if not changes:
        longer = [mode for mode in ("static", "dynamic") if mode != plan.mode and not _lacks(plan, mode)]
        words = f"Set shape_mode to {' or '.join(longer)}, whose buckets are longer" if longer else "Lower bucket_step"
        return "compile.shape_mode" if longer else "dataset.bucket_step", words
    text = " and ".join(change for _, change in changes)
    return changes[0][0], text[0].upper() + text[1:]


def _cropped(cfg: Config, plan: Plan) -> Iterable[Finding]:
    fits = plan.fits
    beyond = sorted((i for i, fit in enumerate(fits) if fit.beyond), key=lambda i: -fits[i].crop)
    if beyond:
        table = plan.chosen.table
        assert table is not None
        limit = max(max(b.width / b.height, b.height / b.width) for b in table.buckets)
        names = name_files([plan.items[index].path.name for index in beyond])
        text = (
            f"{count_of(len(beyond), 'image')} longer than any bucket ({limit:.3g} to 1), cropped by up to "
            f"{fits[beyond[0]].crop:.0%}: {names}"
        )
        setting, change = _nearer_limit(cfg, plan, table, plan.items[beyond[0]])
        remedy = f"{change}, crop them yourself, or remove them."
        yield Finding("beyond_limits", "warning", text, remedy, _files(plan, beyond), setting)
    much = sorted((i for i, f in enumerate(fits) if f.crop > _MUCH_CROP and not f.beyond), key=lambda i: -fits[i].crop)
    if much:
        names = name_files([plan.items[index].path.name for index in much])
        text = f"{count_of(len(much), 'image')} cropped by {_MUCH_CROP:.0%} to {fits[much[0]].crop:.0%}: {names}"
        remedy = "Lower bucket_step: smaller steps have buckets nearer to them."
        if plan.mode == "exact_buckets":
            nearer = [mode for mode in ("static", "dynamic", "off") if not _lacks(plan, mode)]
            remedy = f"Set shape_mode to {' or '.join(nearer)}, with buckets nearer to them."
        elif whole_step(cfg.dataset.bucket_step, plan.geometry) <= plan.geometry.pixels_per_token:
            remedy = "Crop them yourself, or remove them."
        yield Finding("cropped", "note", text, remedy, _files(plan, much), "dataset.bucket_step")


def _sampling(cfg: Config, plan: Plan) -> Iterable[Finding]:
    if not sampling_is_on(cfg):
        return
    counts = {shape.image_tokens for shape in (*plan.graphs.training, *plan.graphs.validation)}
    for index, prompt in enumerate(cfg.sampling.prompts):
        setting = f"sampling.prompts[{index}].width"
        size = fitting_size(prompt.width, prompt.height, plan.geometry)
        tokens = prompt_tokens(prompt, plan.references)
        frames = fitting_frames(prompt.frames, plan.geometry, plan.references.video)
        length = "" if frames == 1 else f", {frames} frames"
        name = f"Sample {index + 1} ({size[0]}x{size[1]}{length}, {tokens} tokens)"
        if size != (prompt.width, prompt.height):
            text = f"{name} is made at that size: {prompt.width}x{prompt.height} is not a whole number of tokens"
            yield Finding("sample_size", "note", text, "", (), setting)
        if plan.references.video is not None and prompt.frames not in (None, frames):
            text = f"{name} is made with {count_of(frames, 'frame')}: {prompt.frames} is no length of this model's"
            yield Finding("sample_size", "note", text, "", (), f"sampling.prompts[{index}].frames")
        if not cfg.compile.compile or not counts:
            continue
        if plan.mode == "static" and tokens > max(counts):
            text = f"{name} is above the static {max(counts)}: a graph of its own"
            remedy = "Make it smaller, or raise static_token_count to its tokens."
            yield Finding("sample_graph", "note", text, remedy, (), setting)
        elif plan.mode in ("exact_buckets", "off") and tokens not in counts:
            text = f"{name} has a token count that no bucket has: a graph of its own"
            remedy = f"Set it to {_nearest_size(plan, *size)} to use an existing graph."
            yield Finding("sample_graph", "note", text, remedy, (), setting)
    if plan.batch_size > 1 and cfg.compile.compile:
        text = f"Samples are made one at a time, so that they need other graphs than batches of {plan.batch_size}"
        yield Finding("sample_batch", "note", text, "", (), "dataset.batch_size")


def _nearest_size(plan: Plan, width: int, height: int) -> str:
    ratio = math.log(width / height)
    used = {fit.bucket for fits in (plan.fits, *plan.validation_fits.values()) for fit in fits}
    best = min(used, key=lambda b: (abs(math.log(b.width / b.height) - ratio), -b.tokens))
    return f"{best.width}x{best.height}"


def _settings(cfg: Config, plan: Plan) -> Iterable[Finding]:
    unit, step = plan.geometry.pixels_per_token, cfg.dataset.bucket_step
    if step % unit:
        text = f"bucket_step {step} is not a multiple of a token ({unit} px); {whole_step(step, plan.geometry)} is used"
        yield Finding("bucket_step", "note", text, "", (), "dataset.bucket_step")
    limit, needed = plan.set_limit, plan.graphs.per_class * plan.graphs.variants
    if plan.compile and limit is not None and limit < needed:
        text = (
            f"compile_cache_size_limit {limit} is less than the {needed} graphs that a block class needs: the shapes "
            "beyond them will run eagerly"
        )
        remedy = "Leave it empty: the plan then sets it."
        yield Finding("low_limit", "warning", text, remedy, (), "compile.compile_cache_size_limit")
    if plan.linear_out:
        text = (
            f"disable_linear is on: each linear layer is a graph break, and each of the {plan.planned_graphs} planned "
            "graphs is made of pieces (FLUX on an H100: 17 graphs and 20 breaks in place of 2 graphs, for twice the "
            "time of a step)"
        )
        yield Finding("linear_out", "note", text, "Set disable_linear to auto.", (), "compile.disable_linear")
    mode = cfg.compile.compile_mode
    if recording_of(cfg) == "on" and cfg.compile.cuda_graphs == "auto":
        text = f"compile_mode {mode} is {RECORDING_MODES[mode]} with training passes recorded as with cuda_graphs = on"
        yield Finding("recorded", "note", text, "", (), "compile.compile_mode")
    if cfg.compile.caption_buckets and plan.caption_buckets is None:
        text = "The length of captions is not known without the model's tokenizer.json, so they are not trimmed"
        remedy = "Choose a base model with a tokenizer.json, or leave caption_buckets empty."
        yield Finding("no_tokenizer", "warning", text, remedy, (), "compile.caption_buckets")


def _files(plan: Plan, indices: Iterable[int]) -> tuple[str, ...]:
    return tuple(str(plan.items[index].path) for index in indices)
