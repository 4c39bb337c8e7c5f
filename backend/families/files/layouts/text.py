"""Maps names of encoders in single files: CLIP's text in Hugging Face's and in open_clip's names, its eyes, T5, umT5.

Names of open_clip: mlfoundations/open_clip ``src/open_clip/transformer.py``; of umT5 in Wan's own files:
Wan-Video/Wan2.1 ``wan/modules/t5.py``.
"""

from __future__ import annotations

from backend.families.files.layouts.rules import Layout, Rule

_LEAF = r"(?P<leaf>weight|bias)"
_CLIP_BODY = r"(?P<rest>(?:embeddings|encoder|final_layer_norm)\.(?:.+\.)?(?:weight|bias))"
_POSITIONS = r"(?:text_model\.)?embeddings\.position_ids"

# clip_l.safetensors, and the first encoder of SD 1.5 and SDXL checkpoints
HF_CLIP = Layout(
    name="hf_clip",
    title="a CLIP text encoder",
    markers=("text_model.embeddings.token_embedding.weight", "text_model.final_layer_norm.weight"),
    absent=("vision_model.embeddings.patch_embedding.weight", "text_model.encoder.layers.12.layer_norm1.weight"),
    prefixes=(
        "",
        "conditioner.embedders.0.transformer.",
        "cond_stage_model.transformer.",
        "text_encoders.clip_l.transformer.",
    ),
    # The pooled vector of FLUX and the states that SD reads come before the projection.
    ignored=(_POSITIONS, "logit_scale", r"text_projection\.weight"),
    rules=(Rule(rf"text_model\.{_CLIP_BODY}", ("text_model.{rest}",)),),
)

# Some merges of SD 1.5 left the inner prefix out.
HF_CLIP_BARE = Layout(
    name="hf_clip_bare",
    title="a CLIP text encoder",
    markers=("embeddings.token_embedding.weight", "final_layer_norm.weight"),
    absent=("encoder.layers.12.layer_norm1.weight",),
    prefixes=("cond_stage_model.transformer.", "conditioner.embedders.0.transformer.", ""),
    ignored=(_POSITIONS, "logit_scale", r"text_projection\.weight"),
    rules=(Rule(_CLIP_BODY, ("text_model.{rest}",)),),
)

# clip_g.safetensors: the larger CLIP, with its projection
HF_CLIP_G = Layout(
    name="hf_clip_g",
    title="the larger CLIP text encoder (bigG)",
    markers=("text_model.embeddings.token_embedding.weight", "text_projection.weight"),
    absent=("vision_model.embeddings.patch_embedding.weight",),
    prefixes=("", "text_encoders.clip_g.transformer."),
    ignored=(_POSITIONS, "logit_scale"),
    rules=(
        Rule(rf"text_model\.{_CLIP_BODY}", ("text_model.{rest}",)),
        Rule(r"text_projection\.weight", ("text_projection.weight",)),
    ),
)

_RESBLOCK, _LAYER = r"transformer\.resblocks\.(?P<n>\d+)", "text_model.encoder.layers.{n}"

# the second encoder of SDXL checkpoints
OPEN_CLIP = Layout(
    name="open_clip",
    title="the larger CLIP text encoder (bigG) in open_clip's layout",
    markers=("token_embedding.weight", "transformer.resblocks.0.attn.in_proj_weight", "text_projection"),
    prefixes=("conditioner.embedders.1.model.", "text_encoders.clip_g.transformer.", ""),
    # the last is ComfyUI's, where it has saved a checkpoint
    ignored=("logit_scale", "attn_mask", rf"transformer\.{_POSITIONS}"),
    rules=(
        Rule("positional_embedding", ("text_model.embeddings.position_embedding.weight",)),
        Rule(r"token_embedding\.weight", ("text_model.embeddings.token_embedding.weight",)),
        Rule(rf"ln_final\.{_LEAF}", ("text_model.final_layer_norm.{leaf}",)),
        Rule("text_projection", ("text_projection.weight",), turn="transpose"),
        Rule(
            rf"{_RESBLOCK}\.attn\.in_proj_{_LEAF}",
            tuple(f"{_LAYER}.self_attn.{name}_proj.{{leaf}}" for name in "qkv"),
        ),
        Rule(rf"{_RESBLOCK}\.attn\.out_proj\.{_LEAF}", (f"{_LAYER}.self_attn.out_proj.{{leaf}}",)),
        Rule(rf"{_RESBLOCK}\.ln_(?P<which>[12])\.{_LEAF}", (f"{_LAYER}.layer_norm{{which}}.{{leaf}}",)),
        Rule(rf"{_RESBLOCK}\.mlp\.c_fc\.{_LEAF}", (f"{_LAYER}.mlp.fc1.{{leaf}}",)),
        Rule(rf"{_RESBLOCK}\.mlp\.c_proj\.{_LEAF}", (f"{_LAYER}.mlp.fc2.{{leaf}}",)),
    ),
)

