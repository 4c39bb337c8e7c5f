"""Whether recording pays is found out by timing, on a CPU with `tests.tiny.tape` in place of CUDA's graphs."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from backend.compile.cuda_graphs.graph_trial import SPARE, Trial
from backend.compile.cuda_graphs.recording import record
from tests.tiny.recorded import GB, assert_same, losses, model_on, turns
from tests.tiny.shapes import make_batch
from tests.tiny.tape import Card


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cpu":
        request.getfixturevalue("card")
    return request.param


class TestAuto:
    """Three passes are timed; then the first replay has to be faster."""

    @pytest.mark.parametrize("auto", [False, True])
    def test_a_shape_is_recorded_where_it_is_first_seen(self, auto: bool, card: Card) -> None:
        """From the second pass on, whatever its shape; what the trial drew, the pass draws again."""
        model, plain = (model_on("cpu", dropout=0.3) for _ in range(2))
        recorder = record(model, trial=Trial() if auto else None)
        if auto:
            recorder.trial.pays = lambda gain: Trial.pays(recorder.trial, 0.5)
        recorder.compiled_seconds = time.perf_counter  # as if all of it were compiling, which counts elsewhere
        sizes = [(16, 16), (8, 8), (8, 16), (8, 16)]
        batches = [make_batch([size], [12], seed=number) for number, size in enumerate(sizes)]
        for count, number in ((0, 1), (1, 2), (2, 3), (2, 4)):
            assert_same(losses(model, batches[number - 1 : number]), losses(plain, batches[number - 1 : number]))
            assert len(recorder.recordings) == count, f"after pass {number}"
        assert abs(recorder.seconds) < 1e-3

    def test_a_small_gain_is_taken_where_memory_is_ample(self, card: Card) -> None:
        card.peak, card.free = GB, 9 * GB
        recorder = record(model := model_on("cpu"), trial=Trial(SPARE))
        losses(model, turns("cpu", 3))
        assert recorder.failed == "10.3 GB of the GPU's memory must be free for it, and 9.0 GB are"

    def test_records_where_a_pass_is_launching(self, device: str) -> None:
        model, messages = model_on(device), []
        recorder = record(model, messages.append, Trial())
        if device == "cpu":
            recorder.trial.pays = lambda gain: gain < 1 and Trial.pays(recorder.trial, 0.5)
        losses(model, turns(device))
        assert "of a forward and backward pass" in recorder.trial.words and recorder.seconds > 0
        assert not recorder.trial.against and len(recorder.recordings) == 2, recorder.trial.words
        assert len(messages) == 3 and recorder.plain_seconds > 0 < recorder.replay_seconds

    def test_leaves_a_card_that_does_not_wait_alone(self, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = iter([0.0, 0.02, 0.1] * 3)
        monkeypatch.setattr("backend.compile.cuda_graphs.graph_trial.time.perf_counter", lambda: next(clock, 0.0))
        trial, messages = Trial(), []
        assert [trial(lambda: 3) for _ in range(2)] == [3, 3] and not trial.decided
        trial(lambda: 3)
        assert trial.against == "the GPU does not wait for the processor: launching takes 20% of a forward pass"
        recorder = record(nn.Linear(2, 1), messages.append, trial)
        for _ in range(3):
            recorder(lambda x: x * 2, torch.ones(2))
        assert not recorder.recordings and not recorder.made

    def test_a_long_pass_is_timed_once(self, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
        """However much of it was launching, which also waits where many kernels are queued."""
        clock = iter([0.0, 1.6, 2.3])
        monkeypatch.setattr("backend.compile.cuda_graphs.graph_trial.time.perf_counter", lambda: next(clock))
        trial = Trial()
        assert trial(lambda: 3) == 3 and trial.decided
        assert trial.against == "the GPU does not wait for the processor: a forward pass takes 2.3 s"

    @pytest.mark.parametrize(("gain", "pays"), [(0.5, True), (0.02, False), (-0.2, False)])
    def test_a_replay_has_to_be_faster(self, gain: float, pays: bool) -> None:
        """Slow cards make launching wait too."""
        trial = Trial()
        assert trial.pays(gain) == pays and bool(trial.against) != pays
        assert trial.words == f"a replay saves {gain:.0%} of a forward and backward pass"

    def test_the_first_recording_alone_says_whether_it_pays(self, card: Card) -> None:
        """What a later one takes by chance throws nothing away."""
        recorder, gains = record(model := model_on("cpu"), trial=Trial()), iter([0.5, 0.0])
        recorder.trial._shares[:] = [1.0, 1.0]
        recorder.trial.pays = lambda gain: Trial.pays(recorder.trial, next(gains))
        losses(model, turns("cpu"))
        assert len(recorder.recordings) == 2 and next(gains) == 0.0

    def test_a_recording_that_does_not_pay_gives_its_memory_back(self, card: Card) -> None:
        model, plain, messages = model_on("cpu"), model_on("cpu"), []
        recorder = record(model, messages.append, Trial())
        recorder.trial._shares[:] = [1.0, 1.0]
        recorder.trial.pays = lambda gain: Trial.pays(recorder.trial, 0.0)
        assert_same(losses(model, turns("cpu")), losses(plain, turns("cpu")))
        assert "hardly pays" in recorder.trial.against and not recorder.recordings and not recorder.made
        assert messages == [recorder] * 2 and not recorder.failed
