"""LoRAs merged into the base while it loads: the weights that other programs make of it, its caches, runs over it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import safetensors.torch
import torch
from diffusers import FluxPipeline
from torch import Tensor, nn

from backend.base.errors import Refused
from backend.config.schema import Config
from backend.config.sections.network import NetworkSection
from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.latents.identity import text_identity
from backend.lora.comfyui_keys import LayerNames, linear_layers, names_of
from backend.lora.inject import Lora, find_targets, inject
from backend.lora.save import file_tensors
from backend.memory.quantized_formats import dequantize
from backend.models.common.base_weights import BaseWeights
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from tests.tiny import originals
from tests.tiny.lora import inputs, names, trained
from tests.tiny.lora_values import change, moved
from tests.tiny.sdxl_runs import pipeline_of
from tests.tiny.training import config, events, lora_of, rows, same, state_of, train_here

CPU = torch.device("cpu")
FLUX = family("flux")
NAMES = names()
EVERYTHING = tuple(NAMES.layers)


def plain(base: Path) -> nn.Module:
    return load_family(FLUX.name).load_denoiser(base, LoadOptions(torch.float32, CPU))


def network(
    base: Path, kind: str, targets: tuple[str, ...] = FLUX.default_targets, seed: int = 4
) -> tuple[nn.Module, Lora]:
    """A tiny FLUX with a network that training has moved."""
    model = plain(base)
    lora = inject(model, find_targets(model, targets), rank=2, alpha=5.0, dropout=0.0, seed=seed, kind=kind)
    if kind == "dora":
        moved(lora, seed)
        return model, lora
    with torch.no_grad():
        for value in lora.parameters():
            value.normal_(std=0.3, generator=torch.Generator().manual_seed(value.numel() + seed))
    return model, lora


def saved(lora: Lora, where: Path, form: str = "kohya", known: LayerNames = NAMES) -> Path:
    safetensors.torch.save_file(file_tensors(lora, "fp32", known, form), where)
    return where


def merge_of(base: Path, *files: tuple[Path, float]) -> BaseWeights:
    paths, times = [str(path) for path, _ in files], [each for _, each in files]
    section = NetworkSection(base_weights=paths, base_weights_multiplier=times)
    weights = BaseWeights.of(section, BaseModelFiles.at(base), FLUX, NAMES)
    assert weights is not None
    return weights


def loaded(base: Path, *files: tuple[Path, float], **more: object) -> nn.Module:
    merge = merge_of(base, *files)
    assert merge.check() == merge.of_text() == []
    return load_family(FLUX.name).load_denoiser(base, LoadOptions(torch.float32, CPU, merge=merge.merged, **more))


@pytest.mark.parametrize("kind", ["lora", "dora", "lokr", "loha"])
def test_the_base_draws_as_the_network_did(tiny_flux: Path, tmp_path: Path, kind: str) -> None:
    model, lora = network(tiny_flux, kind)
    merged = loaded(tiny_flux, (saved(lora, tmp_path / "x.safetensors"), 1.0))
    with torch.no_grad():
        wanted, before = model(**inputs()).sample, plain(tiny_flux)(**inputs()).sample
        torch.testing.assert_close(merged(**inputs()).sample, wanted, rtol=1e-4, atol=2e-4)
        assert (wanted - before).abs().max() > 0.05
        # half of the way, as a sample is drawn at a strength of 0.5
        half = loaded(tiny_flux, (tmp_path / "x.safetensors", 0.5))
        with lora.scaled(0.5):
            torch.testing.assert_close(half(**inputs()).sample, model(**inputs()).sample, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("form", ["kohya", "diffusers"])
def test_two_loras_are_those_that_diffusers_fuses(tiny_flux: Path, tmp_path: Path, form: str) -> None:
    """Its own layout is what diffusers reads; ours reads either."""
    first, second = (
        network(tiny_flux, "lora", seed=4)[1],
        network(tiny_flux, "lora", ("attn.to_q", "proj_out", "ff.net.2"), seed=9)[1],
    )
    ours = loaded(
        tiny_flux, (saved(first, tmp_path / "a.st", form), 0.7), (saved(second, tmp_path / "b.st", form), -1.5)
    )
    pipeline = FluxPipeline.from_pretrained(tiny_flux)
    for name, lora in (("a", first), ("b", second)):
        pipeline.load_lora_weights(file_tensors(lora, "fp32", NAMES, "diffusers"), adapter_name=name)
    pipeline.set_adapters(["a", "b"], [0.7, -1.5])
    pipeline.fuse_lora(adapter_names=["a", "b"])
    pipeline.unload_lora_weights()
    theirs = pipeline.transformer.state_dict()
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-5)


def test_a_fused_lokr_of_the_published_layers_is_merged_exactly(tiny_flux: Path, tmp_path: Path) -> None:
    """One Kronecker product over query, key, value and the MLP: each layer gets its rows, no LoKr of its own."""
    before = originals.bfl(plain(tiny_flux).state_dict())
    tensors: dict[str, Tensor] = {}
    after = dict(before)
    for name in ("double_blocks.0.img_attn.qkv", "single_blocks.1.linear1", "final_layer.adaLN_modulation.1"):
        rows_, columns = before[f"{name}.weight"].shape
        stem, source = "lora_unet_" + name.replace(".", "_"), torch.Generator().manual_seed(rows_)
        tensors[f"{stem}.lokr_w1"] = torch.randn(4, 2, generator=source)
        tensors[f"{stem}.lokr_w2"] = torch.randn(rows_ // 4, columns // 2, generator=source)
        tensors[f"{stem}.alpha"] = torch.tensor(1.0)
        after[f"{name}.weight"] = before[f"{name}.weight"] + 0.5 * change(tensors, stem)
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    published = originals.bfl(loaded(tiny_flux, (tmp_path / "x.safetensors", 0.5)).state_dict())
    for name, value in after.items():
        torch.testing.assert_close(published[name], value, rtol=1e-5, atol=1e-5)


def test_it_is_merged_before_it_is_quantised_and_where_it_swaps(tiny_flux: Path, tmp_path: Path) -> None:
    _, lora = network(tiny_flux, "lora")
    file = saved(lora, tmp_path / "x.safetensors")
    whole = loaded(tiny_flux, (file, 1.0))
    swapped = loaded(tiny_flux, (file, 1.0), quantize="int8", host=lambda path: path.startswith("transformer_blocks.0"))
    layer, path = swapped.get_submodule("transformer_blocks.0.attn.to_q"), "transformer_blocks.0.attn.to_q"
    weight = whole.get_submodule(path).weight
    assert (
        dequantize(layer.weight, layer.scale, "int8", torch.float32) - weight
    ).abs().max() < weight.abs().max() / 120
    kept = load_family(FLUX.name).load_denoiser(
        tiny_flux, LoadOptions(torch.bfloat16, CPU, merge=merge_of(tiny_flux, (file, 1.0)).merged)
    )
    assert torch.equal(kept.get_submodule(path).weight, weight.bfloat16())


def text_lora(base: Path, where: Path, name: str = "sdxl") -> tuple[Path, Callable[[], nn.Module]]:
    """A LoRA of the UNet and of both text encoders, in kohya's layout."""
    code, facts = load_family(name), family(name)
    stack = code.load_text(base, LoadOptions(torch.float32, CPU))
    module, idle = stack.trained()
    known = names_of(linear_layers(code.empty_denoiser(base)), facts).joined(linear_layers(module))
    unet = code.load_denoiser(base, LoadOptions(torch.float32, CPU))
    lora = inject(unet, find_targets(unet, ["attn2.to_k"]), rank=2, alpha=4.0, dropout=0.0, seed=1)
    encoders = inject(module, find_targets(module, facts.text_targets, idle), rank=2, alpha=4.0, dropout=0.0, seed=1)
    lora = lora.joined(encoders)
    with torch.no_grad():
        for path in lora.layers:
            lora.pair(path)[1].normal_(std=0.3, generator=torch.Generator().manual_seed(len(path)))
    return saved(lora, where, "kohya", known), lambda: stack


