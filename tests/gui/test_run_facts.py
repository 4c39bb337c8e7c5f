"""What the Run tab shows is one function of a run's events."""

from __future__ import annotations

import re
from pathlib import Path

from backend.runs.events.kinds import (
    AttentionEvent,
    CompiledShareEvent,
    CompileStateEvent,
    CompilingEvent,
    CudaGraphsEvent,
    DoneEvent,
    Event,
    GraphBreakEvent,
    GraphEvent,
    MemoryEstimateEvent,
    MemoryPeakEvent,
    PhaseEvent,
    PlanEvent,
    ProcessesEvent,
    RecompileEvent,
    ResumedEvent,
    SwapEvent,
    ValidationEvent,
)
from backend.runs.events.validation import AverageEvent, BestEvent, EarlyStopEvent, OverfitEvent
from gui.run_facts import MOST, RunFacts

SERVER = Path(__file__).resolve().parents[2] / "assets" / "js" / "server.d.ts"


def facts(*events: Event) -> RunFacts:
    taken = RunFacts()
    for event in events:
        taken.add(event)
    return taken


COMPILED = (
    CompilingEvent(compiling="double block 0"),
    CompileStateEvent(state="partly", reason="no Triton", planned=4),
    CompiledShareEvent(share=0.7),
    *(GraphEvent(graph=number, block="double", seconds=2.0, cached=True) for number in (1, 2)),
    CudaGraphsEvent(state="left out", reason="no GPU"),
    AttentionEvent(route="flex", detail="flex attention", how="measured", milliseconds={"sdpa": 2.2, "flex": 2.0}),
    RecompileEvent(reason="batch went from 2 rows to 1 row", block="double", graph=3, t=5.0),
    GraphBreakEvent(reason="a print", file="a.py", line=3),
)


def test_compiling_adds_up_and_a_resume_begins_again() -> None:
    shown = facts(*COMPILED).to_dict()
    compiled = shown["compile"]
    assert (compiled["compiling"], compiled["state"], compiled["reason"]) == ("double block 0", "partly", "no Triton")
    assert (compiled["planned"], compiled["share"], compiled["graphs"]) == (4, 0.7, 2)
    assert [(made["graph"], made["cached"]) for made in compiled["made"]] == [(1, True), (2, True)]
    assert shown["recorded"]["reason"] == "no GPU" and shown["breaks"][0]["line"] == 3
    assert (shown["attention"]["route"], shown["attention"]["milliseconds"]["flex"]) == ("flex", 2.0)
    assert (shown["recompiles"][0]["graph"], shown["recompiles"][0]["t"]) == (3, 5.0)
    again = facts(*COMPILED, ResumedEvent(step=9, generation=1)).to_dict()
    assert (again["compile"], again["recorded"], again["recompiles"], again["breaks"]) == ({}, None, [], [])


def test_memory_is_the_newest_estimate_with_what_was_used() -> None:
    estimate, peak = MemoryEstimateEvent(headline="Fits.", allocated=9), MemoryPeakEvent(ram_peak=5, words="as told")
    assert facts(peak).to_dict()["memory"]["ram_peak"] == 5
    shown = facts(estimate, peak).to_dict()["memory"]
    assert (shown["headline"], shown["allocated"], shown["ram_peak"], shown["words"]) == ("Fits.", 9, 5, "as told")
    assert "ram_peak" not in facts(estimate, peak, estimate).to_dict()["memory"]


def test_lists_are_short_and_only_what_is_shown_counts_as_news() -> None:
    many = facts(*(ValidationEvent(step=step, set="held out", loss=0.5) for step in range(MOST + 5)))
    assert [row["step"] for row in many.to_dict()["validation"]] == list(range(5, MOST + 5))
    before = many.version
    many.add(PhaseEvent(phase="train", done=1))
    assert many.version == before
    many.add(PlanEvent(mode="static", graphs={"planned": 4}))
    assert many.version == before + 1 and many.to_dict()["plan"]["graphs"] == {"planned": 4}


def test_conclusions_of_validations_stand_until_they_are_taken_back() -> None:
    best = [BestEvent(step=step, loss=1 / step, file="checkpoints/x-best.safetensors") for step in (2, 4, 8)]
    begun = OverfitEvent(step=10, state="begun", loss=0.5, lowest_step=8, lowest_loss=0.125, training_loss=0.05)
    end = EarlyStopEvent(step=10, total=90, validations=1, lowest_step=8, lowest_loss=0.125, file=best[-1].file)
    mean = AverageEvent(step=10, file="a", steps=[8, 10], loss=0.25, final_loss=0.5)
    shown = facts(*best, begun, end, mean).to_dict()
    assert (shown["best"]["step"], shown["best"]["loss"]) == (8, 0.125) and "step 8" in shown["best"]["words"]
    assert "step 10 of 90" in shown["early_stop"]["words"] and "0.12500 at step 8" in shown["early_stop"]["words"]
    assert "steps 8, 10" in shown["average"]["words"] and "0.25000" in shown["average"]["words"]
    (notice,) = shown["warnings"]
    assert "overfits" in notice["text"] and "from 0.12500 to 0.50000" in notice["text"] and "step 8" in notice["remedy"]
    assert facts(*best, begun, OverfitEvent(step=12, state="ended", loss=0.1)).to_dict()["warnings"] == []
    again = facts(*best, begun, end, mean, ResumedEvent(step=5)).to_dict()
    assert again["best"]["step"] == 4 and again["warnings"] == []
    assert again["early_stop"] is None and again["average"] is None


def test_the_page_reads_names_that_are_given() -> None:
    compared = (BestEvent(step=4, loss=0.5), EarlyStopEvent(step=9), AverageEvent(step=9, file="x"))
    places = [{"device": "CPU", "memory": 1, "total": 2}, None, {"device": 3}]
    memory = (MemoryEstimateEvent(), MemoryPeakEvent(), SwapEvent(), ProcessesEvent(processes=places))
    whole = facts(*COMPILED, PlanEvent(), *memory, *compared, DoneEvent()).to_dict()
    assert whole["processes"] == places[:1]
    declared = re.search(r"export interface RunFacts \{(.*?)\n\}", SERVER.read_text(encoding="utf-8"), re.DOTALL)
    assert declared is not None
    listed = {"samples", "checkpoints", "pictures"}  # of the folders, which the events alone don't show
    for name, fields in re.findall(r"^  (\w+): (.*?);$", declared[1], re.MULTILINE | re.DOTALL):
        assert name in whole or name in listed, name
        if fields.startswith("{") and name != "warnings":
            inner = re.sub(r"\{[^{}]*\}", "", fields[1:].rsplit("}", 1)[0])
            assert set(re.findall(r"(\w+)\??:", inner)) <= whole[name].keys(), name