# t5xxl_fp16.safetensors and its 8-bit forms
T5 = Layout(
    name="t5",
    title="a T5 text encoder",
    markers=("encoder.block.0.layer.0.SelfAttention.q.weight", "encoder.final_layer_norm.weight", "shared.weight"),
    # the multilingual umT5 has a bias in every block
    absent=("encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight",),
    prefixes=("", "text_encoders.t5xxl.transformer."),
    ignored=(r"decoder\..*", r"lm_head\.weight", "spiece_model", r"encoder\.embed_tokens\.weight"),
    rules=(
        Rule(r"shared\.weight", ("shared.weight",)),
        Rule(r"encoder\.(?P<rest>(?:block|final_layer_norm)\..*weight)", ("encoder.{rest}",)),
    ),
)

# umt5_xxl_fp16.safetensors and its 8-bit forms, as ComfyUI publishes them
UMT5 = Layout(
    name="umt5",
    title="a umT5 text encoder",
    markers=(
        "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight",
        "encoder.final_layer_norm.weight",
        "shared.weight",
    ),
    prefixes=("", "text_encoders.umt5xxl.transformer."),
    ignored=T5.ignored,
    rules=T5.rules,
)

_UMT5_BLOCK, _UMT5_LAYER = r"blocks\.(?P<n>\d+)", "encoder.block.{n}.layer"
_UMT5_FORWARD = {r"gate\.0": "wi_0", "fc1": "wi_1", "fc2": "wo"}

# models_t5_umt5-xxl-enc-bf16 by its makers' names, turned into safetensors
UMT5_NATIVE = Layout(
    name="umt5_native",
    title="a umT5 text encoder in Wan's own layout",
    markers=("token_embedding.weight", "blocks.0.attn.q.weight", "blocks.0.pos_embedding.embedding.weight"),
    rules=(
        Rule(r"token_embedding\.weight", ("shared.weight",)),
        Rule(r"norm\.weight", ("encoder.final_layer_norm.weight",)),
        Rule(rf"{_UMT5_BLOCK}\.norm1\.weight", (f"{_UMT5_LAYER}.0.layer_norm.weight",)),
        Rule(rf"{_UMT5_BLOCK}\.norm2\.weight", (f"{_UMT5_LAYER}.1.layer_norm.weight",)),
        Rule(rf"{_UMT5_BLOCK}\.attn\.(?P<leaf>[qkvo])\.weight", (f"{_UMT5_LAYER}.0.SelfAttention.{{leaf}}.weight",)),
        Rule(
            rf"{_UMT5_BLOCK}\.pos_embedding\.embedding\.weight",
            (f"{_UMT5_LAYER}.0.SelfAttention.relative_attention_bias.weight",),
        ),
        *(
            Rule(rf"{_UMT5_BLOCK}\.ffn\.{theirs}\.weight", (f"{_UMT5_LAYER}.1.DenseReluDense.{ours}.weight",))
            for theirs, ours in _UMT5_FORWARD.items()
        ),
    ),
)

# clip_vision_h.safetensors
HF_CLIP_VISION = Layout(
    name="hf_clip_vision",
    title="a CLIP vision encoder",
    markers=("vision_model.embeddings.patch_embedding.weight", "vision_model.post_layernorm.weight"),
    absent=("text_model.embeddings.token_embedding.weight",),
    ignored=(r"vision_model\.embeddings\.position_ids", "logit_scale", r"visual_projection\.weight"),
    rules=(Rule(r"(?P<name>vision_model\..+)", ("{name}",)),),
)
