"""Recorded passes: the results of plain ones, whatever comes between two of them.

On a CPU `tests.tiny.tape` stands for CUDA's graphs; the same tests run with real ones where there is a card.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from backend.compile.cuda_graphs.recording import Recorder, _key, forget, record
from backend.compile.cuda_graphs.replay import compare
from backend.memory.exclusive_device import offloaded
from backend.models.family_classes import load_family
from backend.shapes.padding import joint_spans, span_mask
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.recorded import GB, assert_same, losses, model_on, turns
from tests.tiny.sdxl import FIRST_WIDTH, POOLED_WIDTH, SECOND_WIDTH, make_tiny_unet
from tests.tiny.shapes import denoiser_with_lora, make_batch
from tests.tiny.tape import Card

block_lists = load_family("flux").block_lists
predict = load_family("flux").predict


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cpu":
        request.getfixturevalue("card")
    return request.param


@pytest.mark.parametrize("sums", [1, 2])
def test_replayed_passes_are_plain_ones(device: str, sums: int) -> None:
    """Two shapes by turns, gradients of one pass and of two."""
    assert_replayed(model_on(device), model_on(device), device, sums)


@pytest.mark.gpu
@pytest.mark.parametrize("sums", [1, 2])
def test_replayed_passes_of_compiled_blocks_are_theirs(sums: int) -> None:
    """On a card alone: the stand-in writes operators down, and inductor's kernels are none."""
    model, plain = (model_on("cuda") for _ in range(2))
    for each in (model, plain):
        for blocks in block_lists(each).values():
            for block in blocks:
                block.forward = torch.compile(block.forward)
    assert_replayed(model, plain, "cuda", sums)


@pytest.mark.gpu
def test_a_further_shape_takes_no_workspace_of_its_own() -> None:
    """cuBLAS keeps one for each stream and thread, of 8 MiB or more; the tiny model's passes are far smaller."""
    model = model_on("cuda")
    recorder, held = record(model), []
    sizes = [(16, 16), (8, 34), (8, 16), (16, 34)]
    for count, size in enumerate(sizes, start=1):
        batch = make_batch([size], [12], seed=0).to("cuda", torch.bfloat16)
        losses(model, [batch, batch])
        assert len(recorder.recordings) == count
        held.append(torch.cuda.memory_allocated())
    assert held[-1] - held[0] < 4 << 20


def assert_replayed(model: nn.Module, plain: nn.Module, device: str, sums: int) -> None:
    recorder = record(model)
    result = losses(model, turns(device), sums)
    assert len(recorder.recordings) == 2 and not recorder.failed and recorder.seconds > 0 and recorder.kept > 0
    assert_same(result, losses(plain, turns(device), sums))


def test_what_a_replay_drops_is_what_the_plain_pass_drops(device: str) -> None:
    model, plain = (model_on(device, dropout=0.3) for _ in range(2))
    recorder = record(model)
    assert_same(losses(model, turns(device)), losses(plain, turns(device)))
    assert len(recorder.recordings) == 2


