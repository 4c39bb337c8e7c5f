"""Declares [saving]: what a run writes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from backend.config.declare import Section, setting
from backend.config.sections.values import clean_path, file_name, not_blank


class SavingSection(Section):
    """LoRA files, resume state and what the files say about themselves."""

    output_name: Annotated[str, AfterValidator(file_name)] = setting(
        "lora",
        min_length=1,
        max_length=100,
        label="Name",
        help="Name of the run and of the LoRA file.",
        aliases=("save_name", "job_name", "run_name", "lora_name", "name"),
    )
    output_dir: Annotated[str, AfterValidator(clean_path)] = setting(
        "runs",
        kind="path",
        min_length=1,
        label="Runs folder",
        help="Each run gets a folder of its own in here, with its settings, records, samples and LoRA files.",
        aliases=("save_dir", "output_folder", "training_folder", "workspace_dir"),
        advanced=True,
    )
    save_every_n_steps: int | None = setting(
        None,
        ge=1,
        unit="steps",
        label="Save every so many steps",
        help="Writes a LoRA file each time this many steps are done. Empty: not by steps. The end and a stop "
        "always save.",
        aliases=("checkpointing_steps", "save_steps", "save_every", "save_model_every_n_steps"),
    )
    save_every_n_epochs: int | None = setting(
        None,
        ge=1,
        unit="epochs",
        label="Save every so many epochs",
        help="Writes a LoRA file each time this many epochs are done. Empty: not by epochs.",
        aliases=("save_model_every_n_epochs", "checkpointing_epochs"),
    )
    save_last_n: int | None = setting(
        None,
        ge=1,
        unit="files",
        label="Keep the last",
        help="Keeps only the newest so many of the files saved on the way. Empty keeps all. The final LoRA always "
        "stays.",
        aliases=("save_last_n_steps", "save_last_n_epochs", "checkpoints_total_limit", "max_step_saves_to_keep"),
    )
    save_precision: Literal["bf16", "fp16", "fp32"] = setting(
        "bf16",
        label="File precision",
        help="Number format in the LoRA file. bf16 and fp16 halve the size of fp32 and are read by every tool.",
        aliases=("save_dtype", "output_dtype"),
    )
    save_layout: Literal["kohya", "diffusers"] = setting(
        "kohya",
        label="File layout",
        help="How the layers are called in the LoRA file. kohya is read by ComfyUI, A1111, Forge and sd-scripts, and "
        "by diffusers except for SD3, Anima and FLUX's layers outside of its blocks. diffusers is peft's naming, for "
        "programs built on it; ComfyUI reads it too, except for SDXL, Stable Diffusion and Anima. FLUX files are "
        "little more than half as large in it.",
        aliases=("lora_format", "save_format", "lora_layout", "output_format"),
    )
    save_state: bool = setting(
        True,
        label="Keep resume state",
        help="At every save and stop, and every 10 minutes, also keeps optimizer state and counters, so that the run "
        "can continue exactly where it was. The newest two states are kept, in case one is damaged; each is about "
        "three times the LoRA in fp32, and a third needs room while it is written.",
        aliases=("save_state_on_train_end", "save_training_state"),
    )
    metadata_title: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Title",
        help="Title written into the LoRA file, shown by tools that list LoRAs.",
        aliases=("title", "modelspec_title"),
        advanced=True,
    )
    metadata_author: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Author",
        help="Who made it, written into the LoRA file.",
        aliases=("author", "modelspec_author"),
        advanced=True,
    )
    metadata_description: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        kind="text",
        min_length=1,
        label="Description",
        help="What it does and how to use it, written into the LoRA file.",
        aliases=("description", "training_comment", "modelspec_description"),
        advanced=True,
    )
    metadata_license: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Licence",
        help="Under which terms others may use it, written into the LoRA file.",
        aliases=("license", "licence", "modelspec_license", "metadata_licence"),
        advanced=True,
    )
    metadata_tags: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Tags",
        help="Words to find it by, with commas between them, written into the LoRA file.",
        aliases=("tags", "modelspec_tags"),
        advanced=True,
    )
    metadata_trigger: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Trigger phrase",
        help="What to write in a prompt to call it up, written into the LoRA file. Empty takes the trigger word.",
        aliases=("trigger_phrase", "modelspec_trigger_phrase"),
        advanced=True,
    )
