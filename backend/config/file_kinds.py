"""Tells which program's settings a file holds, by what only its files have."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from backend.config.formats import Document
from backend.config.schema import SECTIONS, by_name, by_path

Kind = Literal[
    "monotile", "kohya_ss", "sd-scripts", "musubi-tuner", "dataset", "easy-training", "onetrainer",
    "onetrainer-concepts", "ai-toolkit", "simpletuner", "simpletuner-dataset", "diffusion-pipe",
    "diffusion-pipe-dataset", "lora",
]  # fmt: skip

TITLES: dict[Kind, str] = {
    "monotile": "settings of Monotile",
    "kohya_ss": "a preset of kohya_ss",
    "sd-scripts": "arguments of sd-scripts",
    "musubi-tuner": "arguments of musubi-tuner",
    "dataset": "a data set of sd-scripts or musubi-tuner",
    "easy-training": "settings of LoRA Easy Training Scripts",
    "onetrainer": "settings of OneTrainer",
    "onetrainer-concepts": "a list of concepts of OneTrainer",
    "ai-toolkit": "settings of ai-toolkit",
    "simpletuner": "settings of SimpleTuner",
    "simpletuner-dataset": "a data set of SimpleTuner",
    "diffusion-pipe": "settings of diffusion-pipe",
    "diffusion-pipe-dataset": "a data set of diffusion-pipe",
    "lora": "the metadata of a LoRA file",
}
DATA_SETS: tuple[Kind, ...] = ("dataset", "onetrainer-concepts", "simpletuner-dataset", "diffusion-pipe-dataset")
"""Kinds that describe pictures and nothing else."""
NAMES_OF_DATA_SETS = ("dataset_config", "dataset", "concept_file_name", "data_backend_config")
"""Settings of other programs that name the file of the data set."""


def names(text: str) -> frozenset[str]:
    """The names in a text, which are written with blanks between."""
    return frozenset(text.split())


# Arguments that only one of the two programs has; enough of them to tell the files of all families apart.
ONLY_MUSUBI = names(
    "dit text_encoder1 text_encoder2 fp8_llm fp8_t5 fp8_text_encoder block_swap_h2d_only block_swap_ring_size "
    "use_pinned_memory_for_block_swap flash_attn sage_attn flash3 img_in_txt_in_offloading compile compile_backend "
    "compile_mode compile_dynamic compile_fullgraph compile_cache_size_limit dit_dtype vae_dtype model_version edit "
    "edit_plus gradient_checkpointing_cpu_offload preserve_distribution_shape num_timestep_buckets"
)
ONLY_SCRIPTS = names(
    "pretrained_model_name_or_path clip_l clip_g t5xxl ae qwen3 train_data_dir train_batch_size resolution "
    "clip_skip cache_latents cache_latents_to_disk cache_text_encoder_outputs network_train_unet_only unet_lr "
    "text_encoder_lr save_model_as model_prediction_type no_half_vae"
)
# Arguments that both have.
_BOTH = names(
    "network_module network_dim network_alpha network_args network_weights optimizer_type optimizer_args learning_rate "
    "lr_scheduler lr_warmup_steps max_train_steps max_train_epochs dataset_config output_dir output_name "
    "save_precision mixed_precision gradient_checkpointing gradient_accumulation_steps save_every_n_epochs "
    "save_every_n_steps seed sdpa xformers fp8_base blocks_to_swap timestep_sampling discrete_flow_shift "
    "sample_prompts logging_dir"
)
_MUSUBI_NETWORK = re.compile(
    r"networks\.lora_(qwen_image|wan|framepack|hv_1_5|zimage|flux_2|kandinsky|krea2|ideogram4|hidream_o1)"
)
# Names of kohya_ss' presets that no other program writes into JSON; any one of them tells.
_KOHYA = names(
    "LoRA_type lr_warmup max_resolution model_list train_batch_size save_model_as sdxl_checkbox flux1_checkbox "
    "stop_text_encoder_training enable_bucket network_dim additional_parameters"
)
# Of SimpleTuner's settings; two of them tell, since others have some of these names too.
_SIMPLETUNER = names(
    "model_family model_flavour model_type data_backend_config lora_rank lora_type base_model_precision "
    "validation_prompt flow_schedule_shift checkpoint_step_interval checkpointing_steps validation_steps "
    "validation_step_interval lycoris_config aspect_bucket_rounding"
)
_ONLY_SIMPLETUNER = frozenset(("model_family", "data_backend_config"))
"""The same, any one of which tells."""
_ONETRAINER = names("training_method concept_file_name concepts optimizer_defaults output_model_destination")
_CONCEPT = names("text_variations image_variations balancing validation_concept include_subdirectories")
_BACKEND = frozenset(("instance_data_dir", "dataset_type", "caption_strategy", "cache_dir_vae", "metadata_backend"))
_PIPE = frozenset(("pipeline_stages", "micro_batch_size_per_gpu", "activation_checkpointing", "partition_method"))


def kind_of(document: Document) -> Kind | None:
    """The kind of a file, or None where nothing tells it or it can't be read."""
    return None if document.data is None else _KINDS[document.form](document.data)


