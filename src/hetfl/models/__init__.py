"""Models as functions of explicit parameters."""

from hetfl.models.base import Model, ModelOptions, Output
from hetfl.models.registry import build, check_name, check_options, input_spec

__all__ = ["Model", "ModelOptions", "Output", "build", "check_name", "check_options", "input_spec"]
