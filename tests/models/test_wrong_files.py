"""Files of other models and other programs, with published names and shapes: each is told what it is, and the mend."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from backend.config.schema import Config
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.headers import Unreadable, read_header
from backend.families.table import family
from backend.plan.base_model_check import check
from tests.tiny import originals
from tests.tiny.published_files import golden

Tensors = dict[str, tuple[str, tuple[int, ...]]]
BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I8": 1}


def sized(path: Path, tensors: Tensors) -> Path:
    """A file of the full size that takes no room: its header, then a hole where the numbers would be."""
    table, end = {}, 0
    for name, (kind, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * BYTES[kind]
        table[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    raw = json.dumps(table).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + end)
    return path


def with_inputs(file: str, name: str, inputs: int) -> Tensors:
    """A published file whose first layer takes more channels, as its relatives' do."""
    tensors = golden(file)
    kind, shape = tensors[name]
    return tensors | {name: (kind, (shape[0], inputs, *shape[2:]))}


def in_blocks(kind: str, factors: Callable[[tuple[int, ...]], tuple[str, tuple[int, ...]]], **more: str) -> Tensors:
    """FLUX's transformer as ComfyUI stores it in fewer bits: factors beside the matrices of its blocks."""
    out: Tensors = {}
    for name, (stored, shape) in golden("flux1-dev").items():
        matrix = name.endswith(".weight") and "blocks." in name and len(shape) == 2
        out[name] = (kind if matrix else stored, shape)
        if matrix:
            stem = name.removesuffix("weight")
            out[f"{stem}weight_scale"] = factors(shape)
            out |= {stem + ending: (form, ()) for ending, form in more.items()}
    return out


