"""Full fine-tuning: the denoiser's own weights are trained, stopped, resumed and saved as a whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from backend.base.errors import Refused
from backend.config.load import load
from backend.config.schema import Config
from backend.config.toml_io import dump
from backend.families.files.base_model import BaseModelFiles
from backend.models.family_classes import load_family
from backend.optimizers.tensorwise import Tensorwise
from backend.runs.folder import Run
from backend.training import save_check
from backend.training.full_files import full_files
from backend.training.full_weights import FullWeights
from backend.training.requests import Requests
from backend.training.saved_files import WeightsNotFinite
from backend.training.trainable import own_optimizer
from tests.conftest import draw_pictures
from tests.tiny import originals
from tests.tiny.training import config, events, rows, same, train_here

STEPS = 6


def settings(base: Path, images: Path, where: Path, **changes: dict[str, Any]) -> Config:
    """A short run of the whole denoiser, eager, whose first step is no warm-up."""
    data: dict[str, dict[str, Any]] = {
        "training": {"kind": "full", "max_train_steps": STEPS},
        "optimizer": {"learning_rate": 1e-3, "lr_warmup": 0.0},
    }
    data["network"] = {"network_dim": 16, "network_alpha": 16.0}
    for section, values in changes.items():
        data[section] = {**data.get(section, {}), **values}
    return config(base, images, where, **data)


def state_of(run: Run) -> dict[str, Any]:
    """What the newest state holds of weights, optimizer and mean."""
    folder = run.state_dir / (run.state_dir / "latest").read_text()
    return {
        "weights": safetensors.torch.load_file(folder / "weights.safetensors"),
        **torch.load(folder / "optimizer.pt", weights_only=True),
    }


@pytest.fixture(scope="module")
def straight(tiny_flux: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that went through, with a mean, validation, samples and accumulation; nobody changes it."""
    where = tmp_path_factory.mktemp("full")
    run, code = train_here(accumulating(tiny_flux, draw_pictures(where / "images"), where))
    assert code == 0, events(run, "error")
    return run


def accumulating(base: Path, images: Path, where: Path, **changes: dict[str, Any]) -> Config:
    sections: dict[str, dict[str, Any]] = {
        "training": {"ema": True, "gradient_accumulation_steps": 2},
        "dataset": {"validation_split": 0.2},
        "validation": {"validate_every_n_steps": 3},
        "sampling": {
            "prompts": [{"prompt": "a dot", "width": 64, "height": 64, "steps": 1}],
            "sample_every_n_steps": 3,
        },
        "saving": {"model_layout": "diffusers"},
    }
    return settings(base, images, where, **{**sections, **changes})


def test_every_weight_of_the_denoiser_is_trained_and_saved(straight: Run, tiny_flux: Path) -> None:
    before = safetensors.torch.load_file(tiny_flux / "transformer" / "diffusion_pytorch_model.safetensors")
    after = safetensors.torch.load_file(
        straight.checkpoints_dir / "tiny" / "transformer" / "diffusion_pytorch_model.safetensors"
    )
    assert after.keys() == before.keys() == state_of(straight)["weights"].keys()
    assert [name for name, value in before.items() if value.float().equal(after[name].float())] == []
    assert [event["step"] for event in events(straight, "validation")] == [3, 6]
    assert [event["step"] for event in events(straight, "sample")] == [3, 6]
    # the page lists the folder, with the size of what is in it
    (folder,) = straight.model_folders()
    assert (folder.path.name, folder.step) == ("tiny", STEPS) and folder.size > sum(v.nbytes for v in after.values())
    assert straight.checkpoints() == []
    # what files have is the mean, and the state what is trained
    state = state_of(straight)
    assert same(after, state["ema"]["mean"]) and not same(after, state["weights"])


