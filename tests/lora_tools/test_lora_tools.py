"""``launcher.py lora``: extracting, merging, resizing, inspecting and checking LoRA files, on tiny models."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from rich.console import Console
from torch import Tensor

from backend.config.layer_patterns import fits
from backend.families.table import family
from backend.lora.load import read_lora
from backend.lora_tools.__main__ import main
from backend.lora_tools.averaging import _blocks, _mean_of_blocks
from backend.lora_tools.base_models import OpenModel, open_model
from backend.models.common.tensor_sources import file_tensors
from tests.tiny import originals
from tests.tiny.previews import write_lora


def run(*words: object) -> tuple[int, str]:
    """What the command returns and shows."""
    text = io.StringIO()
    code = main([str(word) for word in words], Console(file=text, width=400))
    return code, text.getvalue()


def values(model: OpenModel) -> dict[str, Tensor]:
    """Every tensor of the parts that a LoRA may change, by the names of its model."""
    return {
        f"{part.name}.{name}": one.tensor.read().float().clone()
        for part in model.parts()
        for name, one in model.stored(part).items()
    }


def product(path: Path, model: OpenModel) -> dict[str, Tensor]:
    """Layer -> the change that a LoRA file makes at strength 1, as a matrix."""
    read = read_lora(path, model.names)
    return {layer: read.scales[layer] * (b @ a) for layer, (a, b) in read.pairs.items()}


def change_of(base: OpenModel, tuned: OpenModel) -> dict[str, Tensor]:
    """Layer -> the difference of its weight in two models, as a matrix; of layers that differ."""
    after = tuned.weights()
    differences = {}
    for layer, weight in base.weights().items():
        difference = (after[layer].read().float() - weight.read().float()).flatten(1)
        if difference.any():
            differences[layer] = difference
    return differences


@pytest.fixture(scope="module")
def tuned_sdxl(tiny_sdxl: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny SDXL after a merge of a LoRA with text encoders into its folder; also what `merge` writes."""
    folder = tmp_path_factory.mktemp("sdxl")
    lora = write_lora(folder / "trained.safetensors", tiny_sdxl, "sdxl", text=True)
    code, text = run("merge", "--base", tiny_sdxl, "--lora", f"{lora}:0.5", "--out", folder / "tuned")
    assert code == 0, text
    return folder


def test_a_lora_merged_into_a_folder_comes_out_again(tiny_sdxl: Path, tuned_sdxl: Path) -> None:
    """The merge adds half of the LoRA to each layer and to nothing else; extracting gives it back at its rank."""
    base, tuned = open_model(tiny_sdxl), open_model(tuned_sdxl / "tuned")
    wanted = {layer: 0.5 * change for layer, change in product(tuned_sdxl / "trained.safetensors", base).items()}
    differences = change_of(base, tuned)
    assert differences.keys() == wanted.keys() and any(layer.startswith("te2.") for layer in differences)
    for layer, change in wanted.items():
        torch.testing.assert_close(differences[layer], change, atol=1e-6, rtol=1e-4)
    names = {path.relative_to(tiny_sdxl) for path in tiny_sdxl.rglob("*") if path.is_file()}
    assert names == {p.relative_to(tuned_sdxl / "tuned") for p in (tuned_sdxl / "tuned").rglob("*") if p.is_file()}
    out = tuned_sdxl / "extracted.safetensors"
    code, text = run(
        *("extract", "--base", tiny_sdxl, "--tuned", tuned_sdxl / "tuned", "--rank", 4, "--precision", "fp32"),
        *("--out", out),
    )
    assert code == 0 and "100.00% of the norm kept" in text and "equal in both: left out" in text, text
    for layer, change in product(out, base).items():
        torch.testing.assert_close(change, wanted[layer], atol=1e-5, rtol=1e-4)
    with safetensors.safe_open(out, framework="pt") as file:
        metadata = file.metadata()
    facts = json.loads(metadata["monotile.extracted"])
    assert metadata["ss_network_dim"] == "4" and facts["layers"] == len(wanted)
    assert facts["base_sha256"].keys() == {"diffusion_pytorch_model.safetensors"}


