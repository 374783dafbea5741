"""A strict stand-in, on torch, for the part of ttnn that ops call: what would rot on a card fails here first."""

from ttkern.targets.emulated.device import Counters, Device
from ttkern.targets.emulated.namespace import Namespace
from ttkern.targets.emulated.types import TtnnError

__all__ = ["Counters", "Device", "Namespace", "TtnnError"]
