"""Backends: importing this package registers every kind."""

from rollouts.backends import llama_cpp, openai_compatible
from rollouts.backends.base import kind_named, kinds, parse_config

__all__ = ["kind_named", "kinds", "llama_cpp", "openai_compatible", "parse_config"]