def test_a_run_stopped_in_the_middle_of_a_step_ends_with_the_same_bits(
    straight: Run, tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def stop(self: Requests) -> bool:
        looks.append(1)
        return len(looks) > 5

    monkeypatch.setattr(Requests, "stop", property(stop))
    monkeypatch.setattr(Requests, "check", lambda self: None)
    run, code = train_here(accumulating(tiny_flux, image_folder, tmp_path))
    monkeypatch.undo()
    assert code == 0 and run.status().state == "stopped", events(run, "error")
    assert train_here(accumulating(tiny_flux, image_folder, tmp_path), run, resume=True)[1] == 0, events(run, "error")
    assert same(state_of(run), state_of(straight))
    for column in ("loss", "lr", "grad_norm"):
        assert [row[column] for row in rows(run)] == [row[column] for row in rows(straight)], column


def test_compiled_blocks_give_the_eager_losses_and_the_planned_graphs(
    straight: Run, tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    """What is done between steps has graphs without gradients, which test_compiled.py counts."""
    how = {"compile": True, "compile_backend": "eager", "compile_cache_dir": str(tmp_path / "c")}
    few = {"ema": True, "gradient_accumulation_steps": 2, "max_train_steps": 2}
    cfg = accumulating(
        tiny_flux, image_folder, tmp_path, compile=how, training=few, sampling={}, validation={"validate_at_end": False}
    )
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    assert [row["loss"] for row in rows(run)] == pytest.approx([row["loss"] for row in rows(straight)][:2], rel=1e-5)
    last, planned = rows(run)[-1], events(run, "plan")[0]["graphs"]["planned"]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0) and planned == 2
    weights = run.checkpoints_dir / "tiny" / "transformer" / "diffusion_pytorch_model.safetensors"
    assert not [name for name in safetensors.torch.load_file(weights) if "_orig_mod" in name]


@pytest.mark.parametrize(("compiled", "device"), [(True, "cuda"), (True, "cpu"), (False, "cuda")])
def test_steps_of_tensors_are_compiled_with_the_blocks_on_a_gpu(compiled: bool, device: str, tmp_path: Path) -> None:
    cfg = settings(tmp_path, tmp_path, tmp_path, compile={"compile": compiled}, optimizer={"fused_backward": True})
    weights = FullWeights.of(torch.nn.Linear(2, 2), cfg.network)
    optimizer = own_optimizer(weights, cfg, torch.device(device))
    assert isinstance(optimizer, Tensorwise) and optimizer.compiled is (compiled and device == "cuda")


def test_a_fused_step_is_the_plain_one_and_bf16_weights_stay_near_it(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit without a limit of gradients; a bf16 run that swaps its blocks and is stopped ends as one that ran
    through without."""

    def trained(name: str, swapped: int = 0, **how: Any) -> Run:
        own = {"full_weight_dtype": how.pop("full_weight_dtype", "fp32"), "max_train_steps": 3}
        cfg = settings(
            tiny_flux, image_folder, tmp_path / name, training=own, saving={"model_layout": "diffusers"},
            memory={"blocks_to_swap": swapped},
            optimizer={"max_grad_norm": 0.0, "optimizer": "adafactor", "learning_rate": 1e-3, **how},
        )  # fmt: skip
        run, code = train_here(cfg)
        assert code == 0, events(run, "error")
        return run

    plain, fused = trained("plain"), trained("fused", fused_backward=True)
    assert same(state_of(fused)["weights"], state_of(plain)["weights"])
    for column in ("loss", "lr"):
        assert [row[column] for row in rows(fused)] == [row[column] for row in rows(plain)]
    norms = [[row["grad_norm"] for row in rows(run)] for run in (fused, plain)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)

    small = trained("bf16", fused_backward=True, full_weight_dtype="bf16")
    state = state_of(small)
    assert {value.dtype for value in state["weights"].values()} == {torch.bfloat16}
    assert [row["loss"] for row in rows(small)] == pytest.approx([row["loss"] for row in rows(plain)], rel=0.05)
    looks = []

    def stop(self: Requests) -> bool:
        looks.append(1)
        return len(looks) > 1

    monkeypatch.setattr(Requests, "stop", property(stop))
    monkeypatch.setattr(Requests, "check", lambda self: None)
    stopped = trained("stopped", swapped=3, fused_backward=True, full_weight_dtype="bf16")
    monkeypatch.undo()
    assert stopped.status().state == "stopped"
    assert train_here(load(stopped.config_path).config, stopped, resume=True)[1] == 0, events(stopped, "error")
    assert same(state_of(stopped)["weights"], state["weights"])
    assert [row["loss"] for row in rows(stopped)] == [row["loss"] for row in rows(small)]
    assert events(stopped, "swap")[0]["stored"] > 0
    files = [run.checkpoints_dir / "tiny/transformer/diffusion_pytorch_model.safetensors" for run in (small, stopped)]
    assert same(*map(safetensors.torch.load_file, files))


def test_parts_are_trained_by_pattern_at_rates_of_their_own(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    """The others stay as they are, bit by bit."""
    cfg = settings(
        tiny_flux, image_folder, tmp_path,
        training={"max_train_steps": 1},
        network={
            "targets_include": ["transformer_blocks.0", "proj_out"], "targets_exclude": ["attn.to_q"],
            "layer_settings": [{"layers": "attn.to_k", "learning_rate": 0.01}],
        },
        saving={"model_layout": "diffusers"},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    folder = "transformer/diffusion_pytorch_model.safetensors"
    before = safetensors.torch.load_file(tiny_flux / folder)
    after = safetensors.torch.load_file(run.checkpoints_dir / "tiny" / folder)
    moved = {name: (after[name] - before[name]).abs().max().item() for name in before}
    trained = {name for name in before if name.startswith("transformer_blocks.0.") or "proj_out." in name}
    trained = {name for name in trained if "attn.to_q." not in name}
    assert {name for name, most in moved.items() if most} == trained
    # Adam's first step is as long as its rate
    assert moved["transformer_blocks.0.attn.to_k.weight"] == pytest.approx(0.01, rel=0.1)
    assert moved["transformer_blocks.0.attn.to_v.weight"] == pytest.approx(0.001, rel=0.1)


@pytest.mark.parametrize("family", ["sdxl", "sd3"])
def test_other_families_train_their_whole_denoiser(
    family: str, image_folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """And save what they trained, where diffusers finds it; of SDXL with its text encoders."""
    base: Path = request.getfixturevalue(f"tiny_{family}")
    model = {"model": {"family": family, "text_length": 24 if family == "sd3" else None}}
    cfg = settings(
        base, image_folder, tmp_path,
        training={"max_train_steps": 2}, compile={"shape_mode": "off"}, saving={"model_layout": "diffusers"},
        network={"train_text_encoder": family == "sdxl"}, **model,
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    family_code = load_family(family)
    part = family_code.facts.denoiser.folder
    trained = family_code.model.from_pretrained(run.checkpoints_dir / "tiny", subfolder=part).state_dict()
    weights = state_of(run)["weights"]
    texts = {name: weights.pop(name) for name in [*weights] if name.startswith("text_encoder")}
    assert bool(texts) == (family == "sdxl")
    for folder, kind in {"text_encoder": CLIPTextModel, "text_encoder_2": CLIPTextModelWithProjection}.items():
        if texts:
            saved, base_own = (kind.from_pretrained(where, subfolder=folder).state_dict()
                               for where in (run.checkpoints_dir / "tiny", base))  # fmt: skip
            own = {name.removeprefix(f"{folder}."): each for name, each in texts.items() if f"{folder}." in name}
            assert saved.keys() >= own.keys() and all(saved[name].equal(each) for name, each in own.items())
            # what no loss reaches stays: the last layer of the smaller one, and tokens that no caption has
            moved = [name for name in own if not base_own[name].float().equal(saved[name].float())]
            assert len(moved) > len(own) / 2
    assert all(trained[name].equal(value) for name, value in weights.items())
    before = family_code.model.from_pretrained(base / part).state_dict()
    assert weights.keys() == before.keys() - {"pos_embed.pos_embed"}
    assert not [name for name in weights if before[name].equal(trained[name])]


@pytest.mark.parametrize(
    ("patterns", "word"), [(["attn.to_qq"], "to_qq"), ([".*"], "everything included")], ids=["none", "all excluded"]
)
def test_patterns_that_leave_nothing_are_refused(
    patterns: list[str], word: str, tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    cfg = settings(tiny_flux, image_folder, tmp_path, network={"targets_exclude": patterns})
    run, code = train_here(cfg)
    assert code and word in events(run, "error")[-1]["text"]


def test_a_state_of_a_lora_is_not_taken_for_that_of_a_whole_model(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    run, code = train_here(settings(tiny_flux, image_folder, tmp_path, training={"kind": "lora", "max_train_steps": 1}))
    assert code == 0, events(run, "error")
    full = settings(tiny_flux, image_folder, tmp_path, training={"max_train_steps": 2})
    dump(full, run.config_path, whole=True)
    _, code = train_here(full, run, resume=True)
    assert code and "training.kind (lora, now full)" in events(run, "error")[-1]["text"]


@pytest.mark.parametrize("layout", ["single_file", "diffusers"])
def test_files_of_a_whole_model_are_kept_compared_and_never_written_broken(layout: str, tmp_path: Path) -> None:
    model = originals.flux_transformer(latent=4)
    model.save_pretrained(tmp_path / "transformer")  # type: ignore[operator]
    facts, base = load_family("flux").facts, BaseModelFiles.at(tmp_path)
    files = full_files(model, base, facts, layout=layout, precision="bf16")
    folder = tmp_path / "v1.5"
    folder.mkdir()
    first, second = (folder / f"m-step0000000{number}{files.ending}" for number in (1, 2))
    files.content().write(first, {"ss_steps": "1"})
    assert files.content().is_in(first) and files.steps_of(first) == 1 and not files.content().is_in(second)
    files.copy(first, second)
    assert sorted(files.listed(folder)) == [first, second] and files.is_same(first, second)
    weights = first if layout == "single_file" else first / "transformer" / "diffusion_pytorch_model.safetensors"
    assert 0 < weights.stat().st_size - files.bytes() < 20_000
    data = weights.read_bytes()
    with torch.no_grad():
        model.proj_out.weight[0, 0] += 1
    assert not files.content().is_in(first)
    with torch.no_grad():
        model.proj_out.weight[0, 0] = 3.4028e38
    with pytest.raises(Refused, match="too large for bf16"):
        files.content().write(second, {})
    with torch.no_grad():
        model.proj_out.weight[0, 0] = float("nan")
    with pytest.raises(WeightsNotFinite):
        files.content().write(second, {})
    assert weights.read_bytes() == data and not [each for each in folder.iterdir() if each.name[0] == "."]
    files.remove(first)
    assert first not in list(files.listed(folder)) and not first.exists()


def test_a_disk_without_room_is_told_before_anything_is_encoded(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_check, "free_bytes", lambda folder: 1_000_000)
    run, code = train_here(settings(tiny_flux, image_folder, tmp_path))
    assert code and "a model file of" in events(run, "error")[-1]["text"]
    assert "encode" not in {event["phase"] for event in events(run, "phase")}
    assert not list(run.checkpoints_dir.iterdir())