_FIRST = "model.diffusion_model.input_blocks.0.0.weight"
_SDXL, _SD = "sd_xl_base_1.0", "v1-5-pruned-emaonly"
_LAYER = "double_blocks.0.img_attn.qkv"
RELATIVES: list[tuple[str, Callable[[], Tensors], str]] = [
    ("flux", lambda: with_inputs("flux1-dev", "img_in.weight", 384), "FLUX.1 Fill"),
    ("flux", lambda: with_inputs("flux1-dev", "img_in.weight", 128), "FLUX.1 Canny or Depth"),
    ("sdxl", lambda: with_inputs(_SDXL, _FIRST, 9), "an inpainting checkpoint"),
    ("sd15", lambda: with_inputs(_SD, _FIRST, 9), "an inpainting checkpoint"),
    ("sd15", lambda: with_inputs(_SD, _FIRST, 8), "an InstructPix2Pix checkpoint"),
    ("sd15", lambda: golden(_SD) | {"model.diffusion_model.time_embed.cond_proj.weight": ("F32", (320, 256))}, "(LCM)"),
    (
        "sd15",
        lambda: {n.replace("model.transformer", "model.model.transformer"): t for n, t in golden(_SD).items()},
        "a Stable Diffusion 2 checkpoint",
    ),
    ("sdxl", lambda: golden(_SDXL) | {"edm_mean": ("F32", (1, 4, 1, 1))}, "Playground v2.5"),
    (
        "sdxl",
        lambda: {
            re.sub(r"^conditioner\.embedders\.1", "conditioner.embedders.0", name): tensor
            for name, tensor in golden(_SDXL).items()
            if not name.startswith("conditioner.embedders.0.")
        },
        "the refiner of SDXL",
    ),
    (
        "qwen_image",
        lambda: golden("qwen_image") | {"time_text_embed.addition_t_embedding.weight": ("BF16", (2, 3072))},
        "Qwen-Image-Layered",
    ),
    ("flux", lambda: golden("flux1-dev") | {f"{_LAYER}.quant_state.bitsandbytes__nf4": ("U8", (81,))}, "bitsandbytes"),
    ("flux", lambda: golden("flux1-dev") | {"controlnet_blocks.0.weight": ("BF16", (9, 9))}, "a ControlNet"),
    ("flux", lambda: {f"lora_unet_{_LAYER.replace('.', '_')}.lokr_w1": ("BF16", (16, 16))}, "a LoKr"),
    ("flux", lambda: in_blocks("U8", lambda s: ("F8_E4M3", (s[0], s[1] // 16)), weight_scale_2="F32"), "NVFP4"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "words"), RELATIVES, ids=[f"{row[0]}: {row[2]}" for row in RELATIVES])
def test_a_relative_is_told_from_what_is_trained(
    name: str, make: Callable[[], Tensors], words: str, tmp_path: Path
) -> None:
    (problem,) = family(name).check_base_model(sized(tmp_path / "it.safetensors", make()))
    assert problem.path == "model.base_model" and words in problem.text and problem.remedy.startswith("Choose ")


@pytest.mark.parametrize(
    ("kind", "factors", "read"),
    [
        ("F8_E4M3", lambda shape: ("F32", ()), True),
        ("I8", lambda shape: ("F32", (shape[0], 1)), True),
        ("F8_E4M3", lambda shape: ("U8", (shape[0], shape[1] // 32)), False),
    ],
    ids=["fp8", "int8 by rows", "mxfp8"],
)
def test_a_factor_for_every_block_is_told_before_anything_loads(
    kind: str, factors: Callable[[tuple[int, ...]], tuple[str, tuple[int, ...]]], read: bool, tmp_path: Path
) -> None:
    path = sized(tmp_path / "it.safetensors", in_blocks(kind, factors))
    messages = [p.text for p in family("flux").check_base_model(path) if p.path == "model.base_model"]
    assert messages == [] if read else "F8_E4M3 with a factor for every block" in messages[0]


@pytest.mark.parametrize(
    ("note", "words"),
    [
        ('{"format": "float8_e4m3fn", "full_precision_matrix_mult": true}', ""),
        ('{"format": "int8_tensorwise", "convrot": true, "per_row": true}', "int8_tensorwise, turned by ConvRot"),
        ('{"format": "int8_tensorwise", "params": {"convrot": true}}', "int8_tensorwise, turned by ConvRot"),
        ('{"format": "convrot_w4a4"}', "convrot_w4a4"),
        ("[]", "of a format that the file does not name"),
    ],
)
@pytest.mark.parametrize("beside", [True, False], ids=["beside", "in the header"])
def test_what_comfyui_says_of_a_layer_is_heeded(note: str, words: str, beside: bool, tmp_path: Path) -> None:
    state = originals.in_fp8(originals.bfl(originals.flux_transformer().state_dict()), "weight_scale", marker=False)
    blob = torch.frombuffer(bytearray(note.encode()), dtype=torch.uint8)
    metadata = {} if beside else {"_quantization_metadata": f'{{"layers": {{"{_LAYER}": {note}}}}}'}
    more = {f"{_LAYER}.comfy_quant": blob} if beside else {}
    safetensors.torch.save_file(state | more, tmp_path / "it.safetensors", metadata)
    problems = [p for p in family("flux").check_base_model(tmp_path / "it.safetensors") if p.path == "model.base_model"]
    assert [p.text.rpartition(f"{_LAYER}.weight is ")[2] for p in problems] == ([words] if words else [])
    assert all("bf16, fp16 or fp8" in p.remedy for p in problems)


@pytest.mark.parametrize(
    ("start", "words", "remedy"),
    [
        (b"", "is empty", "Copy"),
        (b"GGUF\x03\0\0\0\x0c\x03", "is a GGUF file", "Only safetensors"),
        (b"PK\x03\x04\0\0\x08\x08", "is a pickle file", "Only safetensors"),
        (b"<!DOCTYPE html><html>", "is a web page", "log in"),
        (b'{"error":"Invalid username"}', "is an error message of a web site", "log in"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer", "git lfs pull"),
        (struct.pack("<Q", 5000) + b'{"a":', "is cut short", "Copy"),
    ],
    ids=["nothing", "gguf", "torch", "page", "answer", "pointer", "cut"],
)
def test_what_is_no_safetensors_file_is_told_by_its_first_bytes(
    start: bytes, words: str, remedy: str, tmp_path: Path
) -> None:
    path = tmp_path / "flux1-dev.safetensors"
    path.write_bytes(start)
    with pytest.raises(Unreadable, match=words):
        read_header(path)
    for problem in (
        *family("flux").check_base_model(path),
        *(p for p in family("flux").check_base_model(BaseModelFiles(path, {"vae": path})) if p.path == "model.vae"),
    ):
        assert problem.text == f"flux1-dev.safetensors {words}" or problem.text.startswith(f"{path.name} {words}")
        assert remedy in problem.remedy


@pytest.mark.parametrize(
    ("name", "share", "words", "remedy"),
    [
        ("model-00001-of-00002.safetensors", 1.0, "is one of 2 files that are read together", "they lie in"),
        ("model-00001-of-00001.safetensors", 1.0, "", ""),
        ("t5.safetensors", 0.5, "but not whole or under other names: it lacks encoder.", "Choose t5xxl_fp16"),
    ],
)
def test_what_is_only_a_part_of_a_file_is_told(
    name: str, share: float, words: str, remedy: str, tmp_path: Path
) -> None:
    whole = list(golden("t5xxl").items())
    t5 = sized(tmp_path / name, dict(whole[: int(share * len(whole))]))
    base = BaseModelFiles(sized(tmp_path / "flux1-dev.safetensors", golden("flux1-dev")), {"text_encoder_2": t5})
    problems = [p for p in family("flux").check_base_model(base) if p.path == "model.text_encoder_2"]
    assert len(problems) == bool(words) and all(words in p.text and remedy in p.remedy for p in problems)
    (problem,) = family("flux").check_base_model(sized(tmp_path / "it-00002-of-00003.safetensors", golden("flux1-dev")))
    assert problem.path == "model.base_model" and "one of 3 files" in problem.text
    assert "model_index.json" in problem.remedy


def test_parts_of_another_family_are_named_in_their_own_fields(tiny_flux: Path, tmp_path: Path) -> None:
    files = {name: sized(tmp_path / f"{name}.safetensors", golden(name)) for name in ("qwen_image", "flux1-dev", "ae")}
    problems = family("qwen_image").check_base_model(BaseModelFiles(files["qwen_image"], {"vae": files["ae"]}))
    assert "ae.safetensors is a VAE in latent diffusion's layout" in next(
        p.text for p in problems if p.path == "model.vae"
    )
    turned = {"tokenizer": tiny_flux / "tokenizer_2", "tokenizer_2": tiny_flux / "tokenizer"}
    messages = {p.path: p.text for p in family("flux").check_base_model(BaseModelFiles(files["flux1-dev"], turned))}
    assert (
        "contains T5Tokenizer" in messages["model.tokenizer"]
        and "contains CLIPTokenizer" in messages["model.tokenizer_2"]
    )


def test_the_family_of_a_file_is_found_whatever_is_given_beside_it(tmp_path: Path) -> None:
    sdxl, ae = (sized(tmp_path / f"{name}.safetensors", golden(name)) for name in (_SDXL, "ae"))
    (problem,), other = check(Config(), BaseModelFiles(sdxl, {"vae": ae}))
    assert problem.path == "model.family" and "is SDXL" in problem.text and other is family("sdxl")


def test_a_checkpoint_that_is_marked_so_predicts_velocity(tmp_path: Path) -> None:
    marked = golden(_SDXL) | {"v_pred": ("F32", (0,)), "ztsnr": ("F32", (0,))}
    base = BaseModelFiles(sized(tmp_path / "marked.safetensors", marked))
    config = family("sdxl").scheduler_config(base)
    assert (config["prediction_type"], config["rescale_betas_zero_snr"]) == ("v_prediction", True)
    plain = BaseModelFiles(sized(tmp_path / "plain.safetensors", golden(_SDXL)))
    assert family("sdxl").scheduler_config(plain)["prediction_type"] == "epsilon"
