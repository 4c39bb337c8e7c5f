"""What kind of settings file lies before us, as one flat table of names, each with its line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from backend.base.problems import Problem
from backend.config.lines import key_lines
from backend.config.reading import read_bytes
from backend.config.schema import SECTIONS

Kind = Literal["kohya_ss", "sd-scripts", "musubi-tuner", "dataset", "monotile"]

TITLES: dict[Kind, str] = {
    "kohya_ss": "a preset of kohya_ss",
    "sd-scripts": "arguments of sd-scripts",
    "musubi-tuner": "arguments of musubi-tuner",
    "dataset": "a data set of sd-scripts or musubi-tuner",
    "monotile": "settings of Monotile",
}

# Arguments that only one of the two programs has; enough of them to tell the files of all families apart.
ONLY_MUSUBI = frozenset(
    [
        "dit",
        "text_encoder1",
        "text_encoder2",
        "fp8_llm",
        "fp8_t5",
        "fp8_text_encoder",
        "block_swap_h2d_only",
        "block_swap_ring_size",
        "use_pinned_memory_for_block_swap",
        "flash_attn",
        "sage_attn",
        "flash3",
        "img_in_txt_in_offloading",
        "compile",
        "compile_backend",
        "compile_mode",
        "compile_dynamic",
        "compile_fullgraph",
        "compile_cache_size_limit",
        "dit_dtype",
        "vae_dtype",
        "model_version",
        "edit",
        "edit_plus",
        "gradient_checkpointing_cpu_offload",
        "preserve_distribution_shape",
        "num_timestep_buckets",
    ]
)
_MUSUBI_NETWORK = re.compile(
    r"networks\.lora_(qwen_image|wan|framepack|hv_1_5|zimage|flux_2|kandinsky|krea2|ideogram4|hidream_o1)"
)
ONLY_SCRIPTS = frozenset(
    [
        "pretrained_model_name_or_path",
        "clip_l",
        "clip_g",
        "t5xxl",
        "ae",
        "qwen3",
        "train_data_dir",
        "train_batch_size",
        "resolution",
        "clip_skip",
        "cache_latents",
        "cache_latents_to_disk",
        "cache_text_encoder_outputs",
        "network_train_unet_only",
        "unet_lr",
        "text_encoder_lr",
        "save_model_as",
        "model_prediction_type",
        "no_half_vae",
    ]
)
_KOHYA_SIGNS = frozenset(
    ["LoRA_type", "train_batch_size", "lr_warmup", "max_resolution", "model_list", "pretrained_model_name_or_path"]
)


@dataclass(frozen=True)
class Source:
    """A file that was read. values: names with values, sections of the file taken away. lines: from 1, by path.

    folder: where the file lies, for paths in it; None for a file that was sent. problems: why values is empty.
    """

    kind: Kind | None
    values: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    folder: Path | None = None
    problems: tuple[Problem, ...] = ()


def read(path: Path) -> Source:
    """Read a file; whatever is wrong with it is in `problems`, with its line."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        return _refused(f"{path} can't be read: {error.strerror or error}", "Check the name and the folder")
    return read_raw(raw, path.parent)


def read_raw(raw: bytes, folder: Path | None = None) -> Source:
    """The same for the bytes of a file."""
    if raw.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return _json(raw, folder)
    found = read_bytes(raw)
    # the text as it is, not with its bad lines taken out
    other = of_another(raw.decode("utf-8-sig", "replace"))
    if other is not None:
        return other
    if found.data is None or found.holes or any(p.severity == "error" for p in found.problems):
        problems = found.problems or [Problem(None, None, "the file is empty", "Choose another file")]
        return Source(None, {}, folder=folder, problems=tuple(problems))
    kind, lines = _toml_kind(found.data), key_lines(found.text or "")
    if kind in ("dataset", "monotile"):
        return Source(kind, found.data, lines, folder)
    values, places = _flat(found.data, lines)
    if not values:
        return _refused("the file holds no settings", "Choose another file")
    return Source(_argument_kind(values), values, places, folder)


# Settings of programs whose files can't be brought over, told by what all of them have.
_OTHER_PROGRAMS: tuple[tuple[str, str], ...] = (
    (r"^job:|^config:\s*$", "ai-toolkit"),
    (r'"(training_method|concept_file_name|optimizer_defaults)"\s*:', "OneTrainer"),
    (r'"--?(model_type|pretrained_model_name_or_path)"\s*:', "SimpleTuner"),
    (r"^\[adapter\]\s*$|^pipeline_stages\s*=", "diffusion-pipe"),
)
_READ_HERE = (
    "Files of sd-scripts, musubi-tuner and kohya_ss are brought over; set the others by hand, beginning with a preset"
)


def of_another(text: str) -> Source | None:
    """Refused, by name, for the settings of a program that is known but not read."""
    for pattern, program in _OTHER_PROGRAMS:
        if re.search(pattern, text, re.MULTILINE):
            return _refused(f"the file holds settings of {program}, which are not read here", _READ_HERE)
    if re.search(r"^(---|[\w.-]+:)\s*$", text, re.MULTILINE) and not re.search(r"^\s*[\w.-]+\s*=", text, re.MULTILINE):
        return _refused("the file is YAML, and none of the programs that are read here writes that", _READ_HERE)
    return None


def _json(raw: bytes, folder: Path | None) -> Source:
    try:
        text = raw.decode("utf-8-sig")
        data = json.loads(text)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return _refused("the file is not UTF-8 text", "Open it in an editor and save it again as UTF-8", line)
    except RecursionError:
        return _refused("the file is nested too deeply for settings", "Choose another file")
    except json.JSONDecodeError as error:
        remedy = "Mend this line, or save the preset in kohya_ss again"
        return _refused(f"this is no JSON: {error.msg}, at column {error.colno}", remedy, error.lineno)
    if not _KOHYA_SIGNS & set(data):
        return of_another(text) or _refused(
            "the file is JSON, but no preset of kohya_ss: none of its names is one of theirs",
            "Choose the .json file that kohya_ss saved, or a .toml file",
        )
    lines = {key: number for number, line in enumerate(text.split("\n"), 1) for key in re.findall(r'"(\w+)"\s*:', line)}
    return Source("kohya_ss", data, lines, folder)


def _toml_kind(data: Mapping[str, Any]) -> Kind | None:
    if isinstance(data.get("datasets"), list):
        return "dataset"
    # Their files may have sections too, by any name: ours say their version, or have nothing but our sections.
    if "schema_version" in data or (data and all(key in SECTIONS and isinstance(data[key], dict) for key in data)):
        return "monotile"
    return None


def _flat(data: Mapping[str, Any], lines: Mapping[str, int]) -> tuple[dict[str, Any], dict[str, int]]:
    """Both programs ignore the names of sections, and take what is in them as one list of arguments."""
    values: dict[str, Any] = {}
    places: dict[str, int] = {}
    for key, value in data.items():
        inside = value.items() if isinstance(value, dict) else [(None, value)]
        for name, item in inside:
            flat = name or key
            values[flat] = item
            where = lines.get(f"{key}.{name}" if name else key)
            if where:
                places[flat] = where
    return values, places


def _argument_kind(values: Mapping[str, Any]) -> Kind:
    module = str(values.get("network_module", ""))
    if _MUSUBI_NETWORK.search(module) or (ONLY_MUSUBI & set(values) and not ONLY_SCRIPTS & set(values)):
        return "musubi-tuner"
    return "sd-scripts"


def _refused(text: str, remedy: str, line: int | None = None) -> Source:
    return Source(None, {}, problems=(Problem(None, line, text, remedy),))
