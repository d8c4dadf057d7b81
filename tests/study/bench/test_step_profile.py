"""Kernels by kind."""

import json
from dataclasses import replace

import pytest
import torch

from surge.study.bench import step_profile


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("narrow_input_gradient", "own kernels"),
        ("_meet", "own kernels"),
        ("void at::native::multi_tensor_apply_kernel<FusedSgdMath>", "optimizer"),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32", "products"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "products"),
        ("triton_red_fused_native_batch_norm_backward_12", "sums"),
        ("triton_poi_fused_convolution_backward_3", "element by element"),
        ("triton_tem_fused_mm_4", "products"),
        ("triton_for_fused_7", "element by element"),
        ("void at::native::vectorized_elementwise_kernel<4>", "element by element"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816dgrad_optimized>", "products"),
        (
            "_ZN17cutlass__5x_cudnn6KernelI66cutlass_tensorop_bf16_s16816wgrad_bf16_elementwiseE",
            "products",
        ),
        ("void cudnn::cnn::nhwcAddPaddingKernel<__nv_bfloat16, float>(int)", "products"),
        ("void nhwcAddPaddingKernel<__nv_bfloat16>(int)", "products"),
        ("init_device_workspace(int*, int)", "products"),
        ("nvjet_hsh_192x192_64x3_1x2_h_bz_coopB_TNN", "products"),
        ("triton_red_fused__native_batch_norm_legit_functional_convolution_0", "sums"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<Adam>", "optimizer"),
        ("Memcpy DtoD", "copies"),
        ("something_else", "other"),
    ],
)
def test_kinds_by_name(name, kind):
    assert step_profile.kind_of(name) == kind


def test_gathered_is_per_step_and_longest_first():
    events = [("triton_poi_fused_a", 3.0), ("gemm", 10.0), ("triton_poi_fused_b", 1.0)] * 2
    assert step_profile.gathered(events, 2) == {
        "products": (1.0, 10.0),
        "element by element": (2.0, 4.0),
    }


def test_section_has_a_row_per_step(tmp_path):
    assert step_profile.section(tmp_path) == "Nothing is stored yet.\n"
    share = step_profile.Share("resnet20", "surge", "captured", "products", 40.0, 900.4)
    older = replace(share, microseconds=1.0)
    sums = replace(share, kind="sums", kernels=9.0, microseconds=80.0)
    lines = [json.dumps(one.as_dict()) + "\n" for one in (older, share, sums)]
    (tmp_path / "profile.jsonl").write_text("".join(lines))
    made = step_profile.section(tmp_path)
    assert "| resnet20 | surge | captured | - | 80 | - | - | 900 | - | - | 49 |" in made
    gone = replace(sums, kernels=0.0, microseconds=0.0)
    (tmp_path / "profile.jsonl").write_text("".join([*lines, json.dumps(gone.as_dict()) + "\n"]))
    made = step_profile.section(tmp_path)
    assert "| resnet20 | surge | captured | - | - | - | - | 900 | - | - | 40 |" in made


@pytest.mark.gpu
def test_profile_of_a_step_sees_its_product():
    a = torch.randn(512, 512, device="cuda")

    def step():
        torch.mm(a, a)
        torch.cuda.synchronize()

    step()
    found = step_profile.profile(step)
    kernels, microseconds = found["products"]
    assert kernels in (1.0, 2.0), "a product is one kernel, or one and the sum of its parts"
    assert microseconds > 0
    assert found["optimizer"] == (0.0, 0.0)
