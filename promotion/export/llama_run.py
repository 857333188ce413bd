"""Starts `llama_child.py`, waits for it, and turns what it left behind into an array or a sentence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

CHILD = Path(__file__).with_name("llama_child.py")
CONTEXT_TOKENS = 64
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
_TELLING = re.compile(
    r"GGML_ASSERT|error|fail|mismatch|incorrect|does not exist|expect|unsupported|Killed", re.IGNORECASE
)
_LINE_START = re.compile(r"^[\d. ]*[IWE] +|^(srv|slot|common_\w*|llama_\w*) +")


class ChildFailed(Exception):
    """llama.cpp refused the file, or aborted on it. The text is a sentence for people."""


class ChildGaveUp(Exception):
    """The run ended without saying anything about the file: out of time, or killed from outside."""


@dataclass(frozen=True)
class LlamaJob:
    """One run: the base with the adapter at scale 0 and 1. A position p has seen tokens[: p + 1]."""

    base: Path
    adapter: Path
    tokens: list[int]
    positions: tuple[int, ...]
    n_vocab: int
    n_probs: int
    printable_token: int
    threads: int


def run_llama(job: LlamaJob, *, folder: Path, timeout_s: float) -> npt.NDArray[np.float32]:
    """Natural log-probabilities (2, positions, n_vocab), without and with the adapter.

    NaN stands beyond the `n_probs` likeliest. Raises `ChildFailed` or `ChildGaveUp`.
    """
    result = folder / "log_probs.npy"
    result.unlink(missing_ok=True)
    order = _order(job, result)
    # Few variables: the child needs no secret, and idle OpenMP threads must not spin beside a busy worker.
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    environment |= {"OMP_NUM_THREADS": str(job.threads), "OMP_WAIT_POLICY": "passive"}
    with (folder / "stderr.txt").open("w+b") as stderr:
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(CHILD)],
                input=order,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=environment,
                timeout=max(0.1, timeout_s),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ChildGaveUp(
                "llama.cpp did not finish in time, so the file was not judged. Try again."
            ) from error
        stderr.seek(0)
        said = stderr.read()[-100_000:].decode("utf-8", errors="replace")
    if done.returncode == 0 and result.is_file():
        loaded: npt.NDArray[np.float32] = np.load(result, allow_pickle=False)
        return loaded
    raise _failure(done.returncode, said, job)


def _order(job: LlamaJob, result: Path) -> bytes:
    """What the child reads from its standard input."""
    order = asdict(job) | {
        "base": str(job.base.resolve()),
        "adapter": str(job.adapter.resolve()),
        "result": str(result.resolve()),
        "n_ctx": CONTEXT_TOKENS,
        "parent_pid": os.getpid(),
    }
    return json.dumps(order).encode()


def _failure(returncode: int, said: str, job: LlamaJob) -> ChildFailed | ChildGaveUp:
    if returncode in (-9, -15):
        return ChildGaveUp("llama.cpp was killed from outside (out of memory?), so the file was not judged.")
    for path in (job.base, job.adapter):
        said = said.replace(str(path.resolve()), path.name)
    lines = [_LINE_START.sub("", line.strip()) for line in said.splitlines() if _TELLING.search(line)]
    how = f"aborted with signal {-returncode}" if returncode < 0 else "could not use the file"
    return ChildFailed(f"llama.cpp {how}: {' | '.join(lines[:3])[:600] or 'it gave no reason'}")
