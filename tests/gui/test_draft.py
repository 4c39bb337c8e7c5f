"""The draft: kept on the server, undone, restored, and never a reason for the page not to open."""

from __future__ import annotations

from pathlib import Path

import pytest

from gui import form
from gui.draft import Desk


def with_rank(rank: str) -> form.Values:
    return form.defaults() | {"network.network_dim": rank}


def test_the_page_is_told_what_the_family_lacks(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert "loss.min_snr_gamma" in desk.facts()["lacking"] and "loss.loss_type" not in desk.facts()["lacking"]
    desk.keep(form.defaults() | {"model.family": "sdxl"})
    assert "timesteps.discrete_flow_shift" in desk.facts()["lacking"]
    assert not any(path.startswith("loss.") for path in desk.facts()["lacking"])
    desk.keep(form.defaults() | {"model.family": "half typed"})
    assert desk.facts()["lacking"] == []


def test_parts_and_columns_are_those_of_the_family(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    facts = desk.facts()
    assert "clip_l.safetensors" in facts["parts"]["model.text_encoder"]
    assert "model.text_encoder_2" not in facts["lacking"] and "control_path" in facts["lackingColumns"]
    desk.keep(form.defaults() | {"model.family": "sd15"})
    facts = desk.facts()
    assert "model.text_encoder_2" in facts["lacking"] and "model.text_encoder" not in facts["lacking"]
    assert {"guidance_scale", "text_length", "control_image"} <= set(facts["lackingColumns"])
    desk.keep(form.defaults() | {"model.family": "flux_kontext"})
    assert "control_path" not in desk.facts()["lackingColumns"] and "control_image_2" in desk.facts()["lackingColumns"]
    assert {"dataset.control_resolution", "model.zero_cond_t"} <= set(desk.facts()["lacking"])
    desk.keep(form.defaults() | {"model.family": "qwen_image_edit_plus"})
    facts = desk.facts()
    assert not {"control_path", "control_image", "control_image_3"} & set(facts["lackingColumns"])
    assert not {"dataset.control_resolution", "model.zero_cond_t"} & set(facts["lacking"])


def test_a_draft_survives_the_server(tmp_path: Path) -> None:
    Desk(tmp_path).keep(with_rank("not yet a number"))
    assert Desk(tmp_path).now.values == with_rank("not yet a number")


def test_a_load_can_be_undone_and_redone_also_after_a_restart(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.keep(with_rank("8"))
    desk.load(with_rank("32"), "big")
    desk.keep(with_rank("33"))
    assert desk.facts()["preset"] == "big"
    assert desk.facts()["changed"] == ["network.network_dim"]
    desk = Desk(tmp_path)
    assert desk.undo() and desk.now.values == with_rank("8") and desk.now.preset is None
    assert desk.redo() and desk.now.values == with_rank("33") and desk.now.preset == "big"
    assert desk.undo() and not desk.undo()


def test_a_load_forgets_what_was_undone(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.load(with_rank("8"), "a")
    desk.undo()
    desk.load(with_rank("4"), "b")
    assert not desk.redo()


def test_a_preset_that_is_renamed_or_deleted_keeps_its_form(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.load(with_rank("8"), "a")
    desk.load(with_rank("4"), "b")
    desk.renamed("a", "c")
    desk.renamed("b", None)
    assert desk.now.preset is None and desk.now.values == with_rank("4")
    desk.undo()
    assert desk.now.preset == "c"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"version": 1}', '{"version": 99, "now": {}}', '{"version":1,"now":5}']
)
def test_a_broken_draft_is_left_aside(tmp_path: Path, content: str) -> None:
    (tmp_path / "draft.json").write_text(content, encoding="utf-8")
    assert Desk(tmp_path).now.values == form.defaults()


def test_a_draft_that_cannot_be_written_does_not_stop_the_page(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    desk = Desk(blocked / "desk")
    desk.keep(with_rank("8"))
    assert desk.now.values == with_rank("8")


def test_two_tabs_take_nothing_from_each_other(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    first = dict(desk.shown("first"))
    second = dict(desk.shown("second"))
    assert not desk.keep(first | {"network.network_dim": "12"}, "first")
    assert desk.keep(second | {"training.seed": "77"}, "second"), "its form is older than the desk"
    assert (desk.now.values["network.network_dim"], desk.now.values["training.seed"]) == ("12", "77")
    given = dict(desk.shown("second"))
    assert not desk.keep(given | {"network.network_dim": "4"}, "second")
    assert desk.now.values["network.network_dim"] == "4"
    # What a tab sent before it heard of a load changes nothing that was loaded.
    desk.load(with_rank("64"), "big")
    assert desk.keep(given | {"network.network_dim": "4"}, "second")
    assert desk.now.values == with_rank("64")
