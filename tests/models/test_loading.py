"""Loading a part tensor by tensor: equal to ``from_pretrained``, never two models in memory, wrong names are told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel
from torch import nn
from transformers import CLIPTextModel, T5EncoderModel

from backend.base.errors import Refused
from backend.families.flux.facts import FACTS
from backend.memory.quantized_formats import quantize
from backend.memory.quantized_linear import QuantizedLinear
from backend.models.common.load_options import LoadOptions
from backend.models.common.tensor_sources import file_tensors
from backend.models.common.weight_loading import load_part

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
CLASSES = {
    "transformer": FluxTransformer2DModel,
    "vae": AutoencoderKL,
    "text_encoder": CLIPTextModel,
    "text_encoder_2": T5EncoderModel,
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def load(base: Path, name: str, dtype: torch.dtype = torch.float32, **how: Any) -> Any:
    return load_part(CLASSES[name], base, FACTS.part(name), LoadOptions(dtype, CPU, **how))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_a_part_is_what_from_pretrained_makes_bit_by_bit(tiny_flux: Path, name: str, dtype: torch.dtype) -> None:
    keyword = "dtype" if name.startswith("text") else "torch_dtype"
    theirs = CLASSES[name].from_pretrained(tiny_flux / name, **{keyword: dtype})
    ours = load(tiny_flux, name, dtype)
    for kind in ("named_parameters", "named_buffers"):
        one, other = dict(getattr(ours, kind)()), dict(getattr(theirs, kind)())
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert value.dtype == other[key].dtype and torch.equal(value, other[key]), key
    assert not any(p.is_meta or p.requires_grad for p in ours.parameters())


def test_t5_keeps_its_ties_and_the_layer_that_must_not_be_fp16(tiny_flux: Path) -> None:
    t5 = load(tiny_flux, "text_encoder_2", torch.float16)
    assert t5.shared.weight is t5.encoder.embed_tokens.weight
    kept = {name.split(".")[-2] for name, p in t5.named_parameters() if p.dtype == torch.float32}
    assert kept == {"wo"}


@pytest.fixture
def copied(tiny_flux: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_flux, tmp_path / "base"))


def rewrite(base: Path, name: str, change: Any) -> None:
    part = FACTS.part(name)
    path = base / part.folder / f"{part.weights}.safetensors"
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(change(tensors), path, {"format": "pt"})


def test_older_names_of_a_text_encoder_are_understood(tiny_flux: Path, copied: Path) -> None:
    def older(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        named = {f"text_model.{name.removeprefix('text_model.')}": value for name, value in tensors.items()}
        return named | {"text_model.embeddings.position_ids": torch.arange(77)[None]}

    rewrite(copied, "text_encoder", older)
    rewrite(
        copied, "text_encoder_2", lambda t: {n.replace("shared.", "encoder.embed_tokens."): v for n, v in t.items()}
    )
    for name in ("text_encoder", "text_encoder_2"):
        one, other = load(copied, name).state_dict(), load(tiny_flux, name).state_dict()
        assert all(torch.equal(one[key], other[key]) for key in other)


def test_names_of_a_compiled_model_are_cleaned(tiny_flux: Path, copied: Path) -> None:
    """As `torch.compile(model)` and `blocks[i] = torch.compile(block)` leave them in a saved file."""

    def dirty(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {f"_orig_mod.{key.replace('.attn.', '._orig_mod.attn.')}": value for key, value in tensors.items()}

    rewrite(copied, "transformer", dirty)
    ours, theirs = load(copied, "transformer").state_dict(), load(tiny_flux, "transformer").state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in theirs)
    rewrite(copied, "transformer", lambda tensors: {**tensors, "x_embedder.bias": torch.zeros(3)})
    with pytest.raises(Refused, match="contains tensors twice: .*x_embedder.bias"):
        load(copied, "transformer")


def test_missing_foreign_and_misshapen_weights_are_all_named_at_once(copied: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        del tensors["proj_out.bias"]
        tensors["x_embedder.weight"] = tensors["x_embedder.weight"][:, 1:].contiguous()
        return tensors | {"transformer_blocks.0.extra.weight": torch.zeros(1)}

    rewrite(copied, "transformer", spoil)
    with pytest.raises(Refused) as refused:
        load(copied, "transformer")
    for words in (
        "proj_out.bias",
        "x_embedder.weight [32, 15] instead of [32, 16]",
        "transformer_blocks.0.extra.weight",
    ):
        assert words in refused.value.text


def test_weights_that_another_program_quantised_are_refused(copied: Path) -> None:
    path = copied / "transformer" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"quantization_config": {"quant_method": "bitsandbytes"}}), encoding="utf-8")
    with pytest.raises(Refused, match="already quantised"):
        load(copied, "transformer")


def test_a_tensor_is_read_from_any_place_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    # a header that is no multiple of eight bytes leaves the numbers unaligned
    table = {"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}
    table |= {"b": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]}}
    table |= {"none": {"dtype": "F32", "shape": [0, 4], "data_offsets": [11, 11]}}
    header = json.dumps(table).encode()
    numbers = bytes([1, 2, 3]) + torch.tensor([1.5, -2.0]).numpy().tobytes()
    path.write_bytes(len(header).to_bytes(8, "little") + header + numbers)
    sources = file_tensors(path)
    assert sources["a"].read().tolist() == [1, 2, 3] and sources["b"].read().tolist() == [1.5, -2.0]
    assert sources["none"].read().shape == (0, 4)
    sources["b"].read().fill_(0)
    assert sources["b"].read().tolist() == [1.5, -2.0], "the file was changed through a view of it"


_PEAK = """
import json, os, sys, resource, torch
from pathlib import Path
from diffusers import FluxTransformer2DModel
from backend.families.flux.facts import FACTS
from backend.models.common.load_options import LoadOptions
from backend.models.common.weight_loading import load_part

