"""Runs llama.cpp once, in a process of its own, and writes the log-probabilities it computes.

It is started by path in isolated mode (`python -I llama_child.py`), reads one JSON job from standard input
and imports nothing of the project: an assertion in llama.cpp aborts the whole process, and that must only
ever end this one.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import signal
import sys
from typing import Any

import numpy as np
import xllamacpp

PR_SET_PDEATHSIG = 1
REQUEST_TIMEOUT_S = 600


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel to kill this process when its parent ends; leaves at once if it already did."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("the parent process is gone")


def start_server(job: dict[str, Any], key: str) -> xllamacpp.Server:
    """llama.cpp's own HTTP server on a free loopback port, computing as exactly as it can."""
    params = xllamacpp.CommonParams()
    params.model.path = job["base"]
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(job["adapter"], 1.0)]
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [key]
    params.n_ctx, params.n_parallel = job["n_ctx"], 1
    params.n_gpu_layers, params.fit_params, params.warmup = 0, False, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["threads"]
    # 16-bit caches and flash attention round where the reference does not.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_ram_mib = 0
    params.ui, params.offline = False, True
    return xllamacpp.Server(params)


class Client:
    """One kept-alive connection to the server."""

    def __init__(self, address: str, key: str) -> None:
        host = address.removeprefix("http://").rstrip("/")
        self.connection = http.client.HTTPConnection(host, timeout=REQUEST_TIMEOUT_S)
        self.headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def log_probs(
        self, job: dict[str, Any], prompt: list[int], *, scale: float, first: bool
    ) -> np.ndarray[Any, Any]:
        """Log-probabilities of the token after the prompt, float32 (n_vocab,); NaN for those not listed."""
        body = {
            "prompt": prompt,
            "n_predict": 1,
            "n_probs": job["n_probs"],
            "temperature": 0.0,
            # Each prompt of a run continues the one before; the first must not continue the other run's.
            "cache_prompt": not first,
            "post_sampling_probs": False,
            # A chosen token that is half a UTF-8 character would hide its probabilities.
            "logit_bias": [[job["printable_token"], 1000.0]],
            "lora": [{"id": 0, "scale": scale}],
        }
        self.connection.request("POST", "/completion", json.dumps(body), self.headers)
        response = self.connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"llama.cpp answered {response.status}: {data[:300]!r}")
        entries = json.loads(data)["completion_probabilities"][0]["top_logprobs"]
        result = np.full(job["n_vocab"], np.nan, dtype=np.float32)
        for entry in entries:
            result[entry["id"]] = entry["logprob"]
        return result


def main() -> None:
    job = json.load(sys.stdin)
    die_with_parent(job["parent_pid"])
    key = os.urandom(16).hex()
    server = start_server(job, key)
    client = Client(server.listening_address, key)
    tokens = job["tokens"]
    rows = [
        [
            client.log_probs(job, tokens[: position + 1], scale=scale, first=index == 0)
            for index, position in enumerate(job["positions"])
        ]
        for scale in (0.0, 1.0)
    ]
    np.save(job["result"], np.array(rows, dtype=np.float32))
    sys.stderr.flush()
    os._exit(0)  # the server's threads would take a second to wind down


if __name__ == "__main__":
    main()
