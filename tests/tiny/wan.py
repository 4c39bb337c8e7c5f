"""A random tiny Wan in the layout of its published diffusers folder, made locally in about a second.

Real classes, real file names, a tokenizer trained from nothing: what loads this loads a published folder too.
Dimensions are small, structure is Wan's (six-part modulation, norms over all heads, a causal VAE of four levels).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.bench.rehearsal.tokenizers import t5_tokenizer
from tests.tiny.anima import _tiny

TEXT_WIDTH, HEADS, HEAD_DIM, LATENT_CHANNELS, VISION_WIDTH = 16, 2, 16, 4, 24
I2V = {"in_channels": 2 * LATENT_CHANNELS + 4, "image_dim": VISION_WIDTH, "added_kv_proj_dim": HEADS * HEAD_DIM}
"""What the config of a denoiser that starts from a picture has of its own."""


def make_tiny_denoiser(layers: int = 3, seed: int = 0, **changes: Any):
    """The fixture's transformer alone, random, fp32: WanTransformer3DModel of width 32."""
    return _tiny(lambda: denoiser(layers, **changes), seed)


def make_tiny_wan(path: Path, seed: int = 0) -> Path:
    """Write the model to the folder `path` (made if missing) and return it."""
    _tiny(lambda: _write(Path(path)), seed)
    return Path(path)


def make_tiny_wan_i2v(path: Path, seed: int = 0) -> Path:
    """The same of a model that starts from a picture."""
    _tiny(lambda: _write(Path(path), start=True), seed)
    return Path(path)


def denoiser(layers: int = 3, latent: int = LATENT_CHANNELS, **changes: Any):
    """WanTransformer3DModel; `changes` of its config."""
    from diffusers import WanTransformer3DModel

    config = {
        "in_channels": latent,
        "out_channels": latent,
        "num_attention_heads": HEADS,
        "attention_head_dim": HEAD_DIM,
        "num_layers": layers,
        "ffn_dim": 48,
        "freq_dim": 32,
        "text_dim": TEXT_WIDTH,
    }
    return WanTransformer3DModel(**(config | changes))


def umt5(vocabulary: int, width: int = TEXT_WIDTH):
    """umT5's encoder: 2 layers, each with its own bias of positions."""
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=vocabulary,
        d_model=width,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )
    return UMT5EncoderModel(config)


def autoencoder(latent: int = LATENT_CHANNELS):
    """The VAE of Wan 2.1 with 8 channels at its first level."""
    from diffusers import AutoencoderKLWan

    draw = [0.1 * n - 0.2 for n in range(latent)]
    spread = [1.0 + 0.1 * n for n in range(latent)]
    figures = {} if latent == 16 else {"latents_mean": draw, "latents_std": spread}
    return AutoencoderKLWan(base_dim=8, z_dim=latent, **figures)


def large_autoencoder(latent: int = LATENT_CHANNELS):
    """The VAE of Wan 2.2 5B with 8 channels at its first level: patches of 2x2 px, 16 px a cell."""
    from diffusers import AutoencoderKLWan

    draw = [0.1 * n - 0.2 for n in range(latent)]
    spread = [1.0 + 0.1 * n for n in range(latent)]
    return AutoencoderKLWan(
        base_dim=8,
        decoder_base_dim=8,
        z_dim=latent,
        latents_mean=draw,
        latents_std=spread,
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_spatial=16,
    )


