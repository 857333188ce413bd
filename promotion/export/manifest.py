"""What goes beside an exported adapter: which bytes it was made from, and how it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from promotion.export.peft_to_gguf import FORMAT_VERSION


def export_manifest(
    *,
    name: str,
    base_name: str,
    base_sha256: str,
    adapter_config_sha256: str,
    adapter_weights_sha256: str,
    gguf_sha256: str,
    size_bytes: int,
    outtype: str,
    verification: Mapping[str, Any],
) -> dict[str, Any]:
    """A JSON-safe document. The base is named by digest, because a same-shaped wrong one loads silently."""
    return {
        "name": name,
        "format": "gguf",
        "kind": "lora_adapter",
        "format_version": FORMAT_VERSION,
        "outtype": outtype,
        "sha256": gguf_sha256,
        "size_bytes": size_bytes,
        "base": {"name": base_name, "sha256": base_sha256},
        "source": {
            "adapter_config.json": adapter_config_sha256,
            "adapter_model.safetensors": adapter_weights_sha256,
        },
        "verification": dict(verification),
    }