def load(base, dtype, quantize):
    loading = LoadOptions(getattr(torch, dtype), torch.device("cpu"), quantize=quantize)
    return load_part(FluxTransformer2DModel, base, FACTS.part("transformer"), loading)

def measured(dtype, quantize):
    # a child's peak begins at what it was forked with; what is loaded once for all formats is loaded before
    load(Path(sys.argv[2]), dtype, quantize)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = load(Path(sys.argv[1]), dtype, quantize)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
    return [dtype, quantize, (peak - before) * 1024, size]

for case in json.loads(sys.argv[3]):
    child = os.fork()
    if not child:
        print(json.dumps(measured(*case)), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, case
"""


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A FLUX transformer of about 90 MB in bf16, in its folder; the largest of its weights has 3 MB."""
    folder = tmp_path_factory.mktemp("big") / "transformer"
    size = {"num_layers": 3, "num_single_layers": 6, "attention_head_dim": 64, "num_attention_heads": 8}
    with torch.device("meta"):
        model = FluxTransformer2DModel(
            **size, joint_attention_dim=64, pooled_projection_dim=64, axes_dims_rope=(16, 24, 24)
        )
    folder.mkdir()
    (folder / "config.json").write_text(model.to_json_string(), encoding="utf-8")
    tensors = {name: torch.zeros(p.shape, dtype=torch.bfloat16) for name, p in model.state_dict().items()}
    safetensors.torch.save_file(tensors, folder / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    return folder.parent


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in kilobytes on Linux only")
def test_peak_memory_is_the_model_and_one_tensor(tiny_flux: Path, big: Path) -> None:
    cases = [("bfloat16", None), ("float32", None), ("bfloat16", "int8"), ("bfloat16", "fp8")]
    # buffers of some MB in glibc's heap leave holes whose size depends on chance; mapped, each goes back at once
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 18)}
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(big), str(tiny_flux), json.dumps(cases)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, env=environment,
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(cases)
    largest = 512 * 6 * 512 * 4 * 2
    for dtype, kind, peak, size in rows:
        assert size > 80_000_000 >> (kind is not None), (dtype, kind)
        assert size < peak + 10_000_000, (dtype, kind, "what was loaded was not measured")
        assert peak < size + largest + 10_000_000, (
            f"{dtype} {kind}: peak {peak / 1e6:.0f} MB for a model of {size / 1e6:.0f} MB"
        )


@pytest.mark.parametrize("kind", ["fp8", "int8", "nf4"])
def test_blocks_are_quantised_while_loading_and_nothing_else(tiny_flux: Path, kind: str) -> None:
    plain = load(tiny_flux, "transformer", torch.bfloat16)
    ours = load(tiny_flux, "transformer", torch.bfloat16, quantize=kind)
    layers = {path: layer for path, layer in ours.named_modules() if isinstance(layer, QuantizedLinear)}
    assert layers.keys() == {p for p, m in plain.named_modules() if isinstance(m, nn.Linear) and "blocks." in p}
    weights = file_tensors(tiny_flux / "transformer" / "diffusion_pytorch_model.safetensors")
    for path, layer in layers.items():
        numbers, scale = quantize(weights[f"{path}.weight"].read(), kind)
        assert torch.equal(layer.weight.view(torch.int8), numbers.view(torch.int8)) and torch.equal(layer.scale, scale)
        real = plain.get_submodule(path)
        assert real.bias is None or torch.equal(layer.bias, real.bias)
    rest = {name: value for name, value in plain.state_dict().items() if name.rpartition(".")[0] not in layers}
    loaded = ours.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in rest.items())


@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_quantised_text_encoders_say_nearly_the_same(tiny_flux: Path, kind: str, dtype: torch.dtype) -> None:
    tokens = torch.arange(3, 40)[None]
    plain, ours = load(tiny_flux, "text_encoder_2"), load(tiny_flux, "text_encoder_2", dtype, quantize=kind)
    layers = {path.rpartition(".")[2] for path, m in ours.named_modules() if isinstance(m, QuantizedLinear)}
    # transformers wants wo in float32 where the model is fp16: there it is left alone
    assert layers == {"q", "k", "v", "o", "wi_0", "wi_1"} | ({"wo"} if dtype == torch.float32 else set())
    with torch.no_grad():
        one, other = plain(tokens)[0], ours(tokens)[0].float()
    assert (one - other).norm() / one.norm() < {"int8": 0.05, "nf4": 0.6}[kind]


def test_what_swap_keeps_on_the_host_is_told_by_module_path(tiny_flux: Path) -> None:
    asked: set[str] = set()

    def host(path: str) -> bool:
        asked.add(path)
        return path.startswith("transformer_blocks.1.")

    loading = LoadOptions(torch.float32, torch.device("meta"), quantize=None, host=host)
    model = load_part(FluxTransformer2DModel, tiny_flux, FACTS.part("transformer"), loading)
    on_host = {name for name, value in model.named_parameters() if not value.is_meta}
    assert on_host == {n for n, _ in model.named_parameters() if n.startswith("transformer_blocks.1.")}
    assert "transformer_blocks.1.attn.to_q" in asked
