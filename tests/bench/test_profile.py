"""Kernels and operators find their group by their names and shapes."""

from __future__ import annotations

import pytest

from backend.bench import profile


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", "attention"),
        ("triton_tem_fused_flex_attention_backward_3", "attention"),
        ("kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "products"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer and gradients"),
        ("triton_per_fused_add_mul_native_layer_norm_7", "norm, modulation, rotary, activation"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_backward_add_3", "norm, modulation, rotary, activation"),
        ("triton_tem_fused_mm_4", "products"),
        ("_scaled_kernel", "products"),
        ("_described_kernel", "products"),
        ("_rows_kernel", "other kernels"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("void at::native::vectorized_elementwise_kernel<4, ...>", "other kernels"),
        ("aten::addmm", "products"),
        ("aten::copy_", "copies"),
        ("aten::_fused_adamw_", "optimizer and gradients"),
    ],
)
def test_a_kernel_is_of_one_group(kernel: str, group: str) -> None:
    assert profile.group_of(kernel) == group


def test_a_lora_product_is_known_by_its_rank() -> None:
    assert profile.is_lora_product([[4608, 3072], [3072, 32]], 32)
    assert profile.is_lora_product([[96, 4608], [4608, 3072]], 32), "three joined ones, the gradient of their weights"
    assert not profile.is_lora_product([[512, 3072], [3072, 9216]], 32)
    assert not profile.is_lora_product([[1, 3072], [3072, 18432]], 32)


def test_what_kernels_leave_of_a_step_is_idle() -> None:
    parts = profile.with_idle({"attention": 20.0, "base products": 50.0}, 84.0)
    assert parts["idle"] == 14.0 and sum(parts.values()) == 84.0 and parts["copies"] == 0.0
    assert profile.read(profile.written(parts)) == parts
