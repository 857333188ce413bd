"""The child process of `llama_cpp`: loads, prints its address as one JSON line, serves until standard input ends.

A separate process, because llama.cpp aborts the whole process on some bad inputs.
"""

from __future__ import annotations

import json
import os
import sys

from rollouts.processes import die_with_parent


def main() -> None:
    options = json.loads(sys.stdin.readline())
    die_with_parent(options["parent"])
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options["base"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [options["key"]]
    params.n_ctx = options["context"]
    params.n_parallel = options["parallel"]
    params.cpuparams.n_threads = options["threads"]
    params.cpuparams_batch.n_threads = options["threads"]
    params.use_jinja = True
    params.ui = False
    if options["adapter"]:
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(options["adapter"], 1.0)]
    server = xllamacpp.Server(params)
    # llama.cpp writes to the C level's standard output too; the address goes out on a line of its own
    os.write(1, json.dumps({"url": server.listening_address}).encode() + b"\n")
    while sys.stdin.read(4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
