"""SURGE: the dual path, its scale, and how they attach to a model."""

from surge.compensation.attach import compensate_, strip_
from surge.compensation.handle import Compensation
from surge.compensation.options import PathOptions

__all__ = ["Compensation", "PathOptions", "compensate_", "strip_"]
