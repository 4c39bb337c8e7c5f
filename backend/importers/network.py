"""Reads the arguments of another program's network: ``network_args``, and what of them kohya_ss keeps by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.config.layer_patterns import FACTORED
from backend.families.table import lacking
from backend.importers import reasons, tables
from backend.importers.arguments import arguments
from backend.importers.common_reasons import NO_LORA_SETTING
from backend.importers.family import is_lycoris
from backend.importers.notes import Note, shown
from backend.importers.source import Source
from backend.importers.values import READERS, Left, is_off, number

_RATIO, _TEXT_RATIO = "network.loraplus_lr_ratio", "network.loraplus_text_encoder_lr_ratio"
_RATIOS = ("loraplus_lr_ratio", "loraplus_unet_lr_ratio", "loraplus_text_encoder_lr_ratio")
_GOALS = {
    "conv_dim": ("network.conv_dim", "number"),
    "conv_alpha": ("network.conv_alpha", "number"),
    "factor": ("network.lokr_factor", "factor"),
    "dropout": ("network.network_dropout", "dropout"),
    "rank_dropout": ("network.rank_dropout", "number"),
    "module_dropout": ("network.module_dropout", "number"),
}
_OF_PRESETS = ("conv_dim", "conv_alpha", "dora_wd", "rank_dropout", "module_dropout", *_RATIOS)
"""Arguments of the network that kohya_ss keeps by themselves."""
_PATTERNS = ("include_patterns", "exclude_patterns")
_INCLUDE, _EXCLUDE = "network.targets_include", "network.targets_exclude"
_BLOCKS = {"single": "single_", "double": "transformer_"}
WHOLE = 4096
"""The largest rank. From half of a LoKr's large factor on LyCORIS leaves it whole, and people write 100000 for that."""
_LYCORIS_RANKS = "the other program skips the same ranks for all images of a batch, and does not scale the others up"
_LENGTHS_OF = ("wd_on_output", "wd_on_out")
"""LyCORIS' names for whether a DoRA's lengths are those of outputs."""
_NO_SETTING = NO_LORA_SETTING


def read_network(source: Source, ours: dict[str, Any], origin: dict[str, str]) -> list[Note]:
    """Take over into `ours` what has a counterpart, with the name that it comes from in `origin`; a note for each."""
    values, notes = source.values, []
    options: dict[str, Any] = {}
    if "network_args" in values:
        line, text = source.lines.get("network_args"), shown("network_args", values["network_args"])
        try:
            options = arguments(values["network_args"])
            why = "see each of its settings" if options else "empty"
            notes.append(Note("network_args", "taken", why, line, None, text))
        except Left as left:
            notes.append(Note("network_args", "not offered", str(left), line, None, text))
    for key in _OF_PRESETS:
        if key in values:
            options.setdefault(key, values[key])
    unused = {"conv_dim", "conv_alpha"} if values.get("LoRA_type") in tables.NO_CONVOLUTIONS else set()
    if number(options.get("conv_alpha")) == 0 and not is_off(options.get("conv_dim")):
        options["conv_alpha"] = options["conv_dim"]  # as large as the rank there
    if is_off(options.get("conv_dim")) and not is_lycoris(values):
        unused.add("conv_alpha")
    ratios = _ratio_goals(options, bool(ours.get("network.train_text_encoder")))
    unused |= {name for name, goal in ratios.items() if not goal}
    if not is_lycoris(values):
        unused |= {"dora_wd", "full_matrix", "dropout", *_LENGTHS_OF}
    for key, value in options.items():
        line = source.lines.get(key, source.lines.get("network_args"))
        if key in (*_PATTERNS, "train_blocks") or _leaves_out(source, key, value):
            continue
        if key in unused:
            notes.append(
                Note(f"network_args {key}", "off", "the other program does not use it", line, None, shown(key, value))
            )
        else:
            goal = (ratios[key], "number") if key in ratios else _GOALS.get(key)
            notes.append(_note(f"network_args {key}", key, value, values, line, goal, ours, origin))
    notes += _text_ratio(ours, origin)
    return notes + _layers(source, options, ours, origin) + _convolutions(source, ours, origin)


def _note(
    name: str,
    key: str,
    value: Any,
    values: Mapping[str, Any],
    line: int | None,
    goal: tuple[str, str] | None,
    ours: dict[str, Any],
    origin: dict[str, str],
) -> Note:
    """What became of the argument `key`. goal: the setting here and how its value is read; None where there is none."""
    text = shown(key, value)
    neutral = "LyCORIS_preset" if key == "preset" else key
    if key in _LENGTHS_OF:
        near = is_off(value) and ours.get("network.network_type") == "dora"
        why = "lengths are an output's here, as in peft; an input's in the other program"
        return Note(name, "near" if near else "off", why if near else "", line, None, text)
    if is_off(value) or str(value).strip() in reasons.NEUTRAL.get(neutral, ()):
        return Note(name, "off", "", line, None, text)
    if key == "algo":
        return Note(name, "taken", "see the network type", line, None, text)
    kind = ours.get("network.network_type", "lora")
    if key == "full_matrix" and kind == "lokr":
        ours["network.network_dim"], origin["network.network_dim"] = WHOLE, name
        return Note(name, "near", "the largest rank: the large factor is not split", line, "network.network_dim", text)
    if key == "dora_wd":
        if kind == "dora":
            return Note(name, "taken", "", line, "network.network_type", text)
        return Note(
            name, "not offered", f"Monotile trains lengths with a LoRA only (dora), not with {kind}", line, None, text
        )
    if key in ("conv_dim", "conv_alpha") and kind in FACTORED:
        why = f"{kind} does not train convolutions larger than one pixel in Monotile"
        return Note(name, "not offered", why, line, None, text)
    if goal is None:
        return Note(name, "not offered", reasons.NOT_OFFERED.get(neutral, _NO_SETTING), line, None, text)
    path, reader = goal
    try:
        taken = READERS[reader](key, value, values)
    except Left as left:
        return Note(name, "off", str(left), line, None, text)
    ours[path], origin[path] = taken.value, name
    near = _LYCORIS_RANKS if key == "rank_dropout" and is_lycoris(values) else taken.near
    return Note(name, "near" if near else "taken", near, line, path, text)


