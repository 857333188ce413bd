"""Backends: importing this package registers every kind of ours. Plug-ins are loaded when kinds are first asked for."""

from rollouts.backends import azure_openai, dual, llama_cpp, openai_compatible, scripted
from rollouts.backends.base import kind_named, kinds, make, parse_config

__all__ = [
    "azure_openai",
    "dual",
    "kind_named",
    "kinds",
    "llama_cpp",
    "make",
    "openai_compatible",
    "parse_config",
    "scripted",
]
