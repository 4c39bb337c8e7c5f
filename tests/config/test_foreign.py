"""Settings of other programs, as they write them, and what becomes of each name."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import toml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from backend.config.load import load
from backend.config.schema import Config, get
from backend.importers.__main__ import main
from backend.importers.convert import Converted, convert
from backend.importers.prompts import read_prompts
from backend.importers.source import read, read_raw

FILES = Path(__file__).parent / "foreign"


def brought(name: str, dataset: str | None = None) -> tuple[Converted, Config]:
    """A file of `FILES` as ours; nothing of it may be wrong any more."""
    converted = convert(read(FILES / name), read(FILES / dataset) if dataset else None)
    assert not converted.loaded.errors
    assert converted.loaded.config is not None
    return converted, converted.loaded.config


def fates(converted: Converted) -> dict[str, str]:
    return {note.key: note.fate for note in converted.notes}


def holds(config: Config, wanted: dict[str, Any]) -> None:
    assert {path: get(config, path) for path in wanted} == wanted


def test_arguments_of_sd_scripts_with_their_dataset() -> None:
    converted, config = brought("flux.toml", "dataset.toml")
    holds(config, {
        "model.family": "flux", "model.base_model": "D:/models/flux1-dev.safetensors",
        "model.vae": "D:/models/ae.safetensors", "model.text_encoder_2": "D:/models/t5xxl_fp16.safetensors",
        "network.network_dim": 32, "network.network_alpha": 16.0, "optimizer.optimizer": "adamw8bit",
        "network.loraplus_lr_ratio": 4.0,
        "optimizer.weight_decay": 0.1, "optimizer.betas": [0.9, 0.95], "optimizer.optimizer_args": {"amsgrad": True},
        "optimizer.lr_scheduler": "constant", "optimizer.lr_warmup": 100.0, "training.max_train_epochs": 16,
        "training.max_train_steps": None, "training.seed": 7, "timesteps.timestep_sampling": "shift",
        "timesteps.discrete_flow_shift": 3.1582, "memory.base_quantization": "fp8", "memory.blocks_to_swap": 9 + 2 * 9,
        "compile.attention": "sdpa", "saving.output_name": "my-flux", "saving.save_every_n_epochs": 4,
        "dataset.resolution": 1024, "dataset.batch_size": 2, "dataset.min_bucket_size": 512,
        "dataset.max_bucket_size": 1536, "dataset.no_upscale": True, "dataset.caption_extension": ".txt",
        "dataset.caption_dropout_rate": 0.05,
    })  # fmt: skip
    assert [(f.path, f.num_repeats, f.is_reg) for f in config.dataset.folders] == [
        ("D:/pictures/cat", 10, False),
        ("D:/pictures/world", 1, False),
        ("D:/pictures/reg", 1, True),
    ]
    outcomes = fates(converted)
    assert outcomes["scale_everything"] == "unknown"
    assert outcomes["network_args loraplus_lr_ratio"] == "taken" and outcomes["network_args layers"] == "taken"
    assert outcomes["huggingface_token"] == outcomes["cache_latents_to_disk"] == "not needed"
    assert outcomes["datasets[1].subsets[0].is_reg"] == "near"
    assert outcomes["general.shuffle_caption"] == outcomes["general.keep_tokens"] == "taken"
    near = next(note for note in converted.notes if "differ" in note.why)
    assert near.fate == "near" and near.line == 17
    assert next(note.line for note in converted.notes if note.key == "scale_everything") == 40
    assert not any("hf_abc" in note.sentence() for note in converted.notes)


def test_arguments_of_musubi_with_prompts() -> None:
    converted, config = brought("musubi.toml", "musubi_dataset.toml")
    assert converted.title == "arguments of musubi-tuner"
    holds(config, {
        "model.family": "flux_kontext", "model.base_model": "/models/flux1-kontext-dev.safetensors",
        "model.text_encoder": "/models/clip_l.safetensors", "model.text_encoder_2": "/models/t5xxl_fp16.safetensors",
        "network.network_alpha": 1.0, "optimizer.optimizer": "paged_adamw8bit", "optimizer.lr_scheduler": "constant",
        "optimizer.lr_warmup": 0.0, "timesteps.timestep_sampling": "flux_shift", "compile.attention": "flash2",
        "compile.compile_mode": "max-autotune-no-cudagraphs", "compile.compile_dynamic": "false",
        "compile.compile_cache_size_limit": 32, "memory.checkpointing_kind": "offload",
        "memory.text_encoder_quantization": "int8", "saving.save_last_n": 3, "dataset.resolution": 723,
        "memory.blocks_to_swap": 6 + 2 * 6 + 1,
        "training.max_train_steps": 3000,
    })  # fmt: skip
    assert [(f.path, f.control_path, f.num_repeats) for f in config.dataset.folders] == [
        ("/data/after", "/data/before", 2)
    ]
    first, second = config.sampling.prompts
    assert (first.prompt, first.width, first.height, first.seed) == ("make the cat blue", 1024, 768, 3)
    assert (first.steps, first.guidance_scale, first.control_image) == (24, 2.5, "/data/cat.png")
    assert (second.negative_prompt, second.true_cfg_scale, second.width) == ("blurry, dark", 4.0, 256)
    outcomes = fates(converted)
    assert outcomes["sample_prompts --fs"] == outcomes["datasets[1].video_directory"] == "not offered"
    assert outcomes["network_alpha"] == "default"


def test_clips_of_musubi_are_folders_with_their_settings(tmp_path: Path) -> None:
    arguments, dataset = tmp_path / "arguments.toml", tmp_path / "dataset.toml"
    arguments.write_text(
        toml.dumps({"dit": "/m/wan2.1_t2v_14B_bf16.safetensors", "network_module": "networks.lora_wan"})
    )
    clips = {
        "video_directory": "/d/clips", "target_frames": [1, 25, 81], "frame_extraction": "uniform", "frame_sample": 4,
        "frame_stride": 10, "max_frames": 121, "source_fps": 30.0, "num_repeats": 2,
    }  # fmt: skip
    dataset.write_text(toml.dumps({"datasets": [{"image_directory": "/d/i"}, clips]}))
    converted = convert(read(arguments), read(dataset))
    assert converted.loaded.config is not None and not converted.loaded.errors
    config = converted.loaded.config
    holds(config, {
        "model.family": "wan", "video.target_frames": [1, 25, 81], "video.frame_extraction": "uniform",
        "video.frame_sample": 4, "video.frame_stride": 10, "video.max_frames": 121, "video.source_fps": 30.0,
    })  # fmt: skip
    assert [(f.path, f.num_repeats) for f in config.dataset.folders] == [("/d/i", 1), ("/d/clips", 2)]
    del clips["source_fps"]
    dataset.write_text(toml.dumps({"datasets": [clips, {"video_jsonl_file": "/d/a.jsonl"}]}))
    converted = convert(read(arguments), read(dataset))
    notes = {note.key: note for note in converted.notes}
    assert notes["datasets[0].video_directory"].fate == "near" and "by time" in notes["datasets[0].video_directory"].why
    assert converted.loaded.config is not None
    assert [f.path for f in converted.loaded.config.dataset.folders] == ["/d/clips", "/d/a.jsonl"]
    # the data set on its own names no family: the person does
    alone = convert(read(dataset), None, "wan").loaded.config
    assert alone is not None and [f.path for f in alone.dataset.folders] == ["/d/clips", "/d/a.jsonl"]
    assert alone.model.family == "wan" and alone.video.target_frames == [1, 25, 81]
    # of a family of pictures nothing of it is taken
    flux = convert(read(dataset), None, "flux")
    assert {n.fate for n in flux.notes if n.key.endswith(("video_directory", "target_frames"))} <= {
        "not offered",
        "off",
    }


def test_musubis_edit_2511_keeps_its_control_pictures(tmp_path: Path) -> None:
    arguments, dataset = tmp_path / "arguments.toml", tmp_path / "dataset.toml"
    document = {
        "dit": "/m/2511.safetensors",
        "model_version": "edit-2511",
        "network_module": "networks.lora_qwen_image",
    }
    arguments.write_text(toml.dumps(document))
    row = {"image_directory": "/d/i", "control_directory": "/d/c", "control_resolution": [768, 768]}
    dataset.write_text(toml.dumps({"datasets": [row]}))
    converted = convert(read(arguments), read(dataset))
    assert converted.loaded.config is not None and not converted.loaded.errors
    holds(converted.loaded.config, {
        "model.family": "qwen_image_edit_plus", "model.zero_cond_t": "on", "dataset.control_resolution": 768,
    })  # fmt: skip
    assert converted.loaded.config.dataset.folders[0].control_path == "/d/c"
    rows, left = read_prompts("a --ci /d/a.png --ci /d/b.png --ci /d/c.png --ci /d/d.png", {})
    assert rows[0] == {"prompt": "a"} | {
        f"control_image{n}": f"/d/{x}.png" for n, x in (("", "a"), ("_2", "b"), ("_3", "c"))
    }
    assert [flag for _, flag, _ in left] == ["--ci"]


def test_a_preset_of_kohya_ss() -> None:
    converted, config = brought("sdxl.json")
    holds(config, {
        "model.family": "sdxl", "dataset.resolution": 1024, "dataset.batch_size": 2, "dataset.bucket_step": 64,
        "network.network_dim": 8, "network.network_alpha": 1.0, "network.train_text_encoder": True,
        "network.lora_weight_dtype": "bf16", "optimizer.optimizer": "prodigy", "optimizer.learning_rate": 3e-4,
        "optimizer.text_encoder_lr": None, "optimizer.lr_warmup": 0.1, "optimizer.weight_decay": 0.01,
        "optimizer.optimizer_args": {"weight_decouple": True, "bias_correction": True}, "training.max_train_epochs": 10,
        "training.gradient_accumulation_steps": 2, "loss.min_snr_gamma": 5.0, "loss.noise_offset": 0.05,
        "loss.prediction_type": "auto", "sampling.sample_every_n_epochs": 1, "sampling.sample_every_n_steps": None,
        "saving.save_precision": "fp32", "compile.compile": True, "compile.attention": "auto", "training.seed": 42,
    })  # fmt: skip
    folders = [(folder.path, folder.is_reg) for folder in config.dataset.folders]
    assert folders == [("/data/img", False), ("/data/reg", True)]
    assert config.sampling.prompts[0].true_cfg_scale == 6
    outcomes = fates(converted)
    assert outcomes["reg_data_dir"] == "near" and outcomes["shuffle_caption"] == "taken"
    # what kohya_ss writes into every preset, used or not
    assert (
        outcomes["network_args conv_dim"] == outcomes["clip_skip"] == "off" and outcomes["max_token_length"] == "taken"
    )
    assert outcomes["xformers"] == "near"
    assert outcomes["dynamo_backend"] == "not needed"


@pytest.mark.parametrize("name", ["flux.toml", "musubi.toml", "sdxl.json"])
def test_every_name_of_a_file_is_told_of_once_with_its_line(name: str) -> None:
    source = read(FILES / name)
    notes = convert(source).notes
    for key in source.values:
        if key in ("conv_dim", "conv_alpha"):
            key = f"network_args {key}"
        notes_of_key = [note for note in notes if note.key == key]
        assert len(notes_of_key) == 1, (key, notes_of_key)
        assert notes_of_key[0].line, key


@pytest.mark.parametrize(
    ("network", "values", "wanted"),
    [
        # sd-scripts' LoCon: alpha 1 where nothing is said
        ("networks.lora", ["conv_dim=8"], {"conv_dim": 8, "conv_alpha": 1.0, "network_type": "lora"}),
        ("networks.lora", ["conv_dim=8", "conv_alpha=4"], {"conv_dim": 8, "conv_alpha": 4.0}),
        ("networks.lora", ["conv_alpha=4"], {"conv_dim": None, "conv_alpha": None}),
        # LyCORIS': as large as the other layers where nothing is said
        ("lycoris.kohya", ["algo=locon"], {"conv_dim": 16, "conv_alpha": 2.0, "network_type": "lora"}),
        ("lycoris.kohya", ["algo=lokr", "factor=8"], {"conv_dim": None, "lokr_factor": 8, "network_type": "lokr"}),
        ("lycoris.kohya", ["algo=lokr", "factor=-1"], {"lokr_factor": None, "network_type": "lokr"}),
        ("networks.loha", [], {"conv_dim": None, "network_type": "loha"}),
        ("lycoris.kohya", ["algo=lora", "dora_wd=True"], {"conv_dim": 16, "network_type": "dora"}),
        ("lycoris.kohya", ["algo=locon", "dora_wd=False"], {"network_type": "lora"}),
        ("lycoris.kohya", ["algo=loha", "dora_wd=True"], {"network_type": "loha"}),
        # sd-scripts' own network knows nothing of it
        ("networks.lora", ["dora_wd=True"], {"network_type": "lora"}),
    ],
)  # fmt: skip
def test_networks_of_other_programs(network: str, values: list[str], wanted: dict[str, Any]) -> None:
    text = toml.dumps({
        "network_module": network, "network_dim": 16, "network_alpha": 2, "network_args": values,
        "pretrained_model_name_or_path": "sd_xl_base_1.0.safetensors",
    })  # fmt: skip
    converted = convert(read_raw(text.encode()))
    assert converted.loaded.config is not None and converted.loaded.config.model.family == "sdxl"
    holds(converted.loaded.config, {f"network.{name}": value for name, value in wanted.items()})
    flux = convert(read_raw(text.replace("sd_xl_base", "flux1").encode())).loaded.config
    assert flux is not None and flux.network.conv_dim is None


@pytest.mark.parametrize(
    ("lora_type", "kind", "fate"),
    [("LyCORIS/LoCon", "dora", "taken"), ("LyCORIS/LoKr", "lokr", "not offered"), ("Standard", "lora", "off")],
)
def test_dora_of_a_preset_counts_beside_lycoris_lora(lora_type: str, kind: str, fate: str) -> None:
    converted = convert(read_raw(json.dumps({"LoRA_type": lora_type, "sdxl": True, "dora_wd": True}).encode()))
    assert converted.loaded.config is not None and converted.loaded.config.network.network_type == kind
    assert fates(converted)["network_args dora_wd"] == fate


def test_a_dora_over_inputs_is_said_to_be_another() -> None:
    text = toml.dumps({
        "network_module": "lycoris.kohya", "network_args": ["dora_wd=True", "wd_on_output=False"], "sdxl": True,
        "pretrained_model_name_or_path": "sd_xl_base_1.0.safetensors",
    })  # fmt: skip
    converted = convert(read_raw(text.encode()))
    (note,) = [note for note in converted.notes if note.key == "network_args wd_on_output"]
    assert note.fate == "near" and "an input's" in note.why


def test_presets_of_kohya_ss_quote_arguments_and_carry_what_is_not_used() -> None:
    preset = {
        "LoRA_type": "Standard", "sdxl": True, "optimizer": "Prodigy", "multires_noise_iterations": 0,
        "multires_noise_discount": 0, "optimizer_args": '"d0=1e-5" "weight_decay=0.4" "betas=0.9,0.99" decouple="True"',
    }  # fmt: skip
    converted = convert(read_raw(json.dumps(preset).encode()))
    assert converted.loaded.config is not None
    holds(converted.loaded.config, {
        "optimizer.weight_decay": 0.4, "optimizer.betas": [0.9, 0.99],
        "optimizer.optimizer_args": {"d0": 1e-5, "weight_decouple": True},
    })  # fmt: skip
    assert fates(converted)["multires_noise_discount"] == "not needed" and "kind of training" not in fates(converted)
    embedding = convert(read_raw(json.dumps({"sdxl": True, "train_batch_size": 1, "token_string": "x"}).encode()))
    assert fates(embedding)["kind of training"] == "not offered"


@pytest.mark.parametrize(
    "raw,line,words",
    [
        (b"network_dim = 16\nlearning_rate = 1e\n", 2, ""),
        (b'{\n"LoRA_type": "Flux1",\n"epoch": 3,,\n}', 3, "not valid JSON"),
        (b'{"a": 1}', None, "not settings of a program that Monotile knows"),
        (b'[{"a": 1}]', None, "not settings of a program that Monotile knows"),
        (b"model:\n  rank: 16\n", None, "the file is YAML"),
        (b"model: [1\nb: 2\n", 2, "not valid YAML"),
        (b"a: &x [1]\nconfig: *x\n", None, "repeats parts of itself"),
        (b'accelerate launch train.py --network_dim "16\n', None, "line 1: No closing quotation"),
        (b'{"model_family": "ltxvideo", "model_type": "lora"}', 1, "the model family ltx_video, which"),
        (b'model_family = "ltxvideo"\nlearning_rate = 1e-4\n', 1, "the model family ltx_video, which"),
        (b'{"training_method": "LORA", "model_type": "CHROMA_1"}', 1, "the model family chroma, which"),
        (b"config:\n  process:\n  - model:\n      arch: ltx2\n", 4, "the model family ltx_video, which"),
        (b'pipeline_stages = 1\n[model]\ntype = "cosmos"\n', 3, "the model family cosmos, which"),
        (
            b'network_module = "networks.lora_kandinsky"\ndit = "k.safetensors"\n',
            1,
            "the model family kandinsky5, which",
        ),
        (b'{"LoRA_type": "Lumina"}', 1, "the model family lumina, which"),
        (b"a" + b".a" * 5000 + b" = 1", None, "nested too deeply"),
        (b'{"x": ' + b"[" * 400 + b"]" * 400 + b"}", None, "nested too deeply"),
        (b"config: " + b"[" * 200 + b"]" * 200, None, "nested too deeply"),
        (b"#" * 2_000_001, None, "too large for settings, over 2 MB"),
        (b"\xff\xfe\x00\x00", 1, "UTF-8"),
        (b"", None, "no settings"),
        (b"schema_version = 1\n[model]\n", None, "already contains settings of Monotile"),
    ],
)
def test_broken_files_are_refused_with_their_line(raw: bytes, line: int | None, words: str) -> None:
    loaded = convert(read_raw(raw)).loaded
    assert loaded.config is None
    assert loaded.errors[0].line == line
    assert words in loaded.errors[0].text


def test_a_value_that_does_not_fit_is_left_and_the_rest_is_taken() -> None:
    text = (
        'network_module = "networks.lora_flux"\nnetwork_dim = "wide"\noptimizer_type = "Ranger"\ntrain_batch_size = 3\n'
    )
    converted = convert(read_raw(text.encode()))
    assert converted.loaded.config is not None
    assert converted.loaded.config.dataset.batch_size == 3
    left = {note.key: note for note in converted.with_fate("not offered")}
    assert left["network_dim"].line == 2
    assert "Ranger" in left["optimizer_type"].why


def test_families_and_networks_that_are_not_here_are_said() -> None:
    converted = convert(
        read_raw(b'network_module = "lycoris.kohya"\nnetwork_args = ["algo=boft"]\nresolution = "512,512"\n')
    )
    assert "LyCORIS" in next(note.why for note in converted.notes if note.key == "network kind")
    assert converted.loaded.config is not None and converted.loaded.config.model.family == "sd15"
    unnamed = convert(read_raw(b'dit = "some.safetensors"\n'))
    assert unnamed.loaded.config is not None and fates(unnamed)["model family"] == "near"
    guessed = convert(read_raw(b"network_dim = 8\nclip_skip = 2\n"), family="anima").loaded.config
    assert guessed is not None and guessed.model.family == "anima"
    named = convert(read_raw(b'dit = "some.safetensors"\n'), family="qwen_image")
    assert named.loaded.config is not None and named.loaded.config.model.family == "qwen_image"


def test_the_three_text_encoders_of_sd3_go_to_their_places() -> None:
    lines = ['network_module = "networks.lora_sd3"', 'clip_l = "l"', 'clip_g = "g"', 't5xxl = "t"']
    config = convert(read_raw("\n".join(lines).encode())).loaded.config
    assert config is not None and config.model.family == "sd3"
    assert (config.model.text_encoder, config.model.text_encoder_2, config.model.text_encoder_3) == ("l", "g", "t")


def test_the_command_shows_before_it_writes(tmp_path: Path) -> None:
    lines: list[str] = []
    line = [str(FILES / "flux.toml"), "--dataset", str(FILES / "dataset.toml")]
    assert main(line, lines.append) == 0
    text = "".join(lines)
    assert (
        "network.network_dim: 16 -> 32" in text and "line 40: scale_everything" in text and "Nothing is written" in text
    )
    out = tmp_path / "out.toml"
    assert main([*line, "-o", str(out)], lines.append) == 0
    loaded = load(out)
    assert loaded.config == brought("flux.toml", "dataset.toml")[1]
    before = out.read_bytes()
    assert main([*line, "-o", str(out)], lines.append) == 2
    assert out.read_bytes() == before
    broken = tmp_path / "broken.toml"
    broken.write_text("network_dim = = 3\n", encoding="utf-8")
    assert main([str(broken), "-o", str(tmp_path / "never.toml")], lines.append) == 2
    assert "line 1" in lines[-1] and not (tmp_path / "never.toml").exists()


@hypothesis_settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 512), st.sampled_from(["bf16", "fp16", "no"]), st.integers(0, 20), st.integers(1, 9000),
    st.floats(1e-7, 1.0), st.sampled_from(["uniform", "sigmoid", "shift", "flux_shift"]),
)  # fmt: skip
def test_what_is_the_same_in_both_comes_over_unchanged(
    dim: int, precision: str, swap: int, steps: int, rate: float, sampling: str
) -> None:
    text = toml.dumps({
        "network_module": "networks.lora_flux", "network_dim": dim, "mixed_precision": precision,
        "blocks_to_swap": swap,
        "max_train_steps": steps, "learning_rate": rate, "timestep_sampling": sampling, "gradient_checkpointing": True,
    })  # fmt: skip
    config = convert(read_raw(text.encode())).loaded.config
    assert config is not None
    theirs = tomllib.loads(text)
    holds(config, {
        "network.network_dim": dim, "training.mixed_precision": precision, "training.max_train_steps": steps,
        "optimizer.learning_rate": theirs["learning_rate"], "timesteps.timestep_sampling": sampling,
    })  # fmt: skip


def test_prompt_lines() -> None:
    rows, left = read_prompts("a -- b --W 512 --n x, y --l 0.5 --zz 3\n\n# no\n", {"steps": 20})
    assert rows == [{"prompt": "a -- b", "steps": 20, "width": 512, "negative_prompt": "x, y", "true_cfg_scale": 1}]
    assert left == [(1, "--zz", "an unknown option")]
    rows, left = read_prompts("a ball --f 33 --i /d/a.png --ei /d/b.png", {})
    assert rows == [{"prompt": "a ball", "frames": 33, "control_image": "/d/a.png"}]
    assert [flag for _, flag, _ in left] == ["--ei"]
