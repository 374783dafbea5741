"""Compute kernel configurations shared by the ops: arithmetic is a choice, so it is made in one place."""

from typing import Any


def precise(ttnn: Any, device: Any) -> Any:
    """HiFi4 with float32 accumulation: nothing of a bfloat16 operand is dropped."""
    return _config(ttnn, device, ttnn.MathFidelity.HiFi4)


def block_float(ttnn: Any, device: Any) -> Any:
    """HiFi2 with float32 accumulation: all the bits that a bfloat8_b or bfloat4_b weight has, at twice HiFi4's rate."""
    return _config(ttnn, device, ttnn.MathFidelity.HiFi2)


def for_weight(ttnn: Any, device: Any, weight: Any) -> Any:
    """The cheapest configuration that loses nothing of this weight's dtype."""
    return (block_float if weight.dtype in (ttnn.bfloat8_b, ttnn.bfloat4_b) else precise)(ttnn, device)


def _config(ttnn: Any, device: Any, fidelity: Any) -> Any:
    return ttnn.init_device_compute_kernel_config(
        device.arch(), math_fidelity=fidelity, math_approx_mode=False, fp32_dest_acc_en=True, packer_l1_acc=True
    )