@pytest.fixture(scope="module")
def flux_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A FLUX transformer as a single file of its makers, and one that was trained from it whole."""
    folder = tmp_path_factory.mktemp("flux")
    tensors = originals.bfl(originals.flux_transformer(latent=4).state_dict())
    source = torch.Generator().manual_seed(3)
    changed = {
        name: value + 0.02 * torch.randn(value.shape, generator=source) if "double_blocks.1" not in name else value
        for name, value in tensors.items()
    }
    return {
        "base": originals.write(folder / "base.safetensors", tensors),
        "tuned": originals.write(folder / "tuned.safetensors", changed),
    }


@pytest.mark.parametrize("layout", ["kohya", "diffusers"])
def test_a_whole_fine_tune_is_reproduced_at_the_full_rank(
    layout: str, flux_files: dict[str, Path], tmp_path: Path
) -> None:
    """Of single files, whose query, key and value are one; what no LoRA holds is named."""
    out = tmp_path / "x.safetensors"
    code, text = run(
        *("extract", "--base", flux_files["base"], "--tuned", flux_files["tuned"], "--keep", "1", "--layout", layout),
        *("--precision", "fp32", "--out", out),
    )
    assert code == 0 and "no LoRA holds it" in text, text
    base = open_model(flux_files["base"])
    wanted, differences = change_of(base, open_model(flux_files["tuned"])), product(out, base)
    assert differences.keys() == wanted.keys() and not any(
        "transformer_blocks.1." in n for n in differences if "single" not in n
    )
    for layer, change in wanted.items():
        torch.testing.assert_close(differences[layer], change, atol=1e-5, rtol=1e-4)


def test_a_kept_share_is_kept_with_the_smallest_rank(flux_files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "x.safetensors"
    words = ("extract", "--base", flux_files["base"], "--tuned", flux_files["tuned"], "--out", out)
    assert run(*words, "--keep", "0.8", "--precision", "fp32", "--layout", "diffusers")[0] == 0
    base = open_model(flux_files["base"])
    wanted, pairs = change_of(base, open_model(flux_files["tuned"])), read_lora(out, base.names).pairs
    for layer, (a, _) in pairs.items():
        sizes = torch.linalg.svdvals(wanted[layer].double())
        share = sizes.square().cumsum(0).sqrt() / sizes.norm()
        assert a.shape[0] == int((share < 0.8).sum()) + 1, layer
    code, text = run(*words, "--keep", "0.8")
    assert code == 2 and "is there already" in text
    assert run(*words, "--rank", 2, "--targets", "attn.to_q", "--overwrite")[0] == 0
    changes = product(out, base)
    assert {layer.rpartition(".")[2] for layer, change in changes.items() if change.any()} == {"to_q"}


def test_a_lora_merged_into_a_single_file_keeps_its_layout(flux_files: dict[str, Path], tmp_path: Path) -> None:
    """Rows of fused layers and turned halves come where they were; untouched tensors stay the same to the bit."""
    lora, out = tmp_path / "lora.safetensors", tmp_path / "out.safetensors"
    words = ("extract", "--base", flux_files["base"], "--tuned", flux_files["tuned"], "--keep", "1")
    assert run(*words, "--precision", "fp32", "--out", lora)[0] == 0
    code, text = run("merge", "--base", flux_files["base"], "--lora", lora, "--out", out)
    assert code == 0, text
    before, wanted, after = (file_tensors(path) for path in (flux_files["base"], flux_files["tuned"], out))
    assert after.keys() == before.keys()
    turned = [name for name in before if "final_layer.adaLN" in name and name.endswith("weight")]
    assert turned
    for name, tensor in after.items():
        held = name.endswith(".weight") and tensor.read().dim() > 1
        like = wanted if held else before
        assert tensor.dtype == before[name].dtype
        torch.testing.assert_close(tensor.read(), like[name].read(), atol=2e-5, rtol=1e-4, msg=name)


def test_loras_are_merged_into_one_exactly_or_to_a_rank(tiny_flux: Path, tmp_path: Path) -> None:
    """Also where one has ComfyUI's names and the other diffusers': then the model tells which layers are meant."""
    one = write_lora(tmp_path / "a.safetensors", tiny_flux, rank=4, alpha=2)
    two = write_lora(tmp_path / "b.safetensors", tiny_flux, rank=3, alpha=3, seed=7)
    tensors = safetensors.torch.load_file(two)
    safetensors.torch.save_file(tensors | {"bundle_emb.fox.clip_l": torch.ones(1, 4)}, two)
    model, out = open_model(tiny_flux), tmp_path / "out.safetensors"
    words = ("merge", "--lora", f"{one}:0.7", "--lora", f"{two}:-0.5", "--out", out, "--precision", "fp32")
    assert "exact" in run(*words)[1]
    assert safetensors.torch.load_file(out)["bundle_emb.fox.clip_l"].sum() == 4
    first, second = product(one, model), product(two, model)
    wanted = {layer: 0.7 * first[layer] - 0.5 * second[layer] for layer in first}
    for layer, change in product(out, model).items():
        torch.testing.assert_close(change, wanted[layer], atol=1e-5, rtol=1e-4)
    code, text = run(*words, "--rank", 5, "--overwrite")
    assert code == 0
    share = float(text.partition(" of rank ")[2].split(", ")[1].partition("%")[0]) / 100
    differences = product(out, model)
    # layers that are one in the file were factored as one, so that their errors are told together
    lost = sum(float((differences[n] - wanted[n]).square().sum()) for n in differences)
    whole = sum(float(each.square().sum()) for each in wanted.values())
    assert abs(share - (lost / whole) ** 0.5) < 2e-4 and share > 0.01


def test_an_average_is_of_files_of_one_run(tiny_flux: Path, tmp_path: Path) -> None:
    """Of a kind without a product the factors are averaged; what is not of one run is named."""
    paths = [write_lora(tmp_path / f"{n}.safetensors", tiny_flux, rank=2, kind="loha", seed=n) for n in (1, 2)]
    code, text = run("average", *paths, "--out", tmp_path / "mean.safetensors")
    assert code == 0 and "The average of 2 files." in text, text
    files = [safetensors.torch.load_file(path) for path in (*paths, tmp_path / "mean.safetensors")]
    for key, value in files[2].items():
        torch.testing.assert_close(value, (files[0][key] + files[1][key]) / 2)
    others = {
        "rank": write_lora(tmp_path / "rank.safetensors", tiny_flux, rank=3, kind="loha"),
        "layers": write_lora(tmp_path / "layers.safetensors", tiny_flux, rank=2, kind="loha", targets=["attn.to_q"]),
        "alphas": write_lora(tmp_path / "alphas.safetensors", tiny_flux, rank=2, alpha=1, kind="loha"),
        "at least two": None,
    }
    for words, path in others.items():
        files_given = [paths[0], *([path] if path else [])]
        code, text = run("average", *files_given, "--out", tmp_path / "none.safetensors")
        assert code == 2 and words in text and not (tmp_path / "none.safetensors").exists(), text
    # what stands between two factors has no mean of its own
    for path in paths:
        tensors = safetensors.torch.load_file(path)
        safetensors.torch.save_file({**tensors, "lora_unet_conv.lora_mid.weight": torch.ones(2, 2, 3, 3)}, path)
    code, text = run("average", *paths, "--out", tmp_path / "none.safetensors")
    assert code == 2 and "three parts" in text, text


def test_a_rank_that_no_file_uses_is_used_by_the_average() -> None:
    a_s = [torch.randn(3, 6, generator=torch.Generator().manual_seed(n)) for n in (1, 2)]
    b_s = [torch.randn(8, 3, generator=torch.Generator().manual_seed(n)) for n in (3, 4)]
    for b in b_s:
        b[:, 0] = 0
    ((rows, ranks),) = _blocks(b_s)
    assert (len(rows), len(ranks)) == (8, 3)
    (_, _), lost, whole = _mean_of_blocks(a_s, b_s, torch.device("cpu"))
    mean = (b_s[0] @ a_s[0] + b_s[1] @ a_s[1]) / 2
    least = torch.linalg.svdvals(mean)[3:].square().sum()
    assert lost == pytest.approx(float(least), rel=1e-4) and lost < whole


def test_resizing_keeps_what_it_says_under_the_same_keys(tiny_sdxl: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    write_lora(path, tiny_sdxl, "sdxl", rank=6, alpha=3, targets=[r".*attn1\.to_q", r".*resnets\.\d+\.conv1"])
    code, text = run("resize", path, "--rank", 2, "--out", out)
    assert code == 0 and "rank 6 before, 2 now" in text
    before, after = safetensors.torch.load_file(path), safetensors.torch.load_file(out)
    assert before.keys() == after.keys()
    names = open_model(tiny_sdxl).names
    old, new = read_lora(path, names), read_lora(out, names)
    for layer, (a, b) in new.pairs.items():
        whole = old.scales[layer] * (old.pairs[layer][1] @ old.pairs[layer][0])
        sizes = torch.linalg.svdvals(whole)
        error = (new.scales[layer] * (b @ a) - whole).norm()
        torch.testing.assert_close(error, sizes[2:].norm(), rtol=1e-3, atol=1e-5)
    assert run("resize", path, "--keep", 1, "--out", out, "--overwrite")[0] == 0
    assert safetensors.torch.load_file(out).keys() == before.keys()
    # names that torch.compile made
    wrapped = {key.replace("lora_unet_", "lora_unet__orig_mod_"): value for key, value in before.items()}
    safetensors.torch.save_file(wrapped, path)
    assert run("resize", path, "--rank", 2, "--out", out, "--overwrite")[0] == 0
    assert safetensors.torch.load_file(out).keys() == before.keys()
    other = write_lora(tmp_path / "c.safetensors", tiny_sdxl, "sdxl", kind="lokr", targets=[r".*attn1\.to_q"])
    assert "only a LoRA can be resized" in run("resize", other, "--rank", 2, "--out", tmp_path / "d.safetensors")[1]


def test_inspect_names_what_is_wrong_and_how_strong_each_layer_is(tiny_sdxl: Path, tmp_path: Path, capsys) -> None:
    path = write_lora(tmp_path / "a.safetensors", tiny_sdxl, "sdxl", rank=3, alpha=6, text=True)
    tensors = safetensors.torch.load_file(path)
    downs = [key for key in tensors if key.endswith("lora_down.weight")]
    tensors[downs[0]][0, 0] = torch.nan
    tensors[downs[1]].zero_()
    del tensors[downs[2]]
    tensors[downs[3]] = tensors[downs[3]][:2].clone()
    tensors["strange.key"] = torch.ones(1)
    safetensors.torch.save_file(tensors, path, {"ss_base_model_version": "sdxl_base_v1-0"})
    assert run("inspect", path, "--base", tiny_sdxl, "--json")[0] == 0
    report = json.loads(capsys.readouterr().out)
    assert report["family"] == family("sdxl").title and report["ranks"].keys() == {"3", "2", "none"}
    assert report["text_layers"] and report["formats"] == {"F32": len(tensors)}
    problems = " ".join(report["problems"])
    wrong = ((downs[0], "NaN"), (downs[1], "the change is 0"), (downs[2], "are missing"), (downs[3], "do not fit"))
    for key, words in wrong:
        assert key.removesuffix(".lora_down.weight") in problems and words in problems
    assert "strange.key" in problems
    model = open_model(tiny_sdxl)
    layer = next(each for each in report["layers"] if each["relative"] and "attn2_to_k" in each["name"])
    ((name, _),) = model.names.stems[layer["name"]]
    stem = layer["name"]
    change = 2 * tensors[f"{stem}.lora_up.weight"] @ tensors[f"{stem}.lora_down.weight"]
    assert abs(layer["norm"] - float(change.norm())) < 1e-4 * layer["norm"]
    assert abs(layer["relative"] - layer["norm"] / float(model.weights()[name].read().norm())) < 1e-5
    assert "Strongest layers" in run("inspect", path)[1]


def verdicts(path: Path, capsys: pytest.CaptureFixture[str], *more: object) -> dict[str, dict]:
    capsys.readouterr()
    run("check", path, "--json", *more)
    return {row["program"]: row for row in json.loads(capsys.readouterr().out)["programs"]}


def test_check_counts_the_keys_that_each_program_takes(tiny_sdxl: Path, tmp_path: Path, capsys) -> None:
    path = write_lora(tmp_path / "a.safetensors", tiny_sdxl, "sdxl", text=True)
    tensors = safetensors.torch.load_file(path)
    answers = verdicts(path, capsys, "--base", tiny_sdxl)
    assert {name: row["loaded"] for name, row in answers.items()} == dict.fromkeys(
        ("diffusers", "ComfyUI", "sd-scripts"), len(tensors)
    )
    extra = "lora_unet_input_blocks_99_1_proj_in"
    extras = {f"{extra}.lora_down.weight": torch.ones(2, 8), f"{extra}.lora_up.weight": torch.ones(8, 2)}
    safetensors.torch.save_file({**tensors, "strange.diff": torch.ones(2), **extras}, path)
    answers = verdicts(path, capsys, "--base", tiny_sdxl)
    for name in ("ComfyUI", "sd-scripts"):
        assert set(answers[name]["ignored"]) == {"strange.diff", *extras}, name
    peft = write_lora(tmp_path / "b.safetensors", tiny_sdxl, "sdxl", form="diffusers")
    answers = verdicts(peft, capsys, "--base", tiny_sdxl)
    assert answers["diffusers"]["ignored"] == [] and answers["sd-scripts"]["error"]
    assert any("attn1.to_k" in key for key in answers["ComfyUI"]["ignored"])


def test_diffusers_loads_what_check_says(tiny_flux: Path, tmp_path: Path, capsys) -> None:
    """Compared with a real pipeline: as many layers get a LoRA, and the keys that it warns of are those named."""
    from diffusers import FluxPipeline

    path = write_lora(tmp_path / "a.safetensors", tiny_flux, form="diffusers", targets=["attn.to_q", "proj_out"])
    tensors = safetensors.torch.load_file(path)
    stray = {f"transformer.no_such.layer.lora_{side}.weight": torch.ones(2, 2) for side in "AB"}
    safetensors.torch.save_file(tensors | stray, path)
    row = verdicts(path, capsys, "--base", tiny_flux)["diffusers"]
    pipe = FluxPipeline.from_pretrained(tiny_flux)
    pipe.load_lora_weights(str(path))
    layers = [module for module in pipe.transformer.modules() if hasattr(module, "lora_A")]
    assert set(row["ignored"]) == set(stray) and row["loaded"] == 2 * len(layers) == len(tensors)


@pytest.mark.parametrize("name", ["flux", "wan", "qwen_image", "hunyuan_video", "sd3", "anima", "sd15"])
def test_a_file_of_the_published_model_needs_no_base(name: str, tmp_path: Path, capsys) -> None:
    """A LoRA of one layer of the real size, as the trainer writes it for ComfyUI: the family is known by its names."""
    from diffusers import WanPipeline

    from backend.lora.save import LayerWeights, in_format
    from backend.lora_tools.base_models import published

    facts = family(name)
    _, names = published(facts)
    attribute = "transformer_blocks" if name == "sd3" else facts.block_classes[-1].attribute
    block = "up_blocks.1.attentions.0." if name == "sd15" else f"{attribute}.0."
    layers = {
        path: LayerWeights(torch.ones(1, inner), torch.ones(outer, 1), 1.0)
        for path, (inner, outer) in names.layers.items()
        if path.startswith(block) and any(fits(pattern, path) for pattern in facts.default_targets)
    }
    path = tmp_path / "x.safetensors"
    # alone, these layers have the names and sizes of FLUX's
    metadata = {"ss_base_model_version": facts.lora_version} if name == "hunyuan_video" else None
    safetensors.torch.save_file(in_format(layers, names, "kohya"), path, metadata)
    answers = verdicts(path, capsys)
    assert answers["ComfyUI"]["ignored"] == [] and answers["ComfyUI"]["error"] is None
    other = answers.get("sd-scripts") or answers["musubi-tuner"]
    assert other["ignored"] == [] and other["error"] is None
    if facts.diffusers_layers is None or name in ("flux", "wan"):
        assert answers["diffusers"]["ignored"] == [] and answers["diffusers"]["error"] is None, answers["diffusers"]
    if name == "wan":
        some = {path: layer for path, layer in layers.items() if not path.endswith("attn1.to_q")}
        safetensors.torch.save_file(in_format(some, names, "kohya"), path)
        refused = verdicts(path, capsys)["diffusers"]
        assert "blocks_0_self_attn_q" in refused["error"] and "merge --lora FILE --layout diffusers" in refused["note"]
        out = tmp_path / "out.safetensors"
        run("merge", "--lora", path, "--layout", "diffusers", "--out", out, "--precision", "fp32")
        converted, wanted = safetensors.torch.load_file(out), in_format(some, names, "diffusers")
        assert all(value.equal(wanted[key]) for key, value in WanPipeline.lora_state_dict(converted).items())


def test_wrong_input_is_named(tiny_flux: Path, tiny_sdxl: Path, flux_files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    lora = write_lora(tmp_path / "flux.safetensors", tiny_flux)
    other = write_lora(tmp_path / "sdxl.safetensors", tiny_sdxl, "sdxl", targets=[r".*attn1\.to_q"])
    broken = tmp_path / "nan.safetensors"
    tensors = safetensors.torch.load_file(lora)
    next(each for key, each in tensors.items() if not key.endswith("alpha"))[0, 0] = torch.nan
    safetensors.torch.save_file(tensors, broken)
    model = tmp_path / "model"
    model.mkdir()
    nothing = ("--rank", 2, "--out", out)
    cases: list[tuple[tuple[object, ...], str]] = [
        (("extract", "--base", tiny_flux, "--tuned", tiny_sdxl, *nothing), "is FLUX"),
        (("extract", "--base", tiny_flux, "--tuned", tiny_flux, *nothing), "differs"),
        (("extract", "--base", tiny_flux, "--tuned", tmp_path / "none", *nothing), "does not exist"),
        (("extract", "--base", tiny_flux, "--tuned", tiny_flux, "--out", out), "no rank is given"),
        (("merge", "--base", tiny_flux, "--lora", other, "--out", tmp_path / "new"), "is a LoRA of SDXL"),
        (("merge", "--base", tiny_flux, "--lora", lora, "--out", tmp_path), "is there already"),
        (("merge", "--lora", lora, "--lora", other, "--out", out), "is a LoRA of"),
        (("merge", "--lora", f"{lora}:x", "--out", out), "is no strength"),
        (("merge", "--lora", lora, "--out", lora, "--overwrite"), "would replace what it is made of"),
        (("merge", "--base", tiny_flux, "--lora", broken, "--out", tmp_path / "new"), "holds NaN"),
        (("merge", "--base", model, "--lora", lora, "--out", model / "new"), "lies in the folder"),
        (("extract", "--base", tiny_flux, "--tuned", tiny_flux, *nothing, "--targets", "to_qq"), "names no layer"),
        (("resize", broken, *nothing), "holds NaN"),
        (("resize", flux_files["base"], *nothing), "not a LoRA"),
        (("resize", lora, "--rank", 2, "--out", tmp_path / "no" / "x.safetensors"), "does not exist"),
    ]
    for words, text in cases:
        code, shown = run(*words)
        assert code == 2 and text in shown, (words, shown)
    assert not out.exists() and not list(tmp_path.rglob(".*.part"))


def test_nothing_is_left_of_a_merge_that_breaks_off(
    tiny_sdxl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora = write_lora(tmp_path / "a.safetensors", tiny_sdxl, "sdxl", targets=[r".*attn1\.to_q"])
    monkeypatch.setattr("backend.lora_tools.output.free_bytes", lambda folder: 1000)
    code, text = run("merge", "--base", tiny_sdxl, "--lora", lora, "--out", tmp_path / "new")
    assert code == 2 and "No space left" in text and not (tmp_path / "new").exists()
