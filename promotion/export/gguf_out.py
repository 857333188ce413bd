"""Streaming a GGUF to disk, one tensor in memory at a time, with every failed write noticed."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter

# gguf-py logs the full path of each file it writes, at INFO.
logging.getLogger("gguf.gguf_writer").setLevel(logging.WARNING)


def write_streamed(writer: GGUFWriter, path: Path, arrays: Iterable[npt.NDArray[Any]]) -> None:
    """Writes header, keys and declared tensors, then the arrays in the declared order. Raises `OSError`.

    gguf-py itself writes tensors by `ndarray.tofile`, which can lose the end of a small array on a full disk
    without an error (seen here: a 33 KB file cut at 8 KB).
    """
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        file = writer.fout[0]
        file.write(bytes(-file.tell() % writer.data_alignment))
        for array in arrays:
            file.write(np.ascontiguousarray(array).data)
            file.write(bytes(-array.nbytes % writer.data_alignment))
    finally:
        writer.close()
