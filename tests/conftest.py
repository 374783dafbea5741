"""Settings for every test."""

import os

# Waiting threads that spin take the cores from the ones that work as soon as the machine is shared: 5 s become 6 min.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# Examples that run a model take as long as they take; the machine may be busy.
settings.register_profile("ttkern", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ttkern")

# Read before a test opens a device, which settles the environment of its process.
TTSIM = os.environ.get("TT_METAL_SIMULATOR", "")
HAS_TTSIM = TTSIM.endswith(".so")


def pytest_report_header() -> list[str]:
    """One line for what is left out."""
    return [] if HAS_TTSIM else ["ttsim: its tests are left out, because TT_METAL_SIMULATOR names no libttsim.so"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the ttsim tests out where there is no ttsim."""
    left_out = [] if HAS_TTSIM else [item for item in items if item.get_closest_marker("ttsim")]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def ttsim() -> str:
    """Path of libttsim.so."""
    return TTSIM