@pytest.mark.parametrize("name", ["sdxl", "sd15"])
def test_text_encoders_get_theirs_and_so_do_captions(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    base, row = request.getfixturevalue(f"tiny_{name}"), family(name)
    file, stack = text_lora(base, tmp_path / "x.safetensors", name)
    code = load_family(row.name)
    known = names_of(linear_layers(code.empty_denoiser(base)), row)
    merge = BaseWeights.of(NetworkSection(base_weights=[str(file)]), BaseModelFiles.at(base), row, known)
    assert merge is not None and merge.check() == [] and merge.of_text() == [file]
    text_stack = code.load_text(base, LoadOptions(torch.float32, CPU, merge=merge.merged))
    for mine, wanted in zip(text_stack.encode(["a red circle"], 77), stack().encode(["a red circle"], 77), strict=True):
        for key, value in wanted.items():
            torch.testing.assert_close(mine[key], value, rtol=1e-4, atol=1e-4)
    before = code.load_text(base, LoadOptions(torch.float32, CPU)).encode(["a red circle"], 77)[0]
    assert (mine["prompt_embeds"] - before["prompt_embeds"]).abs().max() > 1e-2
    # diffusers fuses the same
    pipeline = pipeline_of(name, base)
    pipeline.load_lora_weights(file)
    pipeline.fuse_lora()
    embedding = pipeline.encode_prompt(
        "a red circle", device=CPU, num_images_per_prompt=1, do_classifier_free_guidance=False
    )[0][0]
    torch.testing.assert_close(mine["prompt_embeds"], embedding, rtol=1e-4, atol=1e-4)


def test_captions_are_kept_by_what_changes_them(tiny_sdxl: Path, tmp_path: Path) -> None:
    def identity(**values: object) -> str:
        return text_identity(Config.model_validate(
            {"model": {"base_model": str(tiny_sdxl), "family": "sdxl"}, "network": values}
        ))  # fmt: skip

    file, _ = text_lora(tiny_sdxl, tmp_path / "x.safetensors")
    without, merged = identity(), identity(base_weights=[str(file)])
    assert merged != without
    assert identity(base_weights=[str(shutil.copy(file, tmp_path / "y.safetensors"))]) == merged
    assert identity(base_weights=[str(file)], base_weights_multiplier=[0.5]) not in (without, merged)
    unet = {key: value for key, value in safetensors.torch.load_file(file).items() if key.startswith("lora_unet")}
    safetensors.torch.save_file(unet, tmp_path / "z.safetensors")
    assert identity(base_weights=[str(tmp_path / "z.safetensors")]) == without


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (None, "absent.safetensors can't be read"),
        ({"lora_unet_down_blocks_1_attentions_0_proj_in": (32, 32)}, "a LoRA of SDXL or Stable Diffusion"),
        ({"lora_unet_img_in": (3072, 16)}, "x_embedder is .* 32 x 16 in this model"),
    ],
)
def test_what_can_not_be_merged_is_said_before_anything_loads(
    tiny_flux: Path, tmp_path: Path, tensors: Mapping[str, tuple[int, int]] | None, words: str
) -> None:
    file = tmp_path / "absent.safetensors"
    if tensors is not None:
        safetensors.torch.save_file(
            {f"{stem}.lora_{half}.weight": torch.ones(*((2, inner) if half == "down" else (outer, 2)))
             for stem, (outer, inner) in tensors.items() for half in ("down", "up")}, file
        )  # fmt: skip
    with pytest.raises(Refused, match=words) as refused:
        merge_of(tiny_flux, (file, 1.0)).check()
    assert refused.value.problems[0].path == "network.base_weights"