def _ratio_goals(options: Mapping[str, Any], text: bool) -> dict[str, str]:
    """Where each ratio of LoRA+ goes; "" where another one rules, or its encoders are not trained (`text`)."""
    general, denoiser, encoders = _RATIOS
    goals = {general: _RATIO, denoiser: _RATIO, encoders: _TEXT_RATIO if text else ""}
    if not is_off(options.get(denoiser)):
        goals[general] = _TEXT_RATIO if text and is_off(options.get(encoders)) else ""
    return goals


def _text_ratio(ours: dict[str, Any], origin: dict[str, str]) -> list[Note]:
    """A ratio of the denoiser alone is none of the encoders there."""
    alone = origin.get(_RATIO, "").endswith(_RATIOS[1]) and _TEXT_RATIO not in ours
    if not alone or not ours.get("network.train_text_encoder"):
        return []
    ours[_TEXT_RATIO], origin[_TEXT_RATIO] = 1.0, origin[_RATIO]
    why = "not in the file: only the denoiser's ratio is set"
    return [Note(f"network_args {_RATIOS[2]}", "default", why, None, _TEXT_RATIO)]


def _layers(source: Source, options: Mapping[str, Any], ours: dict[str, Any], origin: dict[str, str]) -> list[Note]:
    """Which layers are trained, where these are others there than here, or the file chooses them.

    musubi-tuner leaves out what a pattern excludes, unless one of include_patterns fits it.
    """
    family, line = str(ours.get("model.family")), source.lines.get("network_args")
    program = "musubi-tuner" if source.kind == "musubi-tuner" else "sd-scripts"
    layers = () if is_lycoris(source.values) else tables.LAYERS.get(program, {}).get(family, ())
    notes, fate, why = [], "default", f"not in the file: {program} trains the modulation of the blocks too"
    blocks = "single" if not is_off(source.values.get("split_mode")) else str(options.get("train_blocks", "all"))
    if "train_blocks" in options or blocks != "all":
        matching = [layer for layer in layers if blocks == "all" or layer.startswith(_BLOCKS.get(blocks, "?"))]
        fate, why, layers = "taken", "", matching or layers
    for key in (key for key in options if _leaves_out(source, key, options[key])):
        ours[_EXCLUDE], origin[_EXCLUDE] = [*ours.get(_EXCLUDE, []), tables.TYPE_DIMS[key]], "network_args"
        notes.append(Note(f"network_args {key}", "taken", "0 leaves them out", line, _EXCLUDE))
    left, kept = (_list(options.get(name)) for name in ("exclude_patterns", "include_patterns"))
    if (left or kept) and family not in tables.SAME_NAMES:
        why_not = "the other program's layer names differ; choose layers with diffusers' names as targets_include"
        notes += [Note(f"network_args {key}", "not offered", why_not, line) for key in _PATTERNS if key in options]
    elif left or kept:
        everything = ".*" in left
        if everything and kept:
            fate, why, layers, left = "taken", "", kept, []
        elif kept:
            notes.append(Note("network_args include_patterns", "off", "it only adds layers that were excluded", line))
        if left:
            ours[_EXCLUDE], origin[_EXCLUDE] = left, "network_args"
            notes.append(Note("network_args exclude_patterns", "taken", "", line, _EXCLUDE))
    if layers:
        ours[_INCLUDE], origin[_INCLUDE] = list(layers), "network_args"
        notes.append(Note("network_args layers", fate, why, line if fate == "taken" else None, _INCLUDE))
    return notes


def _leaves_out(source: Source, key: str, value: Any) -> bool:
    """Whether a rank of 0 leaves a kind of layers out; kohya_ss doesn't hand a 0 on."""
    return key in tables.TYPE_DIMS and source.kind != "kohya_ss" and number(value) == 0


def _list(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [] if is_off(value) else [str(value)]


def _convolutions(source: Source, ours: dict[str, Any], origin: dict[str, str]) -> list[Note]:
    """What the other program takes where its file leaves out rank or alpha of convolutions.

    sd-scripts trains them only where there is a rank, with alpha 1; LyCORIS always, of the size of the other layers.
    """
    dim, alpha = "network.conv_dim", "network.conv_alpha"
    theirs = tables.DEFAULTS["sd-scripts"]
    convolved = "conv_dim" not in lacking(str(ours.get("model.family")))
    if is_lycoris(source.values) and convolved and ours.get("network.network_type", "lora") not in FACTORED:
        program = "LyCORIS"
        wanted = {
            dim: ours.get("network.network_dim", theirs["network_dim"]),
            alpha: ours.get("network.network_alpha", theirs["network_alpha"]),
        }
    else:
        program, wanted = "sd-scripts", {alpha: 1.0} if dim in ours else {}
    notes = []
    for goal, value in wanted.items():
        if goal not in ours:
            ours[goal], origin[goal] = value, goal.rpartition(".")[2]
            why = f"not in the file: {shown(goal, value)} is what {program} uses"
            notes.append(Note(f"network_args {origin[goal]}", "default", why, None, goal))
    return notes