def test_gradients_reach_what_was_computed_before(device: str) -> None:
    """As of text encoders that are trained."""
    entries = []
    for recorded in (True, False):
        layer = nn.Linear(6, 4).to(device)
        with torch.no_grad():
            layer.weight.fill_(0.5)
            layer.bias.fill_(0.1)
        before = torch.full((3, 6), 2.0, device=device, requires_grad=True)
        call = record(layer) if recorded else lambda function, *arguments: function(*arguments)
        for number in range(4):
            entering = before * (number + 1)
            out = call(lambda x, others, layer=layer: layer(x) + others[0].sum(), entering, [entering.detach()])
            out.square().sum().backward()
            del out, entering
        entries.append((before.grad, layer.weight.grad, layer.bias.grad))
        assert not recorded or (len(call.recordings) == 1 and not call.failed)
    for got, want in zip(*entries, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("which", ["parameter", "buffer"])
def test_weights_that_moved_make_recordings_void(device: str, which: str) -> None:
    model, plain = (model_on(device) for _ in range(2))
    for each in (model, plain):
        each.proj_out.register_buffer("scale", torch.ones((), device=device))
        each.proj_out.register_forward_hook(lambda layer, inputs, out: out * layer.scale)
    recorder = record(model)
    losses(model, turns(device))
    before = dict(recorder.recordings)
    tensors = list(model.parameters() if which == "parameter" else model.buffers())
    kept = [tensor.data for tensor in tensors]
    for tensor in tensors:
        tensor.data = tensor.data.clone()
    assert_same(losses(model, turns(device)), losses(plain, turns(device)))
    assert len(recorder.recordings) == 2 and not set(before.values()) & set(recorder.recordings.values()) and kept


def test_weights_that_keep_moving_are_not_recorded_for_ever(card: Card) -> None:
    layer = nn.Linear(2, 1)
    recorder = record(layer)
    for _ in range(5):
        kept = layer.weight.data
        layer.weight.data = kept.clone()
        for _ in range(2):
            recorder(layer, torch.ones(1, 2)).sum().backward()
        del kept
    assert "weights move" in recorder.failed and not recorder.recordings


def test_recordings_give_way_where_another_model_needs_the_card(device: str) -> None:
    model, plain = (model_on(device) for _ in range(2))
    recorder = record(model)
    losses(model, turns(device))
    with offloaded(model, torch.device(device)):
        assert not recorder.recordings and not recorder.kept
    assert_same(losses(model, turns(device, 2)), losses(plain, turns(device, 2)))
    assert len(recorder.recordings) == 2 and forget(model) and not forget(plain)


def test_a_capture_that_fails_leaves_the_plain_pass(card: Card) -> None:
    model, plain, messages = model_on("cpu"), model_on("cpu"), []
    recorder, card.breaks = record(model, messages.append), True
    assert_same(losses(model, turns("cpu")), losses(plain, turns("cpu")))
    assert recorder.failed == "RuntimeError: operation not permitted when stream is capturing"
    assert messages == [recorder] and not recorder.recordings and not recorder.made


@pytest.mark.gpu
def test_a_pass_that_cannot_be_captured_runs_plainly() -> None:
    """Reading a number back is no part of a CUDA graph; what comes after it is as if nothing had been tried."""
    model, plain, messages = model_on("cuda", dropout=0.3), model_on("cuda", dropout=0.3), []
    block_lists(model)
    core = model.core

    def reads(*arguments: Any) -> Tensor:
        out = core(*arguments)
        return out if float(out.sum()) else out

    model.core = reads
    recorder, stream = record(model, messages.append), torch.cuda.current_stream()
    assert_same(losses(model, turns("cuda")), losses(plain, turns("cuda")))
    assert recorder.failed and messages == [recorder] and not recorder.recordings
    assert torch.cuda.current_stream() == stream


def test_a_recording_that_gives_something_else_is_not_used(device: str) -> None:
    """A number of the host's is what it was when it was recorded."""
    model, messages = model_on(device), []
    block_lists(model)
    core, calls = model.core, []

    def counts(*arguments: Any) -> Tensor:
        calls.append(1)
        return core(*arguments) * len(calls)

    model.core = counts
    recorder = record(model, messages.append)
    losses(model, turns(device, 3))
    assert "replayed outputs are not those of the plain pass" in recorder.failed
    assert messages == [recorder] and not recorder.recordings


def test_a_replay_is_held_against_the_plain_pass() -> None:
    plain = [torch.randn(8), torch.randn(3, 3)]
    compare("gradients", [value * 1.001 for value in plain], plain)
    compare("gradients", [torch.full((8,), torch.nan), plain[1]], [torch.full((8,), torch.inf), plain[1]])
    compare("gradients of inputs", [], [])
    for wrong in (plain[0].roll(1), torch.zeros(8), torch.full((8,), torch.nan)):
        with pytest.raises(RuntimeError, match="replayed gradients are not those of the plain pass"):
            compare("gradients", [wrong, plain[1]], plain)


def test_inputs_of_another_kind_are_told_by_their_name(card: Card) -> None:
    messages: list[Recorder] = []
    layer = nn.Linear(2, 1)
    recorder = record(layer, messages.append)
    assert recorder(lambda x, mask: layer(x), torch.ones(2), {1, 2}).shape == (1,)
    assert recorder.failed == "a pass that is given a set can't be recorded" and messages == [recorder]


class TestMemory:
    """Recordings take what is left, and give way."""

    def test_without_room_for_a_second_pass_nothing_is_recorded(self, card: Card) -> None:
        model, messages = model_on("cpu"), []
        card.peak, card.free = 10 * GB, 22 * GB
        recorder = record(model, messages.append)
        losses(model, turns("cpu", 4))
        assert recorder.failed == "23.0 GB of the GPU's memory must be free for it, and 22.0 GB are" and messages == [
            recorder
        ]
        assert not recorder.made

    def test_further_shapes_run_as_they_are_where_it_is_short(self, card: Card) -> None:
        """And what recordings keep is free for no other, although torch counts it so."""
        model, plain = model_on("cpu"), model_on("cpu")
        card.peak, card.free, card.pool = 10 * GB, 24 * GB, int(11.5 * GB)
        recorder = record(model)
        assert_same(losses(model, turns("cpu")), losses(plain, turns("cpu")))
        assert len(recorder.recordings) == 1 and not recorder.failed
        assert recorder.full == "13.0 GB of the GPU's memory must be free for it, and 12.5 GB are"

    def test_a_larger_shape_that_comes_late_finds_room(self, card: Card) -> None:
        """Its first pass is a plain one, beside what smaller ones keep."""
        model, plain = model_on("cpu"), model_on("cpu")
        card.peak, card.free, card.pool = 10 * GB, 24 * GB, int(11.5 * GB)
        recorder = record(model)
        batches = [make_batch([size], [12], seed=1) for size in [(8, 8)] * 3 + [(32, 32)] * 2]
        assert_same(losses(model, batches[:3]), losses(plain, batches[:3]))
        assert len(recorder.recordings) == 1
        assert_same(losses(model, batches[3:]), losses(plain, batches[3:]))
        assert "12.5 GB of the GPU's memory are free" in recorder.failed and not recorder.recordings

    def test_where_it_runs_out_in_a_plain_pass_recordings_go_first(self, card: Card) -> None:
        layer = nn.Linear(2, 1)
        recorder = record(layer)

        def hungry(x: Tensor) -> Tensor:
            if x.shape[0] > 2 and recorder.recordings:
                raise torch.OutOfMemoryError("none left")
            return layer(x)

        for _ in range(2):
            recorder(hungry, torch.ones(2, 2)).sum().backward()
        assert recorder.recordings
        assert recorder(hungry, torch.ones(3, 2)).shape == (3, 1)
        assert recorder.failed == "memory ran out" and not recorder.recordings

        def hopeless(x: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("none left")

        with pytest.raises(torch.OutOfMemoryError):
            record(layer)(hopeless, torch.ones(3, 2))

    def test_more_sizes_than_can_be_kept(self, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("backend.compile.cuda_graphs.recording._MOST", 2)
        layer = nn.Linear(2, 1)
        recorder = record(layer)
        for rows in (1, 2, 3, 1, 2, 3):
            recorder(layer, torch.ones(rows, 2)).sum().backward()
        assert len(recorder.recordings) == 2 and recorder.full == "2 shapes are recorded"


@pytest.mark.parametrize("family", ["flux", "sdxl"])
def test_a_denoisers_pass_goes_through_its_recorder(family: str, card: Card) -> None:
    """Whether or not its blocks were compiled first; not where no gradients are made."""
    if family == "flux":
        (model, plain), batch, code = (denoiser_with_lora() for _ in range(2)), make_batch([(8, 8)], [12]), predict
        inputs = (batch.noisy, batch.sigma, batch.text)
    else:
        (model, plain), code = (make_tiny_unet() for _ in range(2)), load_family("sdxl").predict
        width = FIRST_WIDTH + SECOND_WIDTH
        text = {"prompt_embeds": torch.randn(77, width), "pooled": torch.randn(POOLED_WIDTH), "time_ids": torch.ones(6)}
        inputs = ([torch.randn(4, 8, 8)], torch.tensor([500.0]), [text])
        for each in (model, plain):
            each.requires_grad_(False).conv_in.requires_grad_(True)
    recorder = record(model)
    with torch.no_grad():
        for _ in range(3):
            code(model, *inputs, 1.0, ShapeRuntime("off"))
    assert not recorder.recordings
    for _ in range(3):
        entries, wanted = (code(each, *inputs, 1.0, ShapeRuntime("off"))[0] for each in (model, plain))
        torch.testing.assert_close(entries, wanted)
    assert len(recorder.recordings) == 1, recorder.failed


def test_gradients_are_summed_and_are_not_a_recordings_own(card: Card) -> None:
    """The next replay overwrites what the last one made."""
    layer = nn.Linear(2, 1, bias=False)
    recorder = record(layer)
    for _ in range(4):
        recorder(layer, torch.ones(1, 2)).sum().backward()
    recorder.made[0].zero_()
    assert layer.weight.grad.tolist() == [[4.0, 4.0]] and recorder.recordings


def test_the_log_tells_what_is_recorded(card: Card, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "backend.compile.cuda_graphs.recording")
    model = model_on("cpu")
    record(model)
    losses(model, turns("cpu"))
    messages = [r.getMessage() for r in caplog.records if r.name == "backend.compile.cuda_graphs.recording"]
    assert messages == [f"recorded CUDA graphs of shape {n}" for n in (1, 2)]


def test_a_pass_with_flex_attentions_mask_can_be_recorded() -> None:
    """A replay makes the mask again from the bounds of its batch."""
    masks = [span_mask(joint_spans([text], [200], 64, 200), torch.device("cpu")) for text in (3, 50)]
    leaves, forms = zip(*(tree_flatten(((mask,), {})) for mask in masks), strict=True)
    assert _key(leaves[0], forms[0]) == _key(leaves[1], forms[1]) is not None
    ((again,), _) = tree_unflatten(leaves[1], forms[0])
    assert torch.equal(again.block_mask.to_dense(), masks[1].block_mask.to_dense())
    assert not torch.equal(masks[0].block_mask.kv_num_blocks, masks[0].block_mask.full_kv_num_blocks)
    assert tree_map(lambda leaf: None, masks[0]).block_mask is None
