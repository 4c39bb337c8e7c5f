"""What a value does there, where it is not what it looks like: rates and alphas of 0, arguments, folders left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import toml

from backend.config.schema import by_path, get
from backend.importers.arguments import arguments
from backend.importers.commands import read_commands, training
from backend.importers.convert import Converted, convert
from backend.importers.source import Source, read, read_raw

GUI = {"LoRA_type": "Standard", "sdxl": True, "learning_rate": 1e-4}
SDXL = {"network_module": "networks.lora", "pretrained_model_name_or_path": "sd_xl_base_1.0.safetensors"}
FLUX = {"network_module": "networks.lora_flux", "pretrained_model_name_or_path": "flux1-dev.safetensors"}
LOKR = SDXL | {"network_module": "lycoris.kohya"}


def source(values: dict[str, Any]) -> Source:
    return read_raw((json.dumps(values) if "LoRA_type" in values else toml.dumps(values)).encode())


def brought(values: dict[str, Any], dataset: dict[str, Any] | None = None, family: str = "") -> Converted:
    beside = read_raw(toml.dumps(dataset).encode()) if dataset else None
    converted = convert(source(values), beside, family)
    assert converted.loaded.config is not None and not converted.loaded.errors
    return converted


RATE, TEXT, TRAINED = "optimizer.learning_rate", "optimizer.text_encoder_lr", "network.train_text_encoder"
ALPHA, CONV_ALPHA, ARGS = "network.network_alpha", "network.conv_alpha", "optimizer.optimizer_args"
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two rates of 0 train both parts at the common one": (
        GUI | {"unet_lr": 0, "text_encoder_lr": 0}, {RATE: 1e-4, TEXT: None, TRAINED: True}
    ),
    "the encoders' rate alone trains them alone": (
        GUI | {"unet_lr": 0, "text_encoder_lr": 5e-5}, {RATE: 0.0, TEXT: 5e-5, TRAINED: True}
    ),
    "the denoiser's rate alone trains it alone": (
        GUI | {"unet_lr": 2e-4, "text_encoder_lr": 0}, {RATE: 2e-4, TEXT: None, TRAINED: False}
    ),
    "the trainer's own rate of 0 leaves the denoiser alone": (
        SDXL | {"unet_lr": 0, "text_encoder_lr": 5e-5}, {RATE: 0.0, TEXT: 5e-5, TRAINED: True}
    ),
    "a switch for the encoders alone": (
        SDXL | {"learning_rate": 3e-4, "network_train_text_encoder_only": True}, {RATE: 0.0, TEXT: 3e-4, TRAINED: True}
    ),
    "further arguments rule over the preset's": (
        GUI | {"unet_lr": 1e-4, "text_encoder_lr": 1e-4, "max_grad_norm": 1,
               "additional_parameters": "--network_train_unet_only --max_grad_norm=0 --seed 9"},
        {TRAINED: False, TEXT: None, "optimizer.max_grad_norm": 0.0, "training.seed": 9},
    ),
    "a preset with a data set file and no steps": (
        GUI | {"epoch": 150, "max_train_steps": 0, "dataset_config": "x.toml"},
        {"training.max_train_steps": 1600, "training.max_train_epochs": None},
    ),
    "the same without one": (GUI | {"epoch": 15, "max_train_steps": 0}, {"training.max_train_epochs": 15}),
    "an alpha of 0 is the rank": (SDXL | {"network_dim": 8, "network_alpha": 0}, {ALPHA: 8.0}),
    "an alpha of 0 without a rank": (SDXL | {"network_alpha": 0}, {"network.network_dim": 4, ALPHA: 4.0}),
    "an alpha of 0 in a preset": (GUI | {"network_dim": 32, "network_alpha": 0}, {ALPHA: 32.0}),
    "an alpha of 0 of convolutions": (
        SDXL | {"network_args": ["conv_dim=8", "conv_alpha=0"]}, {"network.conv_dim": 8, CONV_ALPHA: 8.0}
    ),
    "a seed of 0 is one": (SDXL | {"seed": 0}, {"training.seed": 0}),
    "a seed of 0 in a preset is none": (GUI | {"seed": 0}, {"training.seed": 42}),
    "arguments with commas between": (
        GUI | {"optimizer": "Prodigy", "optimizer_args": "weight_decay=0.5, decouple=True, betas=(0.9, 0.99), "
               "use_bias_correction=False,"},
        {"optimizer.weight_decay": 0.5, "optimizer.betas": [0.9, 0.99],
         ARGS: {"weight_decouple": True, "bias_correction": False}},
    ),
    "an argument of another type is left": (
        SDXL | {"optimizer_type": "Prodigy", "optimizer_args": ["decouple=[True]", "d_coef=2"]}, {ARGS: {"d_coef": 2}}
    ),
    "dropout and full matrix of lycoris": (
        LOKR | {"network_dim": 8, "network_args": ["algo=lokr", "full_matrix=True", "dropout=0.1"]},
        {"network.network_type": "lokr", "network.network_dim": 4096, "network.network_dropout": 0.1},
    ),
    "neither counts in sd-scripts' own network": (
        SDXL | {"network_dim": 8, "network_args": ["full_matrix=True", "dropout=0.1"]},
        {"network.network_dim": 8, "network.network_dropout": 0.0},
    ),
    "text encoders that a preset leaves alone": (
        {"LoRA_type": "Standard", "sdxl": True, "train_text_encoder": False}, {TRAINED: False}
    ),
    "locon by its short name": (
        GUI | {"LoRA_type": "LoCon", "conv_dim": 4, "conv_alpha": 1}, {"network.conv_dim": 4, CONV_ALPHA: 1.0}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_value_comes_over_as_what_it_does_there(name: str) -> None:
    values, wanted = ROWS[name]
    config = brought(values).loaded.config
    assert config is not None
    assert {path: get(config, path) for path in wanted} == wanted


def test_what_is_taken_is_not_warned_about_by_our_own_rules() -> None:
    """A default that a file writes out, and a part that trains at a rate of 0 on purpose, deserve no warning."""
    for values in (
        FLUX | {"timestep_sampling": "sigma", "discrete_flow_shift": 1.0},
        GUI | {"unet_lr": 0, "text_encoder_lr": 5e-5},
        GUI | {"unet_lr": 1e-4, "text_encoder_lr": 1e-4, "additional_parameters": "--network_train_unet_only"},
    ):
        assert not brought(values).loaded.problems, values
    short = brought(GUI | {"LoRA_type": "LoCon", "conv_dim": 4})
    assert not [note for note in short.notes if note.key == "network kind"]


def rows(*folders: dict[str, Any], **general: Any) -> dict[str, Any]:
    return {"general": general, "datasets": [{"subsets": [folder]} for folder in folders]}


def test_folders_that_are_left_out_say_nothing_for_the_others() -> None:
    other = {"image_dir": "", "metadata_file": "/b.json", "class_tokens": "girl", "caption_extension": ".cap"}
    config = brought(rows({"image_dir": "/a"}, other)).loaded.config
    assert config is not None and config.dataset.trigger_word is None
    assert [(folder.path, folder.class_tokens) for folder in config.dataset.folders] == [("/a", None)]
    assert config.dataset.caption_extension == ".caption"
    data = {"datasets": [
        {"resolution": 512, "subsets": [{"image_dir": "/a"}]},
        {"resolution": 1024, "subsets": [{"metadata_file": "/b.json"}]},
    ]}  # fmt: skip
    config = brought(data).loaded.config
    assert config is not None and config.dataset.resolution == 512


def test_class_tokens_are_the_captions_of_their_own_folder() -> None:
    """Where there is no caption file, as in the other program; the trigger word goes to every caption."""
    two = brought(rows({"image_dir": "/a", "class_tokens": "sks cat"}, {"image_dir": "/b", "is_reg": True}))
    same = brought(rows({"image_dir": "/a"}, {"image_dir": "/b"}, class_tokens="sks cat"))
    for converted, words in ((two, ["sks cat", None]), (same, ["sks cat", "sks cat"])):
        config = converted.loaded.config
        assert config is not None and config.dataset.trigger_word is None
        assert [folder.class_tokens for folder in config.dataset.folders] == words
    assert [folder.is_reg for folder in two.loaded.config.dataset.folders] == [False, True]


CONTROLLED = {"datasets": [{"image_directory": "/a", "control_directory": "/c"}, {"image_directory": "/b"}]}


@pytest.mark.parametrize(
    ("script", "family"),
    [
        ("sdxl_train_network.py", "sdxl"), ("flux_train_network.py", "flux"), ("sd3_train_network.py", "sd3"),
        ("src/musubi_tuner/qwen_image_train_network.py", "qwen_image"), ("wan_train_network.py", "wan"),
        (r"C:\\x\\fpack_train_network.py", "framepack"), ("hv_train_network.py", "hunyuan_video"),
    ],
)  # fmt: skip
def test_a_script_tells_the_family(script: str, family: str) -> None:
    converted = convert(read_raw(f"python {script} --network_dim 8 --fp8_base\n".encode()))
    if family in (by_path()["model.family"].choices or ()):
        assert converted.loaded.config is not None and converted.loaded.config.model.family == family
    else:
        assert family in converted.loaded.errors[0].text


def test_a_data_set_of_another_program_is_said() -> None:
    files = Path(__file__).parent / "foreign"
    for name, beside in (("onetrainer.json", "dataset.toml"), ("flux.toml", "simpletuner_dataset.json")):
        converted = convert(read(files / name), read(files / beside))
        assert any("can't be used with" in note.why for note in converted.with_fate("not offered")), name


def test_control_pictures_go_alone_and_their_folders_stay() -> None:
    alone = brought(CONTROLLED)
    assert alone.loaded.config is not None
    assert [(f.path, f.control_path) for f in alone.loaded.config.dataset.folders] == [("/a", None), ("/b", None)]
    assert any("/c" in note.sentence() and "--family" in note.why for note in alone.with_fate("not offered"))
    editing = brought(CONTROLLED, family="flux_kontext").loaded.config
    assert editing is not None and editing.dataset.folders[0].control_path == "/c"


def test_one_row_that_is_refused_leaves_the_others() -> None:
    data = {
        "datasets": [{"image_directory": "/a", "num_repeats": "often"}, {"image_directory": "/b", "num_repeats": 2}]
    }
    converted = brought(data)
    assert converted.loaded.config is not None
    assert [(f.path, f.num_repeats) for f in converted.loaded.config.dataset.folders] == [("/a", 1), ("/b", 2)]
    assert any(note.key == "datasets[0].num_repeats" and note.fate == "not offered" for note in converted.notes)


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (
            "weight_decay=0.5, decouple=True, betas=0.9,0.99",
            {"weight_decay": 0.5, "decouple": True, "betas": [0.9, 0.99]},
        ),
        ("betas=(0.9, 0.98) eps=1e-8", {"betas": [0.9, 0.98], "eps": 1e-8}),
        ('"d0=1e-5" "decouple=False,"', {"d0": 1e-5, "decouple": False}),
        (["betas=(0.9, 0.98)", "a=false,"], {"betas": [0.9, 0.98], "a": False}),
        ('name="two words" b=[1, 2]', {"name": "two words", "b": [1, 2]}),
        ({"weight_decay": "0.1", "flag": True}, {"weight_decay": 0.1, "flag": True}),
        ("", {}),
    ],
)
def test_arguments_are_split_outside_of_brackets(written: Any, wanted: dict[str, Any]) -> None:
    assert arguments(written) == wanted


def test_a_command_is_read_as_the_shell_reads_it(tmp_path: Path) -> None:
    text = "A=/m\nX=1 accelerate launch --x 1 a_train.py --base ${A}/b \\\n # no\n --flag --list 1 'a b' --open $B\n"
    command = training(read_commands(text))
    assert command is not None and command.launcher == ["--x"] and command.unset == {"open": {"B"}}
    assert command.values == {"base": "/m/b", "flag": True, "list": "1 a b", "open": "$B"}
    assert command.lines == {"base": 2, "flag": 4, "list": 4, "open": 4}
    several = "MORE='--b 2 --c 3'\npython a.py --x 1 && python b_train.py $MORE --d 4\n"
    command = training(read_commands(several))
    assert command is not None and command.values == {"b": "2", "c": "3", "d": "4"}
    batch = 'set "OUT=C:\\my out"\r\npython x_train.py ^\r\n --out "%out%\\a" --q "b c"\r\n'
    command = training(read_commands(batch))
    assert command is not None and command.values == {"out": "C:\\my out\\a", "q": "b c"}
    config = tmp_path / "more.toml"
    config.write_text("network_dim = 8\nseed = 3\n", encoding="utf-8")
    script = tmp_path / "run.sh"
    script.write_text("python flux_train_network.py --config_file more.toml --seed 5 \\\n"
                      " --network_module networks.lora_flux\n", encoding="utf-8")  # fmt: skip
    loaded = convert(read(script)).loaded.config
    assert loaded is not None and (loaded.network.network_dim, loaded.training.seed) == (8, 5)
