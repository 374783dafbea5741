"""Settings for every test."""

import os

# Waiting threads that spin take the cores from the ones that work as soon as the machine is shared: 5 s become 6 min.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# Examples that run a model take as long as they take; the machine may be busy.
settings.register_profile("ttkern", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ttkern")