def is_of_another(document: Document) -> bool:
    """Whether a file holds settings of another program. One of ours with mistakes does not.

    A TOML file whose kind nothing else tells counts as arguments where it has names that are not ours too.
    """
    kind = kind_of(document)
    if kind not in ("sd-scripts", "musubi-tuner"):
        return kind not in (None, "monotile")
    if document.form == "command":
        return True
    names = _flat_names(document.data)
    sections = [(key, value) for key, value in document.data.items() if isinstance(value, Mapping)]
    theirs = (names.keys() & (ONLY_MUSUBI | ONLY_SCRIPTS | _BOTH)) - by_name().keys()
    in_place = sum(f"{key}.{name}" in by_path() for key, value in sections for name in value)
    if any(key in SECTIONS for key, _ in sections):
        # they ignore names of sections, so that one may be called as ours
        return len(theirs) > in_place + 1
    return bool(theirs) or len(names.keys() & _BOTH) > 1


def argument_kind(values: Mapping[str, Any]) -> Kind:
    """Which of the two programs a list of arguments is for."""
    module = str(values.get("network_module", ""))
    if _MUSUBI_NETWORK.search(module) or (ONLY_MUSUBI & set(values) and not ONLY_SCRIPTS & set(values)):
        return "musubi-tuner"
    return "sd-scripts"


def plain_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """SimpleTuner's names without the -- that may stand in front of them."""
    return {str(key).lstrip("-"): value for key, value in data.items()}


def _of_json(data: Any) -> Kind | None:
    if isinstance(data, list):
        rows = [row for row in data if isinstance(row, Mapping)]
        if any(_BACKEND & set(row) for row in rows):
            return "simpletuner-dataset"
        return "onetrainer-concepts" if any(_CONCEPT & set(row) for row in rows) else None
    if not isinstance(data, Mapping):
        return None
    if isinstance(data.get("config"), Mapping) and "process" in data["config"]:
        return "ai-toolkit"
    names = set(plain_names(data))
    if _ONETRAINER & names or isinstance(data.get("optimizer"), Mapping):
        return "onetrainer"
    if (_ONLY_SIMPLETUNER & names or len(_SIMPLETUNER & names) > 1) and "LoRA_type" not in names:
        return "simpletuner"
    return "kohya_ss" if _KOHYA & names or "pretrained_model_name_or_path" in names else None


def _of_toml(data: Mapping[str, Any]) -> Kind | None:
    if any(isinstance(value, Mapping) and {"args", "dataset_args"} & set(value) for value in data.values()):
        return "easy-training"
    if isinstance(data.get("datasets"), list):
        return "dataset"
    if isinstance(data.get("directory"), list) or ("resolutions" in data and "enable_ar_bucket" in data):
        return "diffusion-pipe-dataset"
    if _PIPE & set(data) or ("adapter" in data and isinstance(data.get("model"), Mapping) and "type" in data["model"]):
        return "diffusion-pipe"
    if _ONLY_SIMPLETUNER & set(plain_names(data)):
        return "simpletuner"
    # Their files may have sections too, by any name: ours say their version, or have nothing but our sections.
    if "schema_version" in data or (data and all(key in SECTIONS and isinstance(data[key], dict) for key in data)):
        return "monotile"
    return argument_kind(_flat_names(data)) if data else None


def _flat_names(data: Mapping[str, Any]) -> dict[str, Any]:
    inside = [value.items() if isinstance(value, Mapping) else [(key, value)] for key, value in data.items()]
    return {name: item for items in inside for name, item in items}


def _of_yaml(data: Any) -> Kind | None:
    config = data.get("config") if isinstance(data, Mapping) else None
    return "ai-toolkit" if isinstance(config, Mapping) and ("process" in config or "job" in data) else None


def _of_metadata(data: Mapping[str, Any]) -> Kind | None:
    return "lora" if any(str(key).startswith("ss_") for key in data) else None


def _of_command(text: str) -> Kind | None:
    return argument_kind(dict.fromkeys(re.findall(r"--([A-Za-z_]\w*)", text)))


_KINDS: dict[str, Callable[[Any], Kind | None]] = {
    "json": _of_json, "toml": _of_toml, "yaml": _of_yaml, "safetensors": _of_metadata, "command": _of_command,
}  # fmt: skip