def vision(width: int = VISION_WIDTH):
    """The eyes of CLIP: 2 layers, 4 patches and the class token."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
        hidden_act="gelu",
    )
    return CLIPVisionModel(config)


def processor():
    """What cuts pictures for these eyes."""
    from transformers import CLIPImageProcessorPil

    return CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})


def make_tiny_wan22(path: Path, seed: int = 0) -> Path:
    """The same of Wan 2.2 14B, with its two experts."""
    _tiny(lambda: _write(Path(path), experts=True), seed)
    return Path(path)


def make_tiny_wan22_i2v(path: Path, seed: int = 0) -> Path:
    """The same of Wan 2.2 14B that starts from a picture, of which it reads no tokens."""
    _tiny(lambda: _write(Path(path), start=True, experts=True), seed)
    return Path(path)


def make_tiny_wan22_5b(path: Path, seed: int = 0) -> Path:
    """The same of Wan 2.2 5B, whose VAE has larger cells."""
    _tiny(lambda: _write(Path(path), small=True), seed)
    return Path(path)


def _write(path: Path, start: bool = False, small: bool = False, experts: bool = False) -> None:
    from diffusers import UniPCMultistepScheduler, WanImageToVideoPipeline, WanPipeline
    from transformers import T5TokenizerFast

    path.mkdir(parents=True, exist_ok=True)
    words = t5_tokenizer(path / "tokenizer")
    parts: dict[str, Any] = {
        "tokenizer": T5TokenizerFast.from_pretrained(path / "tokenizer"),
        "text_encoder": umt5(words),
        "vae": large_autoencoder() if small else autoencoder(),
        "scheduler": UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
        "transformer": denoiser(**(I2V if start else {})),
    }
    if small:
        parts["expand_timesteps"] = True
    if experts:
        own = {"in_channels": I2V["in_channels"]} if start else {}
        parts |= {"transformer": denoiser(**own), "transformer_2": denoiser(**own)}
        parts["boundary_ratio"] = 0.9 if start else 0.875
    elif start:
        parts |= {"image_encoder": vision(), "image_processor": processor()}
    (WanImageToVideoPipeline if start else WanPipeline)(**parts).save_pretrained(path)


def published(state: Mapping[str, Any], root: str = "") -> dict[str, Any]:
    """A Wan transformer by its makers' names; shares nothing with `backend.families.wan.layout`."""
    attention = {"to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "o", "add_k_proj": "k_img", "add_v_proj": "v_img"}
    attention |= {"norm_added_k": "norm_k_img", "norm_q": "norm_q", "norm_k": "norm_k"}
    whole = {
        "condition_embedder.text_embedder.linear_1": "text_embedding.0",
        "condition_embedder.text_embedder.linear_2": "text_embedding.2",
        "condition_embedder.time_embedder.linear_1": "time_embedding.0",
        "condition_embedder.time_embedder.linear_2": "time_embedding.2",
        "condition_embedder.time_proj": "time_projection.1",
        "condition_embedder.image_embedder.norm1": "img_emb.proj.0",
        "condition_embedder.image_embedder.ff.net.0.proj": "img_emb.proj.1",
        "condition_embedder.image_embedder.ff.net.2": "img_emb.proj.3",
        "condition_embedder.image_embedder.norm2": "img_emb.proj.4",
        "patch_embedding": "patch_embedding",
        "proj_out": "head.head",
    }
    tensors = {}
    for name, value in state.items():
        if name.endswith("scale_shift_table"):
            path = name.removesuffix("scale_shift_table")
            new = f"{path}modulation" if path else "head.modulation"
        else:
            path, _, leaf = name.rpartition(".")
            if path in whole:
                new = f"{whole[path]}.{leaf}"
            else:
                _, number, module, *rest = path.split(".")
                inner = ".".join(rest)
                if module in ("attn1", "attn2"):
                    end = f"{'self' if module == 'attn1' else 'cross'}_attn.{attention[inner]}"
                elif module == "ffn":
                    end = {"net.0.proj": "ffn.0", "net.2": "ffn.2"}[inner]
                else:
                    end = {"norm2": "norm3"}[module]
                new = f"blocks.{number}.{end}.{leaf}"
        tensors[root + new] = value
    return tensors


def umt5_native(state: Mapping[str, Any]) -> dict[str, Any]:
    """umT5's encoder by the names of Wan's own code."""
    layers = {"SelfAttention.relative_attention_bias": "pos_embedding.embedding", "DenseReluDense.wi_0": "ffn.gate.0"}
    layers |= {"DenseReluDense.wi_1": "ffn.fc1", "DenseReluDense.wo": "ffn.fc2"}
    layers |= {f"SelfAttention.{letter}": f"attn.{letter}" for letter in "qkvo"}
    tensors = {}
    for name, value in state.items():
        if name == "encoder.embed_tokens.weight":
            continue
        path = name.removesuffix(".weight")
        if path in ("shared", "encoder.final_layer_norm"):
            new = "token_embedding" if path == "shared" else "norm"
        else:
            _, _, number, _, at, *rest = path.split(".")
            inner = ".".join(rest)
            new = f"blocks.{number}.{f'norm{int(at) + 1}' if inner == 'layer_norm' else layers[inner]}"
        tensors[f"{new}.weight"] = value
    return tensors
