"""Names are cleaned of torch.compile's wrappers in every spelling, on models and files made in each way."""

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from backend.base.tensor_names import clean_key, clean_keys, is_clean
from backend.compile.model_compiler import compile_model, unwrap


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attn(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


WANTED = list(Model().state_dict())


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        ("blocks.0.attn.weight", "blocks.0.attn.weight"),
        ("_orig_mod.blocks.0.attn.weight", "blocks.0.attn.weight"),
        ("blocks.0._orig_mod.attn.weight", "blocks.0.attn.weight"),
        ("_orig_mod._orig_mod.x", "x"),
        ("_orig_mod.blocks.0._orig_mod.attn._orig_mod.weight", "blocks.0.attn.weight"),
        ("base_model.model._orig_mod.blocks.0.attn.lora_A.weight", "base_model.model.blocks.0.attn.lora_A.weight"),
        ("lora_unet_blocks_0__orig_mod_attn.lora_down.weight", "lora_unet_blocks_0_attn.lora_down.weight"),
        ("lora_unet__orig_mod_blocks_0_attn.alpha", "lora_unet_blocks_0_attn.alpha"),
        ("lora_unet__orig_mod_blocks_0__orig_mod_attn.alpha", "lora_unet_blocks_0_attn.alpha"),
        ("_orig_mod_blocks_0_attn.alpha", "blocks_0_attn.alpha"),
        ("lora_unet_blocks_0__orig_mod.alpha", "lora_unet_blocks_0.alpha"),
        ("blocks.0._orig_mod", "blocks.0"),
        ("my_orig_model.x", "my_orig_model.x"),
    ],
)
def test_spellings(dirty: str, clean: str) -> None:
    cleaned_key = clean_key(dirty)
    assert cleaned_key == clean and is_clean([cleaned_key])


def ways(folder: Path) -> dict[str, dict]:
    """State dicts of one model compiled in each way that people use."""
    whole = torch.compile(Model(), backend="eager")
    each = Model()
    for index, block in enumerate(each.blocks):
        each.blocks[index] = torch.compile(block, backend="eager")
    deep = Model()
    for block in deep.blocks:
        block.attn = torch.compile(block.attn, backend="eager")
    both = torch.compile(each, backend="eager")
    # accelerate keeps what the first of a process said, such as that of a run in a test before
    AcceleratorState._reset_state(reset_partial_state=True)
    prepared = Accelerator(cpu=True, dynamo_backend="eager").prepare(Model())
    AcceleratorState._reset_state(reset_partial_state=True)
    return {
        "whole": whole.state_dict(),
        "each block": each.state_dict(),
        "inner layers": deep.state_dict(),
        "blocks and whole": both.state_dict(),
        "accelerate": prepared.state_dict(),
        "flat": {f"lora_unet_{key.replace('.', '_')}": value for key, value in each.state_dict().items()},
    }


def test_files_made_by_each_way_of_compiling(tmp_path: Path) -> None:
    names = ways(tmp_path)
    for name, state in names.items():
        file = tmp_path / f"{name}.safetensors"
        save_file({key: value.contiguous().clone() for key, value in state.items()}, file)
        loaded = clean_keys(load_file(file))
        wanted = [f"lora_unet_{key.replace('.', '_')}" for key in WANTED] if name == "flat" else WANTED
        assert sorted(loaded) == sorted(wanted), name
        if name != "flat":
            assert not is_clean(state), f"{name}: this way no longer makes dirty keys, so it proves nothing"
            Model().load_state_dict(loaded)


def test_our_own_compiling_leaves_names_and_modules_alone() -> None:
    model = Model()
    compile_model(model, {"block": model.blocks}, backend="eager")
    model(torch.ones(2, 4))
    assert list(model.state_dict()) == WANTED
    assert [name for name, _ in model.named_modules()] == [name for name, _ in Model().named_modules()]
    assert "_orig_mod" not in model.__dict__ and not hasattr(model, "_orig_mod")


def test_unwrap_finds_the_model_in_wrappers() -> None:
    model = Model()
    assert unwrap(nn.DataParallel(model)) is model
    assert unwrap(model) is model


def test_two_copies_in_one_file_are_refused() -> None:
    with pytest.raises(ValueError, match=r"are both blocks\.0\.attn\.weight"):
        clean_keys({"blocks.0.attn.weight": 1, "_orig_mod.blocks.0.attn.weight": 2})


@given(st.lists(st.sampled_from(["blocks", "0", "attn", "_orig_mod", "lora_A", "weight"]), min_size=1, max_size=6))
def test_any_dotted_name_comes_out_clean_and_stays(parts: list[str]) -> None:
    wanted = ".".join(part for part in parts if part != "_orig_mod")
    name = clean_key(".".join(parts))
    assert name == wanted and clean_key(name) == name
