"""Asks of every family, in the same words, what it must give: facts, denoiser, blocks, names, text."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.families.spec import FamilyFacts
from backend.families.table import FAMILIES, family
from backend.lora.comfyui_keys import linear_layers, names_of, not_loadable
from backend.lora.inject import find_targets
from backend.models.common.load_options import LoadOptions
from backend.models.family import Family
from backend.models.family_classes import load_family, load_family_of
from backend.plan.memory.parts import place_of
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny import families_page

CPU = LoadOptions(torch.float32, torch.device("cpu"))
FOLDERS = {"qwen_image_edit": "qwen_edit", "qwen_image_edit_plus": "qwen_edit_plus", "flux_kontext": "flux"}
FOLDERS |= {"wan22_5b_i2v": "wan22_5b", "framepack_f1": "framepack"}
# Families that run the same functions over the same layers as another, whose graphs are traced for both.
SAME_GRAPHS = {"wan22_i2v": "wan22", "wan22_5b": "wan22", "framepack_f1": "framepack"}
FORWARD = ("predict", "pack", "condition", "stack", "call_block", "mark", "install", "adapt")


@dataclass(frozen=True)
class Subject:
    """A family with its tiny model: the folder, and the denoiser as it is loaded."""

    facts: FamilyFacts
    code: Family
    base: Path
    denoiser: Any


@pytest.fixture(scope="module", params=FAMILIES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    facts, code = family(request.param), load_family(request.param)
    base = base_of(facts.name, request)
    if facts.name == "flux_kontext":
        base = renamed(base, tmp_path_factory.mktemp("kontext"), facts.pipeline_class)
    return Subject(facts, code, base, code.load_denoiser(base, CPU))


def base_of(name: str, request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(f"tiny_{FOLDERS.get(name, name)}")


def renamed(base: Path, where: Path, pipeline: str) -> Path:
    """The model `base` as that of another pipeline with the same parts."""
    for path in base.iterdir():
        if path.is_dir():
            (where / path.name).symlink_to(path, target_is_directory=True)
    index = json.loads((base / "model_index.json").read_text(encoding="utf-8"))
    (where / "model_index.json").write_text(json.dumps(index | {"_class_name": pipeline}), encoding="utf-8")
    return where


def test_the_facts_are_those_of_the_model(subject: Subject, tiny_flux: Path, tiny_sdxl: Path) -> None:
    facts, base = subject.facts, subject.base
    assert [problem for problem in facts.check_base_model(base) if problem.severity == "error"] == []
    assert facts.sizes(base).keys() == {part.name for part in facts.parts if part.weights}
    assert all(facts.sizes(base).values())
    other = tiny_sdxl if facts.name == "flux" else tiny_flux
    refused = facts.check_base_model(other)
    assert refused[0].severity == "error" and refused[0].path == "model.base_model"
    assert facts.pipeline_class in refused[0].text and facts.title in refused[0].remedy
    geometry = facts.geometry(base)
    assert (geometry.downscale, geometry.patch) == (facts.default_geometry.downscale, facts.default_geometry.patch)
    assert facts.scheduler_config(base)["_class_name"] in facts.part("scheduler").class_names
    with pytest.raises(ValueError, match="gives no"):
        facts.geometry(base / "nowhere")
    with pytest.raises(KeyError, match="has no part 'tail'"):
        facts.part("tail")


def test_the_denoiser_is_diffusers_own_frozen_and_known_without_its_weights(subject: Subject) -> None:
    facts, code, ours = subject.facts, subject.code, subject.denoiser
    assert code.model.__name__ == facts.denoiser_class and load_family_of(facts.denoiser_class).model is code.model
    theirs = code.model.from_pretrained(subject.base / facts.denoiser.folder, local_files_only=True).state_dict()
    assert ours.state_dict().keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.state_dict().items())
    assert ours.training and not any(parameter.requires_grad for parameter in ours.parameters())
    empty = code.empty_denoiser(subject.base)
    assert {n: p.shape for n, p in empty.named_parameters()} == {n: p.shape for n, p in ours.named_parameters()}
    assert all(parameter.is_meta for parameter in empty.parameters())


def test_the_blocks_are_where_the_facts_say(subject: Subject) -> None:
    facts, denoiser = subject.facts.narrowed(subject.base), subject.denoiser
    lists = subject.code.block_lists(denoiser)
    assert list(lists) == [each.name for each in facts.block_classes]
    for each in facts.block_classes:
        assert {type(block).__name__ for block in lists[each.name]} == {each.class_name}
    order = [block for blocks in subject.code.running_order(denoiser).values() for block in blocks]
    assert {id(block) for block in order} == {id(block) for blocks in lists.values() for block in blocks}
    assert len(order) == sum(map(len, lists.values()))
    kinds = {id(p): kind for kind, blocks in lists.items() for block in blocks for p in block.parameters()}
    for name, parameter in denoiser.named_parameters():
        place = place_of(name, facts)
        assert (place[0] if place else None) == kinds.get(id(parameter)), name
    # what the plan of memory knows
    assert subject.facts.memory is not None
    assert {each.block for each in subject.facts.memory.blocks} == {each.name for each in subject.facts.block_classes}


def test_every_layer_that_is_trained_by_default_has_a_name_that_others_load(subject: Subject) -> None:
    facts = subject.facts
    targets = find_targets(subject.denoiser, [*facts.default_targets, *facts.conv_targets])
    assert targets and not_loadable(targets, facts.lora_layers) == []
    layers = linear_layers(subject.denoiser)
    names = names_of(layers, facts)
    assert names.prefix == facts.denoiser.folder
    for form in ("kohya", "diffusers"):
        assert all(names.out_name(path, form) for path in targets)
    assert len({names.out_name(path, "diffusers") for path in targets}) == len(targets)
    assert facts.lora_version and facts.lora_architecture(subject.base).endswith("/lora")


def test_the_denoiser_takes_what_text_stack_and_vae_give(subject: Subject) -> None:
    """In training order: pictures to latents, captions to tensors, one prediction, in its shape and format."""
    code, facts = subject.code, subject.facts
    geometry, vae = facts.geometry(subject.base), code.load_vae(subject.base, CPU)
    side = 2 * geometry.pixels_per_token
    pixels = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 1
    least = 1 if facts.video is None else facts.video.least
    # of a family that can't be trained on pictures, a clip that stands still
    rows = [vae.encode_row(p if least == 1 else p[:, None].expand(-1, least, -1, -1)) for p in pixels]
    latents = [row.pop("latent") for row in rows]
    assert all(latent.shape == geometry.latent_shape(side, side, least) for latent in latents)
    length = facts.text_length if facts.fixed_text_length else 24
    text = code.load_text(subject.base, CPU).encode(["a red circle", "the cat"], length)
    if code.conditions is not None:
        text = [row | code.conditions((side, side), (0.0, 0.0), (side, side)) for row in text]
    text = [row | more for row, more in zip(text, rows, strict=True)]
    levels = torch.tensor([0.25, 0.75]) * (1000 if facts.objective == "diffusion" else 1)
    with torch.no_grad():
        output = code.predict(subject.denoiser, latents, levels, text, 1.0, ShapeRuntime("off"))
    assert [each.shape for each in output] == [latent.shape for latent in latents]
    assert all(each.dtype == torch.float32 and torch.isfinite(each).all() for each in output)
    same = code.guided(output[0], output[1], 1.0)
    torch.testing.assert_close(same, output[0])
    if facts.objective == "flow":
        sigmas = code.sampling_sigmas(4, geometry.image_tokens(side, side, least), subject.base)
        assert len(sigmas) == 5 and sigmas[-1] == 0.0 and sigmas == sorted(sigmas, reverse=True)


def test_planned_graphs_are_observed_in_a_test_of_its_own_or_of_a_family_with_the_same_forward(
    subject: Subject, request: pytest.FixtureRequest
) -> None:
    """One of the families that share all that is traced is enough; of the others, that they still do."""
    proven = families_page.proofs()
    name, like = subject.facts.name, SAME_GRAPHS.get(subject.facts.name)
    if like is None:
        assert "graphs" in proven[name], f"no test counts the graphs of {name}: name one in proofs.toml, as `graphs`"
        return
    assert "graphs" in proven[like]
    other = load_family(like)
    empty = other.empty_denoiser(base_of(like, request))
    assert forward_of(subject.code) == forward_of(other), "it has a forward of its own: leave it out of SAME_GRAPHS"
    assert layers_of(subject.code, subject.denoiser) <= layers_of(other, empty)


def forward_of(code: Family) -> list[Any]:
    """The functions that a family's graphs are traced through."""
    return [getattr(type(code), name, None) for name in FORWARD]


def layers_of(code: Family, denoiser: Any) -> set[str]:
    """Names of the weights in its blocks."""
    blocks = [block for listed in code.block_lists(denoiser).values() for block in listed]
    return {name for block in blocks for name, _ in block.named_parameters()}


def test_what_a_family_must_give_is_named_where_it_is_missing() -> None:
    class Half(Family):
        """Gives a forward and no more."""

        block_lists = install = predict = None  # type: ignore[assignment]

    with pytest.raises(TypeError, match="Half lacks model and text_stack, which a family must give"):
        Half(family("flux"))
    with pytest.raises(TypeError, match="predict"):
        type("Empty", (Family,), {"model": object, "text_stack": object})(family("flux"))
    values = {each.name: getattr(family("flux"), each.name) for each in fields(FamilyFacts)}
    del values["lora_layers"]
    with pytest.raises(TypeError, match="lora_layers"):
        type(family("flux"))(**values)
    with pytest.raises(TypeError, match="lora_architecture"):
        FamilyFacts(**values, lora_layers=())
