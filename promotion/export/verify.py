"""Does llama.cpp, with the exported file, compute what PEFT's adapter means? Measured, not assumed.

Two questions, each asked with the adapter at scale 0 and at scale 1 (the difference is its *effect*) at 12
positions:

* whole: the real base with the real file. It must load, not abort, and have about the right effect. On a
  quantised base that is all it can show, because llama.cpp rounds inputs to 8 bits (log-probabilities move
  by 1).
* cuts: the same file's bytes on float32 cuts of the base (`promotion.export.probe`), compared with the numpy
  reference that reads PEFT's safetensors. This is the sharp one.

Measured with r1 and r3 on SmolLM2-135M Q4_1 (xllamacpp 2026.10.11549): the effect's relative error,
|llama.cpp - reference| / |reference|. For the right file the worst value is given; for a wrong one the
lowest, over the cuts that hold its fault.

    file                          cuts        whole
    right, f32                    0.00004     0.30
    right, f16                    0.00023     0.27
    right, q8_0                   0.00525     0.31
    layers 10 and 11 swapped      0.098       0.32
    no q/k permutation            0.230       0.40
    alpha x 0.5                   0.465       0.56
    layers 28 and 29 swapped      0.518       0.37
    alpha x 2                     0.784       0.92

So the limits on cuts lie 5 times (q8_0) to 25 times (f32) above the right file and 3 to 98 times under the
mildest wrong one, while the whole model alone could not tell them apart. On tiny random models the right
file's worst is 0.000002, 0.001 and 0.016. The likeliest token is reported but judges nothing: on the cuts it
agrees in 11 or 12 of 12 positions for the wrong files too. It takes 7 s with one thread.

With SmolLM2's weights widened to other types the right f16 file is off on the whole model by 0.0001 (F32),
0.008 (F16) and 0.056 (BF16).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from promotion.export.base_header import BaseHeader, header_of
from promotion.export.gguf_file import GgufFile, read_gguf
from promotion.export.llama_run import ChildFailed, ChildGaveUp, LlamaJob, run_llama
from promotion.export.peft_adapter import NO_EFFECT, PeftAdapter, check_against, check_values, load_adapter
from promotion.export.probe import cuts, token_rows, write_adapter_cut, write_base_cut
from promotion.export.reference import Cut, reference_log_probs
from rollouts.errors import InvalidInput, StorageFailed

Floats = npt.NDArray[np.float32]
Status = Literal["verified", "failed", "not_verified"]

PROMPT_TOKENS = 16
POSITIONS = tuple(range(4, PROMPT_TOKENS))
WHOLE_CANDIDATES = 2048  # how many of the likeliest tokens the whole model is asked for

# Highest relative error of the effect on a float32 cut, by the exported file's lora_a type.
CUT_LIMITS = {"F32": 0.001, "F16": 0.005, "Q8_0": 0.03}
# The same on the whole model, by the type of the base's weights. Only on a float32 base is it sharp.
WHOLE_LIMITS = {"F16": 0.05, "BF16": 0.2}
WHOLE_LIMIT_QUANTISED = 0.6
# Root-mean-square noise of a comparison, in log-probability, that has nothing to do with the adapter.
CUT_NOISE = 5e-5
WHOLE_NOISE = {"F32": 5e-5, "F16": 0.01, "BF16": 0.1}
WHOLE_NOISE_QUANTISED = 0.2
# A smaller root-mean-square effect could not be told from a wrong one.
LEAST_EFFECT = 2e-3


@dataclass(frozen=True)
class Comparison:
    """One measured comparison, in natural log-probability: root mean square unless named max."""

    part: str
    base_error_max: float
    adapter_error_max: float
    effect: float
    effect_error: float
    limit: float
    top1_agreements: int
    positions: int

    @property
    def relative_error(self) -> float:
        return self.effect_error / self.effect if self.effect else 0.0

    @property
    def passed(self) -> bool:
        return bool(self.effect_error <= self.limit)

    def to_json(self) -> dict[str, Any]:
        """JSON-safe; floats as decimal strings of six digits."""
        values = asdict(self) | {"relative_error": self.relative_error}
        return {name: f"{value:.6f}" if isinstance(value, float) else value for name, value in values.items()}


@dataclass(frozen=True)
class VerificationReport:
    """`verified`: measured and right; `failed`: measured and wrong; `not_verified`: could not be measured."""

    status: Status
    reason: str
    llama_cpp: str | None = None
    comparisons: tuple[Comparison, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """JSON-safe; floats as decimal strings."""
        return {
            "status": self.status,
            "reason": self.reason,
            "llama_cpp": self.llama_cpp,
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class _Subject:
    base_path: Path
    adapter_gguf: Path
    base: GgufFile
    header: BaseHeader
    adapter: PeftAdapter
    outtype: str
    deadline: float
    threads: int
    folder: Path


def verify(
    base_path: Path,
    adapter_gguf: Path,
    config_path: Path,
    weights_path: Path,
    *,
    timeout_s: float,
    threads: int = 1,
    work_folder: Path | None = None,
) -> VerificationReport:
    """Measures the exported file in llama.cpp against the reference; needs up to 300 MB in `work_folder`.

    `timeout_s` bounds all of llama.cpp's runs together. Raises `InvalidInput` if the adapter's source or
    the base is itself unusable, `StorageFailed` if the cuts cannot be written.
    """
    base = read_gguf(base_path)
    header = header_of(base)
    adapter = load_adapter(config_path, weights_path)
    check_against(adapter, header)
    warnings = tuple(check_values(adapter))
    if importlib.util.find_spec("xllamacpp") is None:
        sentence = "llama.cpp is not installed, so nothing was measured; run `pip install 'assay[local]'`."
        return VerificationReport("not_verified", sentence, warnings=warnings)
    outtype = _outtype(adapter_gguf)
    if outtype is None:
        return VerificationReport(
            "failed", "The exported file is no readable GGUF adapter.", warnings=warnings
        )
    version = importlib.metadata.version("xllamacpp")
    done: list[Comparison] = []
    try:
        with tempfile.TemporaryDirectory(prefix="assay-verify-", dir=work_folder) as name:
            deadline, folder = time.monotonic() + timeout_s, Path(name)
            subject = _Subject(
                base_path, adapter_gguf, base, header, adapter, outtype, deadline, threads, folder
            )
            status, reason = _judge(subject, done, nothing_to_see=NO_EFFECT in warnings)
    except OSError as error:
        raise StorageFailed(f"the verification's working files failed: {error.strerror}.") from error
    return VerificationReport(status, reason, f"xllamacpp {version}", tuple(done), warnings)


def _outtype(adapter_gguf: Path) -> str | None:
    """The type of the exported lora_a, which decides how exact the file can be; None if it is no adapter."""
    try:
        tensors = read_gguf(adapter_gguf).tensors
    except InvalidInput:
        return None
    types = {info.ggml_type for name, info in tensors.items() if name.endswith(".lora_a")}
    candidates = (GGMLQuantizationType.Q8_0, GGMLQuantizationType.F16, GGMLQuantizationType.F32)
    return next((candidate.name for candidate in candidates if candidate in types), None)


def _judge(subject: _Subject, done: list[Comparison], *, nothing_to_see: bool) -> tuple[Status, str]:
    try:
        _measure(subject, done)
    except ChildFailed as error:
        return "failed", str(error)
    except ChildGaveUp as error:
        return "not_verified", str(error)
    return _verdict(done, nothing_to_see=nothing_to_see)


def _measure(subject: _Subject, done: list[Comparison]) -> None:
    """Appends each comparison as soon as it is made, so that a failed run still shows what was measured."""
    try:
        done.append(_compare_whole(subject))
        rows = token_rows(subject.header.vocab_size)
        for layers in cuts(subject.base, subject.adapter):
            done.append(_compare_cut(subject, Cut(layers, rows)))
    except InvalidInput as error:
        raise ChildGaveUp(f"There is no reference for this base: {error.message}") from error


def _compare_whole(subject: _Subject) -> Comparison:
    vocab_size, weight_type = subject.header.vocab_size, subject.header.weight_type
    tokens = _prompt(_plain_tokens(subject.base, vocab_size))
    job = LlamaJob(
        base=subject.base_path,
        adapter=subject.adapter_gguf,
        tokens=tokens,
        positions=POSITIONS,
        n_vocab=vocab_size,
        n_probs=min(vocab_size, WHOLE_CANDIDATES),
        printable_token=_printable_token(subject.base),
        threads=subject.threads,
    )
    measured = run_llama(job, folder=subject.folder, timeout_s=subject.deadline - time.monotonic())
    reference = reference_log_probs(subject.base_path, subject.adapter, tokens, POSITIONS)
    sharp = weight_type == "F32"
    relative = CUT_LIMITS[subject.outtype] if sharp else WHOLE_LIMITS.get(weight_type, WHOLE_LIMIT_QUANTISED)
    noise = WHOLE_NOISE.get(weight_type, WHOLE_NOISE_QUANTISED)
    return _compare("whole", measured, reference, relative=relative, noise=noise)


def _compare_cut(subject: _Subject, cut: Cut) -> Comparison:
    base_cut, adapter_cut = subject.folder / "base.gguf", subject.folder / "adapter.gguf"
    write_base_cut(subject.base, subject.header, cut.layers, cut.rows, base_cut)
    write_adapter_cut(subject.adapter_gguf, cut.layers, cut.rows, adapter_cut)
    tokens = _prompt(np.arange(len(cut.rows)))
    job = LlamaJob(
        base=base_cut,
        adapter=adapter_cut,
        tokens=tokens,
        positions=POSITIONS,
        n_vocab=len(cut.rows),
        n_probs=len(cut.rows),
        printable_token=1,
        threads=subject.threads,
    )
    measured = run_llama(job, folder=subject.folder, timeout_s=subject.deadline - time.monotonic())
    reference = reference_log_probs(base_cut, subject.adapter, tokens, POSITIONS, cut=cut)
    part = f"layers {cut.layers.start}-{cut.layers.stop - 1}"
    return _compare(part, measured, reference, relative=CUT_LIMITS[subject.outtype], noise=CUT_NOISE)


def _compare(part: str, measured: Floats, reference: Floats, *, relative: float, noise: float) -> Comparison:
    """Both are (2, positions, vocabulary) log-probabilities, without and with the adapter; NaN: unknown."""
    seen = np.isfinite(measured).all(axis=0)
    effect = (reference[1] - reference[0])[seen].astype(np.float64)
    error = (measured[1] - measured[0])[seen].astype(np.float64) - effect
    difference = np.abs(measured - reference)
    size = _rms(effect)
    likeliest = np.argmax(np.nan_to_num(measured[1], nan=-np.inf), axis=-1)
    return Comparison(
        part=part,
        base_error_max=float(difference[0][seen].max(initial=0.0)),
        adapter_error_max=float(difference[1][seen].max(initial=0.0)),
        effect=size,
        # Nothing seen is nothing right.
        effect_error=_rms(error) if seen.any() else float("1e9"),
        limit=relative * size + noise,
        top1_agreements=int((likeliest == np.argmax(reference[1], axis=-1)).sum()),
        positions=reference.shape[1],
    )


def _rms(values: npt.NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def _verdict(done: Sequence[Comparison], *, nothing_to_see: bool) -> tuple[Status, str]:
    for comparison in done:
        if not comparison.passed:
            return "failed", (
                f"With the exported file llama.cpp computes something else than PEFT's adapter "
                f"({comparison.part}): the effect is off by {comparison.effect_error:.6f}, and at most "
                f"{comparison.limit:.6f} is allowed."
            )
    if nothing_to_see:
        return "verified", "llama.cpp loads the file, and it changes nothing, as the adapter."
    for comparison in done[1:]:
        if comparison.effect < LEAST_EFFECT:
            return "not_verified", (
                f"The adapter's effect ({comparison.part}) is {comparison.effect:.6f}, too small to tell "
                "right from wrong."
            )
    return "verified", f"llama.cpp's effect of the file is PEFT's, in {len(done)} comparisons."


def _prompt(allowed: npt.NDArray[np.int64]) -> list[int]:
    """Fixed token ids, spread over the vocabulary."""
    return [int(allowed[(7919 * index + 1000) % len(allowed)]) for index in range(PROMPT_TOKENS)]


def _plain_tokens(base: GgufFile, vocab_size: int) -> npt.NDArray[np.int64]:
    """Ids of ordinary tokens: control tokens have odd embeddings."""
    types = base.integers("tokenizer.ggml.token_type")
    plain = np.flatnonzero(types[:vocab_size] == 1) if types is not None else np.array([], dtype=np.int64)
    return plain if len(plain) else np.arange(vocab_size)


def _printable_token(base: GgufFile) -> int:
    """A token whose text is whole on its own; llama.cpp hides the probabilities of half a UTF-8 character."""
    texts = base.strings("tokenizer.ggml.tokens")
    plain = set(_plain_tokens(base, len(texts)).tolist())
    for index, text in enumerate(texts):
        if index in plain and text.isascii() and text.isalnum():
            return index
    raise InvalidInput("tokenizer.ggml.tokens", "no token of the base is a plain word.")