def test_a_text_encoder_that_is_not_merged_is_said(tiny_flux: Path, tmp_path: Path) -> None:
    _, lora = trained()
    tensors = file_tensors(lora, "fp32", NAMES)
    stem = "lora_te3_encoder_block_0_layer_0_SelfAttention_q"
    tensors |= {f"{stem}.lora_down.weight": torch.ones(2, 8), f"{stem}.lora_up.weight": torch.ones(8, 2)}
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    (problem,) = merge_of(tiny_flux, (tmp_path / "x.safetensors", 1.0)).check()
    assert problem.severity == "warning" and "text encoders" in problem.text


def test_a_run_over_a_merged_base(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It begins where going on from the file began, says so in its file, and resumes over the same base alone."""
    caplog.set_level("INFO")
    _, lora = network(tiny_flux, "lora")
    file = saved(lora, tmp_path / "x.safetensors")

    def cfg(steps: int, compiled: bool = False, **values: object) -> Config:
        return config(
            tiny_flux, image_folder, tmp_path,
            network={"targets_include": ["attn.to_q"], **values},
            optimizer={"lr_scheduler": "constant", "lr_warmup": 0.0},
            compile={"compile": compiled, "compile_backend": "eager", "shape_mode": "static",
                     "compile_blocks": [{"blocks": "double", "compile": False}]},
            training={"max_train_steps": steps},
        )  # fmt: skip

    over = {"base_weights": [str(file)], "base_weights_multiplier": [0.5]}
    straight, code = train_here(cfg(4, **over))
    assert code == 0, events(straight, "error")
    assert "Merged into the base: x.safetensors, a LoRA, times 0.5" in caplog.text
    graphs, code = train_here(cfg(2, compiled=True, **over))
    assert code == 0, events(graphs, "error")
    last, planned = rows(graphs)[-1], events(graphs, "plan")[0]["graphs"]["planned"]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (planned, 0, 0)
    assert [row["loss"] for row in rows(graphs)] == pytest.approx([row["loss"] for row in rows(straight)[:2]], rel=1e-4)
    with safetensors.safe_open(straight.checkpoints_dir / "tiny.safetensors", "pt") as opened:
        metadata = opened.metadata()
    assert json.loads(metadata["ss_base_weights"]) == ["x.safetensors"]
    assert json.loads(metadata["ss_base_weights_multiplier"]) == [0.5]
    without, _ = train_here(cfg(1))
    assert rows(without)[0]["loss"] != pytest.approx(rows(straight)[0]["loss"], rel=1e-4)
    # a base that has the LoRA in its own files is the same base
    base = shutil.copytree(tiny_flux, tmp_path / "merged")
    weights = next((base / "transformer").glob("*.safetensors"))
    safetensors.torch.save_file(loaded(tiny_flux, (file, 0.5)).state_dict(), weights)
    own = cfg(4)
    own.model.base_model = str(base)
    other, code = train_here(own)
    assert code == 0, events(other, "error")
    assert [row["loss"] for row in rows(other)] == [row["loss"] for row in rows(straight)]
    assert same(lora_of(other), lora_of(straight))

    half, _ = train_here(cfg(2, **over))
    text = half.config_path.read_text().replace("max_train_steps = 2", "max_train_steps = 4")
    half.config_path.write_text(text.replace("0.5", "0.75"))
    _, code = train_here(cfg(4, **over), half, resume=True)
    assert code == 2 and "network.base_weights" in events(half, "error")[-1]["text"]
    half.config_path.write_text(text)
    _, code = train_here(cfg(4, **over), half, resume=True)
    assert code == 0, events(half, "error")
    assert [row["loss"] for row in rows(half)] == [row["loss"] for row in rows(straight)]
    assert same(state_of(half), state_of(straight))
