"""A file of every program that is read: its kind, what is taken of it, and that each of its names is accounted for."""

from __future__ import annotations

import copy
import json
import random
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from backend.config.file_kinds import TITLES, kind_of
from backend.config.formats import Document, read_document
from backend.config.load import load
from backend.config.schema import get
from backend.importers.__main__ import main
from backend.importers.convert import Converted, convert
from backend.importers.source import of_document, read, read_raw

FILES = Path(__file__).parent / "foreign"


@dataclass(frozen=True)
class Row:
    """kind: of the file. values: of ours, by path. fates: what became of names. beside: the data set with it."""

    kind: str
    values: dict[str, Any]
    fates: dict[str, str] = field(default_factory=dict)
    beside: str = ""


ROWS: dict[str, Row] = {
    "onetrainer.json": Row("onetrainer", {
        "model.family": "flux", "model.base_model": "/models/FLUX.1-dev", "dataset.resolution": 768,
        "dataset.batch_size": 4,
        "dataset.caption_dropout_rate": 0.05, "network.network_dim": 32, "network.network_alpha": 16.0,
        "optimizer.optimizer": "adamw8bit", "optimizer.learning_rate": 2e-4, "optimizer.betas": [0.9, 0.99],
        "optimizer.weight_decay": 0.02, "optimizer.lr_warmup": 100.0, "optimizer.lr_scheduler_min_lr_ratio": 0.1,
        "training.max_train_epochs": 20, "training.ema": True, "training.mixed_precision": "bf16",
        "timesteps.timestep_sampling": "logit_normal", "timesteps.logit_mean": 0.943147, "timesteps.logit_std": 1.5,
        "timesteps.min_timestep": 100.0, "compile.attention": "flash2", "memory.checkpointing_kind": "offload",
        "memory.base_quantization": "nf4", "memory.text_encoder_quantization": "nf4", "saving.output_name": "cat-lora",
        "saving.save_precision": "bf16", "saving.save_every_n_steps": 500, "sampling.sample_every_n_epochs": 2,
        "optimizer.max_grad_norm": 1.0, "logging.tensorboard": True,
    }, {"mystery": "unknown", "masked_training": "taken", "concepts[1]": "off",
        "learning_rate": "not needed"}),
    "ai_toolkit.yaml": Row("ai-toolkit", {
        "model.family": "qwen_image_edit", "dataset.resolution": 768, "dataset.trigger_word": "p3r5on",
        "network.network_dim": 32, "network.network_alpha": 16.0,
        "network.targets_include": [r".*transformer_blocks\.7\.attn.*"], "optimizer.optimizer": "adamw8bit",
        "optimizer.learning_rate": 1e-4, "optimizer.weight_decay": 1e-4, "optimizer.lr_scheduler": "constant",
        "training.max_train_steps": 3000, "training.ema_decay": 0.99, "timesteps.timestep_sampling": "uniform",
        "memory.base_quantization": "nf4", "memory.text_encoder_quantization": "int8", "saving.save_last_n": 4,
        "saving.save_precision": "fp16", "saving.output_name": "my_edit_lora", "dataset.caption_extension": ".txt",
    }, {"config.process[0].train.mystery": "unknown", "config.process[0].train.timestep_type": "near"}),
    "simpletuner.json": Row("simpletuner", {
        "model.family": "flux", "dataset.resolution": 512, "network.network_alpha": 16.0,
        "optimizer.learning_rate": 8e-5,
        "optimizer.weight_decay": 0.02, "optimizer.lr_scheduler": "polynomial", "training.max_train_steps": 2000,
        "training.max_train_epochs": None, "timesteps.timestep_sampling": "shift", "timesteps.discrete_flow_shift": 3.0,
        "memory.base_quantization": "int8", "saving.save_layout": "diffusers", "saving.save_last_n": 5,
        "sampling.sample_every_n_steps": 100, "logging.tensorboard": True, "training.gradient_checkpointing": True,
    }, {"mystery_option": "unknown", "resolution": "not needed", "[1]": "not offered"}, "simpletuner_dataset.json"),
    "diffusion_pipe.toml": Row("diffusion-pipe", {
        "model.family": "qwen_image", "dataset.resolution": 768, "network.network_dim": 32,
        "network.network_alpha": 32.0,
        "network.lora_weight_dtype": "bf16", "optimizer.learning_rate": 2e-5, "optimizer.betas": [0.9, 0.99],
        "training.max_train_epochs": 100, "timesteps.timestep_sampling": "logit_normal",
        "timesteps.logit_mean": 1.098612,
        "memory.blocks_to_swap": 10, "memory.base_quantization": "fp8", "memory.checkpointing_kind": "offload",
        "validation.validate_every_n_epochs": 1, "saving.save_every_n_epochs": 2,
    }, {"mystery": "unknown", "video_clip_mode": "not offered", "directory[0].mask_path": "taken"},
        "diffusion_pipe_dataset.toml"),
    "easy_training.toml": Row("easy-training", {
        "model.family": "sdxl", "dataset.resolution": 1024, "dataset.batch_size": 2, "dataset.bucket_step": 64,
        "dataset.max_token_length": 225, "network.network_dim": 16, "network.network_alpha": 8.0, "network.conv_dim": 4,
        "network.conv_alpha": 8.0, "optimizer.optimizer": "prodigy", "optimizer.weight_decay": 0.1,
        "optimizer.betas": [0.9, 0.99], "optimizer.optimizer_args": {"weight_decouple": True}, "training.seed": 23,
        "training.max_train_epochs": 10, "saving.output_name": "easy", "saving.save_precision": "fp16",
    }, {"mystery_args.surprise": "unknown", "subsets[0].shuffle_caption": "taken",
        "general_args.args.clip_skip": "off"}),
    "musubi.sh": Row("musubi-tuner", {
        "model.family": "qwen_image", "model.base_model": "/models/qwen image/qwen_image_bf16.safetensors",
        "model.text_encoder": None, "network.network_dim": 16, "network.network_alpha": 16.0,
        "optimizer.weight_decay": 0.1, "optimizer.betas": [0.9, 0.98], "timesteps.discrete_flow_shift": 2.2,
        "training.max_train_epochs": 16, "memory.base_quantization": "fp8", "compile.attention": "sdpa",
    }, {"--mystery_flag": "unknown", "--text_encoder": "not offered", "--num_cpu_threads_per_process": "not needed"}),
    "sd_scripts.bat": Row("sd-scripts", {
        "model.family": "sdxl", "model.base_model": r"C:\models\sd_xl_base_1.0.safetensors", "network.conv_dim": 8,
        "network.conv_alpha": 8.0, "network.train_text_encoder": False, "training.seed": 0,
        "training.max_train_steps": 2000,
        "dataset.resolution": 1024, "saving.output_name": "cat",
    }, {"--sample_prompts": "not offered", "--text_encoder_lr": "not needed"}),
    "diffusion_pipe_dataset.toml": Row("diffusion-pipe-dataset", {"dataset.resolution": 768}),
    "simpletuner_dataset.json": Row("simpletuner-dataset", {"dataset.resolution": 512}),
    "flux.toml": Row("sd-scripts", {"model.family": "flux"}, {}, "dataset.toml"),
    "musubi.toml": Row("musubi-tuner", {"model.family": "flux_kontext"}, {}, "musubi_dataset.toml"),
    "sdxl.json": Row("kohya_ss", {"model.family": "sdxl"}),
    "dataset.toml": Row("dataset", {}),
    "musubi_dataset.toml": Row("dataset", {}),
}  # fmt: skip


