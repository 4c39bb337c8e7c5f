"""Declares [saving]: what a run writes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from backend.config.declare import Section, setting
from backend.config.sections.values import clean_path, file_name, not_blank


class SavingSection(Section):
    """LoRA files, training state and metadata."""

    output_name: Annotated[str, AfterValidator(file_name)] = setting(
        "lora",
        min_length=1,
        max_length=100,
        label="Output name",
        help="Name of the run and of the LoRA file.",
        aliases=("save_name", "job_name", "run_name", "lora_name", "name"),
        basic=True,
    )
    output_dir: Annotated[str, AfterValidator(clean_path)] = setting(
        "runs",
        kind="path",
        min_length=1,
        label="Output folder",
        help="Each run gets a folder of its own in here, with its settings, log, samples and LoRA files.",
        aliases=("save_dir", "output_folder", "training_folder", "workspace_dir"),
        advanced=True,
    )
    save_every_n_steps: int | None = setting(
        None,
        ge=1,
        unit="steps",
        label="Save every N steps",
        help="Saves a LoRA file every N steps. Empty: not by steps. The run always saves at the end and when it is "
        "stopped.",
        aliases=("checkpointing_steps", "save_steps", "save_every", "save_model_every_n_steps"),
        basic=True,
    )
    save_every_n_epochs: int | None = setting(
        None,
        ge=1,
        unit="epochs",
        label="Save every N epochs",
        help="Saves a LoRA file every N epochs. Empty: not by epochs.",
        aliases=("save_model_every_n_epochs", "checkpointing_epochs"),
        basic=True,
    )
    save_last_n: int | None = setting(
        None,
        ge=1,
        unit="files",
        label="Keep last N",
        help="Keeps only the newest N of the LoRA files that are saved during the run. Empty keeps all. The final "
        "LoRA is always kept.",
        aliases=("save_last_n_steps", "save_last_n_epochs", "checkpoints_total_limit", "max_step_saves_to_keep"),
        basic=True,
    )
    keep_best: bool = setting(
        False,
        label="Keep the best",
        help="Keeps the LoRA with the lowest validation loss as a file of its own, the output name with -best. It is "
        "written whenever a validation is lower than all before, and Keep last N never removes it. Needs validation "
        "images, and validation every N steps or epochs. Several validation sets count the same.",
        aliases=("load_best_model_at_end", "save_best_model"),
    )
    average_checkpoints: int | None = setting(
        None,
        ge=2,
        le=100,
        unit="files",
        label="Average N files",
        help="At the end of the run, also writes the average of N of its LoRA files, the finished one among them, as a "
        "file of its own. With validation images its loss is measured and compared. What the files change in the model "
        "is averaged, at the same rank. Empty: no average.",
        aliases=("average_last_n_checkpoints", "num_last_checkpoints"),
        advanced=True,
    )
    average_from: Literal["last", "best"] = setting(
        "last",
        label="Average of",
        help="last: of the newest N files. best: of the N files with the lowest validation losses, which Keep last N "
        "then leaves in place; files count whose steps were validated.",
        advanced=True,
    )
    save_precision: Literal["bf16", "fp16", "fp32"] = setting(
        "bf16",
        label="Save precision",
        help="Number format in the LoRA file. bf16 and fp16 need half the size of fp32, and every program reads them.",
        aliases=("save_dtype", "output_dtype"),
    )
    save_layout: Literal["kohya", "diffusers"] = setting(
        "kohya",
        label="LoRA file layout",
        help="Names of the layers in the LoRA file. kohya: for ComfyUI, A1111, Forge and sd-scripts; diffusers "
        "reads it too, except for SD3, Anima and FLUX's layers outside of its blocks. diffusers: peft's names, "
        "for programs that use diffusers; ComfyUI reads it too, except for SDXL, Stable Diffusion, Anima and Wan. "
        "FLUX files need little more than half the size in it.",
        aliases=("lora_format", "save_format", "lora_layout", "output_format"),
    )
    model_layout: Literal["single_file", "diffusers"] = setting(
        "single_file",
        label="Model file layout",
        help="How a fully fine-tuned model is saved. single_file: one safetensors file with the names that ComfyUI and "
        "sd-scripts read; where the base model is a whole checkpoint, VAE and text encoders come with it. diffusers: a "
        "folder with config.json, which from_pretrained of diffusers reads.",
        aliases=("model_format", "output_model_format", "model_file_layout"),
    )
    save_state: bool = setting(
        True,
        label="Save training state",
        help="At every save and stop, and every 10 minutes, also saves the optimizer state and counters, so that "
        "the run can be resumed exactly where it was. The newest two states are kept, in case one is damaged. "
        "Each needs about three times the size of the LoRA in fp32, and there must be room for a third while "
        "it is written.",
        aliases=("save_state_on_train_end", "save_training_state"),
    )
    metadata_title: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Metadata title",
        help="Title in the LoRA file. Programs that list LoRAs show it.",
        aliases=("title", "modelspec_title"),
        advanced=True,
    )
    metadata_author: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Metadata author",
        help="Author, written into the LoRA file.",
        aliases=("author", "modelspec_author"),
        advanced=True,
    )
    metadata_description: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        kind="text",
        min_length=1,
        label="Metadata description",
        help="What the LoRA does and how to use it, written into the LoRA file.",
        aliases=("description", "training_comment", "modelspec_description"),
        advanced=True,
    )
    metadata_license: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Metadata license",
        help="Terms under which others may use the LoRA, written into the LoRA file.",
        aliases=("license", "licence", "modelspec_license", "metadata_licence"),
        advanced=True,
    )
    metadata_tags: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Metadata tags",
        help="Search words, separated by commas, written into the LoRA file.",
        aliases=("tags", "modelspec_tags"),
        advanced=True,
    )
    metadata_trigger: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="Metadata trigger phrase",
        help="Words for the prompt that trigger the LoRA, written into the LoRA file. Empty: the trigger word.",
        aliases=("trigger_phrase", "modelspec_trigger_phrase"),
        advanced=True,
    )
