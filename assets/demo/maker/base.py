"""Trains the demo's transformer and text encoders together, by flow matching on the autoencoder's latents."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch
from diffusers import FluxTransformer2DModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5TokenizerFast

from .pace import Average, Pace, autocast
from .pictures import Bucket
from .speed import Fast

log = logging.getLogger(__name__)
LEARNING_RATE = 1.2e-3
WEIGHT_DECAY = 0.01
TEXT_LENGTH = 64
CLIP_LENGTH = 77
CAPTION_DROPOUT = 0.1
AVERAGE_EVERY = 8
BLOCK = 64  # steps whose pictures, captions and sigmas are drawn at once: each small operation costs a launch
SIGMAS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Width:
    """The sizes of the trained models."""

    heads: int = 6
    head_dim: int = 32
    rope: tuple[int, int, int] = (4, 14, 14)
    double: int = 3
    single: int = 4
    text: int = 128
    text_layers: int = 2


@dataclass
class Models:
    transformer: FluxTransformer2DModel
    t5: T5EncoderModel
    clip: CLIPTextModel

    def modules(self) -> list[nn.Module]:
        return [self.transformer, self.t5, self.clip]


@dataclass
class Encoded:
    """A bucket ready for training: packed latents (N, tokens, 64), image ids (tokens, 3), ids of the captions
    (N, captions, length) for T5 and CLIP."""

    latents: torch.Tensor
    image_ids: torch.Tensor
    t5_ids: torch.Tensor
    clip_ids: torch.Tensor


def make_models(width: Width, t5_tokens: T5TokenizerFast, clip_tokens: CLIPTokenizer) -> Models:
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=width.double, num_single_layers=width.single,
        attention_head_dim=width.head_dim, num_attention_heads=width.heads, joint_attention_dim=width.text,
        pooled_projection_dim=width.text, guidance_embeds=False, axes_dims_rope=width.rope,
    )  # fmt: skip
    t5 = T5EncoderModel(T5Config(
        vocab_size=len(t5_tokens), d_model=width.text, d_kv=32, d_ff=2 * width.text, num_layers=width.text_layers,
        num_heads=width.text // 32, feed_forward_proj="gated-gelu", dropout_rate=0.0, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0, tie_word_embeddings=False,
    ))  # fmt: skip
    clip = CLIPTextModel(CLIPTextConfig(
        vocab_size=len(clip_tokens), hidden_size=width.text, intermediate_size=4 * width.text,
        projection_dim=width.text, num_hidden_layers=width.text_layers, num_attention_heads=width.text // 32,
        max_position_embeddings=CLIP_LENGTH, bos_token_id=clip_tokens.bos_token_id,
        eos_token_id=clip_tokens.eos_token_id, pad_token_id=clip_tokens.pad_token_id,
    ))  # fmt: skip
    # eos 2 would select the oldest pooling rule, by the highest id.
    assert clip_tokens.eos_token_id != 2
    _initialise(transformer)
    nn.init.normal_(t5.get_input_embeddings().weight, std=0.5)
    return Models(transformer, t5, clip)


def _initialise(transformer: FluxTransformer2DModel) -> None:
    """Xavier linears, and zeros where a block's output is gated and at the end, so that every block starts as the
    identity (adaLN-zero; Peebles and Xie 2022, arXiv:2212.09748)."""
    for name, module in transformer.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        gate = name.endswith(("norm.linear", "norm1.linear", "norm1_context.linear", "norm_out.linear"))
        if gate or name == "proj_out":
            nn.init.zeros_(module.weight)
        else:
            nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


def pack(latents: torch.Tensor) -> torch.Tensor:
    """(N, C, h, w) to (N, h/2 * w/2, 4C), in FluxPipeline's order."""
    n, c, h, w = latents.shape
    return latents.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(n, h * w // 4, c * 4)


def image_ids(h: int, w: int, device: torch.device) -> torch.Tensor:
    """FluxPipeline's positions (0, row, column) for h x w latent pixels, (tokens, 3) float32."""
    ids = torch.zeros(h // 2, w // 2, 3, device=device)
    ids[..., 1] += torch.arange(h // 2, device=device)[:, None]
    ids[..., 2] += torch.arange(w // 2, device=device)[None]
    return ids.reshape(-1, 3)


def tokenise(texts: list[str], t5: T5TokenizerFast, clip: CLIPTokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids as FluxPipeline makes them: (N, 64) for T5, (N, 77) for CLIP."""
    made = []
    for tokenizer, length in ((t5, TEXT_LENGTH), (clip, CLIP_LENGTH)):
        ids = tokenizer(texts, padding="max_length", max_length=length, truncation=True).input_ids
        made.append(torch.tensor(ids, dtype=torch.int64))
    return made[0], made[1]


def tokenise_bucket(bucket: Bucket, t5: T5TokenizerFast, clip: CLIPTokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """`tokenise` for all captions of a bucket, (N, captions, length) each."""
    t5_ids, clip_ids = tokenise([c for texts in bucket.captions for c in texts], t5, clip)
    n = len(bucket.captions)
    return t5_ids.view(n, -1, TEXT_LENGTH), clip_ids.view(n, -1, CLIP_LENGTH)


def prepare(latents: torch.Tensor, shift: float, scale: float, ids: tuple[torch.Tensor, torch.Tensor]) -> Encoded:
    """Latents (N, 16, h, w) and `tokenise_bucket`'s ids of one bucket, ready for training."""
    device = latents.device
    normal = (latents - shift) * scale
    return Encoded(pack(normal), image_ids(*latents.shape[2:], device), ids[0].to(device), ids[1].to(device))


def velocity(models: Models, noisy: torch.Tensor, sigma: torch.Tensor, ids: torch.Tensor, t5_ids: torch.Tensor,
             clip_ids: torch.Tensor) -> torch.Tensor:  # fmt: skip
    """The predicted noise minus latents, (B, tokens, 64), from noisy latents at `sigma` (B,)."""
    hidden = models.t5(input_ids=t5_ids).last_hidden_state
    pooled = models.clip(input_ids=clip_ids).pooler_output
    text_ids = torch.zeros(hidden.shape[1], 3, device=noisy.device)
    return models.transformer(
        hidden_states=noisy, encoder_hidden_states=hidden, pooled_projections=pooled, timestep=sigma,
        img_ids=ids, txt_ids=text_ids, return_dict=False,
    )[0].float()  # fmt: skip


def flow_loss(models: Models, latents: torch.Tensor, noise: torch.Tensor, sigma: torch.Tensor, ids: torch.Tensor,
              t5_ids: torch.Tensor, clip_ids: torch.Tensor) -> torch.Tensor:  # fmt: skip
    """Mean squared error of the velocity; `latents` and `noise` (B, tokens, 64), `sigma` (B,)."""
    noisy = latents + sigma[:, None, None] * (noise - latents)
    predicted = velocity(models, noisy, sigma, ids, t5_ids, clip_ids)
    return (predicted - (noise - latents)).square().mean()


def draw_sigmas(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Seven tenths logit-normal, leaning high, where shapes are decided; the rest uniform."""
    normal = torch.sigmoid(0.4 + 1.1 * torch.randn(shape, device=device))
    uniform = torch.rand(shape, device=device)
    return torch.where(torch.rand(shape, device=device) < 0.7, normal, uniform).clamp(1e-3, 1.0)


def warm_base(models: Models, tokens: int, batch: int, device: torch.device, compiled: bool) -> Fast:
    """Move the models to the device and prepare the loss for `batch` pictures of `tokens` tokens."""
    for module in models.modules():
        module.to(device).train()
    fast = Fast(flow_loss, compiled)
    latents, sigma = torch.randn(batch, tokens, 64, device=device), torch.rand(batch, device=device)
    t5_ids = torch.ones(batch, TEXT_LENGTH, dtype=torch.int64, device=device)
    clip_ids = torch.ones(batch, CLIP_LENGTH, dtype=torch.int64, device=device)
    ids = image_ids(2, 2 * tokens, device)

    def step() -> None:
        with autocast(device):
            loss = fast(models, latents, torch.randn_like(latents), sigma, ids, t5_ids, clip_ids)
        loss.backward()
        for module in models.modules():
            module.zero_grad(set_to_none=True)

    fast.warm(step)
    return fast


class Draws:
    """Batches in random order, drawn BLOCK steps at a time."""

    def __init__(self, data: list[Encoded], empty: tuple[torch.Tensor, torch.Tensor], batch: int, seed: int) -> None:
        self.data, self.batch = data, batch
        self.rng = np.random.default_rng(seed)
        # All captions in one table a bucket, the empty caption last.
        self.texts = [tuple(torch.cat([ids.flatten(0, 1), none.to(ids)]) for ids, none in
                            zip((e.t5_ids, e.clip_ids), empty, strict=True)) for e in data]  # fmt: skip
        self.left = 0

    def _refill(self) -> None:
        device, shape = self.data[0].latents.device, (BLOCK, self.batch)
        count, captions = min(len(e.latents) for e in self.data), self.data[0].t5_ids.shape[1]
        self.index = torch.randint(count, shape, device=device)
        self.row = self.index * captions + torch.randint(captions, shape, device=device)
        self.row[torch.rand(shape, device=device) < CAPTION_DROPOUT] = -1
        self.sigma = draw_sigmas(shape, device)
        self.left = BLOCK

    def next(self) -> tuple[torch.Tensor, ...]:
        """Latents, noise, sigma, image ids, T5 and CLIP ids for flow_loss."""
        if not self.left:
            self._refill()
        self.left -= 1
        k = int(self.rng.integers(len(self.data)))
        latents = self.data[k].latents[self.index[self.left]]
        t5_ids, clip_ids = (table[self.row[self.left]] for table in self.texts[k])
        return latents, torch.randn_like(latents), self.sigma[self.left], self.data[k].image_ids, t5_ids, clip_ids


def train_base(models: Models, fast: Fast, draws: Draws, pace: Pace, device: torch.device) -> dict[str, float]:
    """Train in place and leave the averaged weights in the models. Returns steps, pictures seen, and the mean loss of
    some of the last steps."""
    average = Average(models.modules(), 0.9995**AVERAGE_EVERY)
    optimizer = torch.optim.AdamW(average.params, lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=WEIGHT_DECAY,
                                  fused=device.type == "cuda")  # fmt: skip
    total, kept, mean = torch.zeros((), device=device), 0, 0.0
    while pace.progress() < 1:
        for group in optimizer.param_groups:
            group["lr"] = pace.learning_rate(LEARNING_RATE, 500)
        with autocast(device):
            loss = fast(models, *draws.next())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(average.params, 1.0)
        optimizer.step()
        # Added up at once: the next step writes over this loss.
        total += loss.detach()
        kept += 1
        pace.step += 1
        if pace.step % AVERAGE_EVERY == 0:
            average.update()
        if pace.step % 500 == 0:
            mean, kept = total.item() / kept, 0
            total.zero_()
            log.info("base step %d (%.0f %%): loss %.4f", pace.step, 100 * min(1.0, pace.progress()), mean)
    if kept >= 200 or not mean:
        mean = total.item() / max(kept, 1)
    average.update()
    average.copy_to_modules()
    for module in models.modules():
        module.eval().requires_grad_(False)
    return {"steps": pace.step, "pictures_seen": pace.step * draws.batch, "loss": round(mean, 5)}


@torch.no_grad()
def validation_losses(models: Models, data: list[Encoded], device: torch.device, seed: int = 7) -> dict[str, float]:
    """Mean squared error of the velocity on held-out pictures, with fixed noise, for each of SIGMAS."""
    generator = torch.Generator().manual_seed(seed)
    sums = dict.fromkeys(SIGMAS, 0.0)
    count = 0
    for encoded in data:
        latents = encoded.latents.float()
        count += len(latents)
        for sigma in SIGMAS:
            noise = torch.randn(latents.shape, generator=generator).to(device)
            sigmas = torch.full((len(latents),), sigma, device=device)
            with autocast(device):
                predicted = velocity(models, latents + sigma * (noise - latents), sigmas, encoded.image_ids,
                                     encoded.t5_ids[:, 0], encoded.clip_ids[:, 0])  # fmt: skip
            sums[sigma] += (predicted - (noise - latents)).square().mean(dim=(1, 2)).sum().item()
    return {str(sigma): round(total / count, 5) for sigma, total in sums.items()}