def converted(name: str) -> Converted:
    beside = ROWS[name].beside
    return convert(read(FILES / name), read(FILES / beside) if beside else None)


@pytest.mark.parametrize("name", ROWS)
def test_a_file_of_every_program_is_taken_as_it_trains_there(name: str) -> None:
    row, taken = ROWS[name], converted(name)
    assert kind_of(read_document(FILES / name)) == row.kind
    assert taken.loaded.config is not None and not taken.loaded.errors
    assert {path: get(taken.loaded.config, path) for path in row.values} == row.values
    outcomes = {note.key: note.fate for note in taken.notes}
    assert {key: outcomes.get(key) for key in row.fates} == row.fates


FOLDERS = {
    "onetrainer.json": [("/pictures/cat", 4, None)],
    "ai_toolkit.yaml": [("/pictures/after", 1, "/pictures/before")],
    "simpletuner.json": [("/pictures/cat", 5, None)],
    "diffusion_pipe.toml": [("/pictures/cat", 5, None), ("/pictures/world", 1, None)],
    "easy_training.toml": [("/pictures/5_cat", 5, None)],
    "sd_scripts.bat": [(r"C:\my pictures", 1, None)],
}


def test_folders_and_prompts_come_with_the_settings() -> None:
    for name, folders in FOLDERS.items():
        config = converted(name).loaded.config
        assert config is not None
        assert [(f.path, f.num_repeats, f.control_path) for f in config.dataset.folders] == folders, name
    config = converted("ai_toolkit.yaml").loaded.config
    assert config is not None
    (prompt,) = config.sampling.prompts
    assert (prompt.prompt, prompt.control_image, prompt.true_cfg_scale) == (
        "p3r5on with a hat",
        "/pictures/control.jpg",
        3,
    )


@pytest.mark.parametrize(
    ("lines", "choice", "every"),
    [
        ("", "both", 1),
        ("model_kwargs: {train_high_noise: true, train_low_noise: true}", "both", 4),
        ("model_kwargs: {train_high_noise: false, train_low_noise: true}", "low", 10),
    ],
)
def test_ai_toolkit_trains_the_experts_of_wan22_that_it_says(
    tmp_path: Path, lines: str, choice: str, every: int
) -> None:
    """Both, at every step, where it says nothing."""
    turns = f"switch_boundary_every: {every}" if lines else "steps: 5"
    text = f"job: extension\nconfig:\n  process:\n  - type: sd_trainer\n    train:\n      {turns}\n"
    text += f"    model:\n      name_or_path: /m\n      arch: wan22_14b\n      {lines}\n"
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    config = convert(read(tmp_path / "job.yaml"), None).loaded.config
    assert config is not None and config.model.family == "wan22"
    times = config.timesteps
    assert (times.train_experts, times.switch_boundary_every) == (choice, every if choice == "both" else 10)


@pytest.mark.parametrize(("value", "family"), [("true", "wan22_5b_i2v"), ("false", "wan22_5b")])
def test_ai_toolkit_trains_wan22_5b_from_a_picture_where_it_says_so(tmp_path: Path, value: str, family: str) -> None:
    text = "job: extension\nconfig:\n  process:\n  - type: sd_trainer\n    model: {name_or_path: /m, arch: wan22_5b}\n"
    text += f"    datasets:\n    - {{folder_path: /clips, do_i2v: {value}}}\n"
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    config = convert(read(tmp_path / "job.yaml"), None).loaded.config
    assert config is not None and config.model.family == family


@pytest.mark.parametrize(("line", "family"), [("f1 = true", "framepack_f1"), ("f1 = false", "framepack")])
def test_framepack_f1_of_musubi_tuner_is_a_family(tmp_path: Path, line: str, family: str) -> None:
    (tmp_path / "f.toml").write_text(f'dit = "/m/x.safetensors"\nnetwork_module = "networks.lora_framepack"\n{line}\n')
    taken = convert(read(tmp_path / "f.toml"), None)
    assert taken.loaded.config is not None and taken.loaded.config.model.family == family


def test_both_experts_of_musubi_tuner_are_taken_in_their_places(tmp_path: Path) -> None:
    """There the base model is the expert for low noise."""
    lines = {"dit": "wan2.2_t2v_low_noise_14B.safetensors", "dit_high_noise": "wan2.2_t2v_high_noise_14B.safetensors"}
    text = "".join(f'{name} = "/m/{file}"\n' for name, file in lines.items())
    path = tmp_path / "musubi.toml"
    rest = 'network_module = "networks.lora_wan"\ntask = "t2v-A14B"\ntimestep_boundary = 900\n'
    path.write_text(text + rest, encoding="utf-8")
    taken = convert(read(path), None)
    config = taken.loaded.config
    assert config is not None and config.model.family == "wan22"
    assert config.model.base_model == f"/m/{lines['dit_high_noise']}"
    assert config.model.transformer_2 == f"/m/{lines['dit']}"
    times = config.timesteps
    assert (times.train_experts, times.timestep_boundary, times.switch_boundary_every) == ("both", 0.9, 1)
    assert {note.key: note.path for note in taken.notes}["dit"] == "model.transformer_2"
    assert {note.key: note.fate for note in taken.notes}["task"] == "taken"


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """The path of every value of a file."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from leaves(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        for place, each in enumerate(value):
            yield from leaves(each, f"{path}[{place}]")
    elif path and value != {}:
        yield path


def is_told(path: str, keys: set[str]) -> bool:
    """Whether a value has a note: by its path, the row or table that it is in, or as the argument that it is."""
    name = path.rpartition(".")[2].lstrip("-")
    plain = {key.rpartition(" ")[2].rpartition(".")[2].lstrip("-") for key in keys}
    around = {path[:place] for place, sign in enumerate(path) if sign in ".["}
    return path in keys or name in plain or bool(around & keys)


@pytest.mark.parametrize("program", ["OneTrainer", "SimpleTuner"])
def test_every_name_of_these_programs_is_mapped_or_has_its_reason(program: str) -> None:
    names = json.loads((FILES / "names.json").read_text(encoding="utf-8"))[f"{program}, names in them"].split()
    data: dict[str, Any] = {"training_method": "LORA", "model_type": "FLUX_DEV_1"}
    if program == "SimpleTuner":
        data = {"model_family": "flux", "data_backend_config": "x.json"}
    for name in names:
        table, _, inner = name.rpartition(".")
        (data.setdefault(table, {}) if table else data).setdefault(inner, "7")
    notes = convert(read_raw(json.dumps(data).encode())).notes
    assert set(names) <= {note.key for note in notes}
    assert not [note.key for note in notes if note.fate == "unknown"]


_OF_FOLDERS = (
    "image_dir",
    "image_directory",
    "control_directory",
    "num_repeats",
    "path",
    "control_path",
    "folder_path",
)


@pytest.mark.parametrize("name", ROWS)
def test_the_command_accounts_for_every_name_of_a_file(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    assert main([str(FILES / name)], lines.append) == 0
    document = read_document(FILES / name)
    source = of_document(document, FILES)
    keys = {note.key for note in convert(source).notes}
    paths = list(source.names.values()) if document.form == "command" else list(leaves(document.data))
    assert not [path for path in paths if path.rpartition(".")[2] not in _OF_FOLDERS and not is_told(path, keys)]
    assert all("\n" not in note.sentence() for note in convert(source).notes)


@pytest.mark.parametrize("name", ROWS)
def test_training_with_it_is_refused_in_one_sentence_with_the_command(name: str) -> None:
    (problem,) = load(FILES / name).problems
    title = TITLES[kind_of(read_document(FILES / name))]  # type: ignore[index]
    assert title in problem.text and "launcher.py import" in problem.remedy and name in problem.remedy


def test_our_own_files_with_mistakes_are_told_line_by_line(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[network]\nnetwork_dim = "wide"\n[model]\nclip_l = 3\n', encoding="utf-8")
    assert len(load(own).errors) == 2
    own.write_text("schema_version = 1\nnetwork_dim = 3\nlearning_rate = 1.0\n", encoding="utf-8")
    assert all("import" not in problem.remedy for problem in load(own).errors)


def lora_file(path: Path, metadata: dict[str, str]) -> Path:
    """A LoRA file with nothing but metadata."""
    header = json.dumps({"__metadata__": metadata}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def test_a_lora_file_gives_the_settings_that_it_was_trained_with(tmp_path: Path) -> None:
    path = lora_file(tmp_path / "cat.safetensors", {
        "ss_network_module": "networks.lora", "ss_network_dim": "32", "ss_network_alpha": "16.0",
        "ss_network_args": '{"conv_dim": "8", "conv_alpha": "4"}', "ss_base_model_version": "sdxl_base_v1-0",
        "ss_optimizer": "bitsandbytes.optim.adamw.AdamW8bit(weight_decay=0.1,betas=(0.9, 0.95))",
        "ss_learning_rate": "0.0001", "ss_unet_lr": "0.0002", "ss_text_encoder_lr": "None", "ss_seed": "7",
        "ss_max_train_steps": "1200", "ss_num_epochs": "12", "ss_resolution": "(1024, 1024)", "ss_epoch": "12",
        "ss_tag_frequency": "{}", "ss_clip_skip": "None", "modelspec.title": "cat", "ss_mystery": "3",
    })  # fmt: skip
    taken = convert(read(path))
    assert taken.title == TITLES["lora"] and taken.loaded.config is not None
    wanted = {
        "model.family": "sdxl", "network.network_dim": 32, "network.conv_dim": 8, "network.conv_alpha": 4.0,
        "optimizer.optimizer": "adamw8bit", "optimizer.weight_decay": 0.1, "optimizer.betas": [0.9, 0.95],
        "optimizer.learning_rate": 2e-4, "training.max_train_steps": 1200, "training.seed": 7,
        "dataset.resolution": 1024,
    }  # fmt: skip
    assert {key: get(taken.loaded.config, key) for key in wanted} == wanted
    outcomes = {note.key: note.fate for note in taken.notes}
    assert outcomes["ss_mystery"] == "unknown" and outcomes["ss_epoch"] == outcomes["modelspec.title"] == "not needed"
    empty = lora_file(tmp_path / "plain.safetensors", {})
    assert "not how they were trained" in convert(read(empty)).loaded.errors[0].text


def test_time_grows_with_a_file_and_no_faster() -> None:
    text = 'network_module = "networks.lora_flux"\n' + "".join(f"unknown_{n} = {n}\n" for n in range(1500))
    begin = time.perf_counter()
    notes = convert(read_raw(text.encode())).notes
    # it took ten seconds when each line was read with all lines above it
    assert time.perf_counter() - begin < 4
    assert next(note.line for note in notes if note.key == "unknown_1499") == 1501


_WEIRD = (
    None,
    True,
    -1,
    0,
    1e400,
    "",
    "x",
    [],
    {},
    [1, "a", None],
    {"a": {"b": [1]}},
    [{"x": 1}],
    "9" * 400,
    [[1], [2]],
)


def mutated(value: Any, chance: random.Random) -> Any:
    """The same with some values replaced by what nobody writes."""
    if isinstance(value, dict):
        items = value.items()
        return {k: chance.choice(_WEIRD) if chance.random() < 0.12 else mutated(v, chance) for k, v in items}
    if isinstance(value, list):
        return [chance.choice(_WEIRD) if chance.random() < 0.08 else mutated(each, chance) for each in value]
    return value


def test_no_value_whatever_ends_in_an_exception() -> None:
    chance = random.Random(5)
    names = [name for name in ROWS if not name.endswith((".sh", ".bat"))]
    documents = {name: read_document(FILES / name) for name in names}
    for _ in range(80):
        document = documents[chance.choice(names)]
        beside = documents[chance.choice([name for name in names if "dataset" in name])]
        source = of_document(Document(document.form, mutated(copy.deepcopy(document.data), chance)), FILES)
        second = of_document(Document(beside.form, mutated(copy.deepcopy(beside.data), chance)), FILES)
        taken = convert(source, second if chance.random() < 0.3 else None)
        assert taken.loaded.config is not None or taken.loaded.errors


@pytest.mark.parametrize(("reads_inside", "fate"), [(False, ["sub-folders are read too"]), (True, [])])
def test_sub_folders_that_onetrainer_leaves_out_are_mentioned(
    tmp_path: Path, reads_inside: bool, fate: list[str]
) -> None:
    (tmp_path / "cats" / "more").mkdir(parents=True)
    concept = {"path": str(tmp_path / "cats"), "include_subdirectories": reads_inside, "enabled": True}
    text = json.dumps({"training_method": "LORA", "concepts": [concept], "optimizer_defaults": {}})
    converted = convert(read_raw(text.encode()))
    assert [note.why for note in converted.with_fate("near") if "folder" in note.why] == fate
