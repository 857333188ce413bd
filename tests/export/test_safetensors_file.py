"""Rules of reading safetensors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from promotion.export.safetensors_file import read_safetensors
from rollouts.errors import InvalidInput
from tests.export.tiny import write_raw_safetensors, write_safetensors

VALUES = np.array([[1.0, -2.5, 3e-5], [0.0, 65504.0, -0.125]], dtype=np.float32)


def entry(start: int = 0, stop: int = 4, shape: object = (1,), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_each_type_is_widened_exactly(tmp_path, dtype):
    wanted = {
        "F32": VALUES,
        "F16": VALUES.astype(np.float16).astype(np.float32),
        "BF16": (VALUES.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32),
    }[dtype]

    read = read_safetensors(write_safetensors(tmp_path / "x", {"a": VALUES, "b": VALUES}, dtype=dtype))

    assert read.read("b").dtype == np.float32
    assert np.array_equal(read.read("b"), wanted)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry(), "b": entry(0, 4)}, b"0123", "overlaps"),
        ({"a": entry(0, 4), "b": entry(8, 12)}, b"0" * 12, "gap"),
        ({"a": entry(4, 8)}, b"0" * 8, "gap"),
        ({"a": entry()}, b"01", "truncated"),
        ({"a": entry()}, b"012345", "after its last tensor"),
        ({"a": entry(0, 8)}, b"0" * 8, "needs 4"),
        ({"a": entry(shape=(1 << 50,))}, b"0123", "malformed"),
        ({"a": entry(shape=(-1,))}, b"0123", "malformed"),
        ({"a": entry(dtype="I8")}, b"0123", "F32, F16 or BF16"),
        ({"a": entry(dtype=["F32"])}, b"0123", "F32, F16 or BF16"),
        ({"a": 1}, b"0123", "dtype, shape"),
        ("[1, 2]", b"", "JSON object"),
        ('{"a": NaN}', b"", "not JSON"),
        ("{" * 50000, b"", "JSON"),
    ],
)
def test_wrong_headers_are_refused(tmp_path, header, data, message):
    with pytest.raises(InvalidInput, match=message):
        read_safetensors(write_raw_safetensors(tmp_path / "x", header, data))


def test_a_doubled_name_is_refused(tmp_path):
    one = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'

    with pytest.raises(InvalidInput, match="twice"):
        read_safetensors(write_raw_safetensors(tmp_path / "x", f'{{"a":{one},"a":{one}}}', b"0123"))


@pytest.mark.parametrize("magic", [b"\x80\x02}q\x00", b"PK\x03\x04\x00\x00\x08\x08"])
def test_pickle_weights_are_refused_whatever_their_name(tmp_path, magic):
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(magic + b"\x00" * 100)

    with pytest.raises(InvalidInput, match="pickle"):
        read_safetensors(path)


def test_an_absurd_header_length_is_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")

    with pytest.raises(InvalidInput, match="truncated"):
        read_safetensors(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.integers(0, 260), st.integers(0, 255)), min_size=1, max_size=6))
def test_damaged_files_are_read_or_refused_but_never_crash(tmp_path, edits):
    path = write_safetensors(tmp_path / "x", {"a": VALUES, "b": VALUES})
    data = bytearray(path.read_bytes())
    for at, value in edits:
        data[at % len(data)] = value
    path.write_bytes(data)

    try:
        file = read_safetensors(path)
        for name in file.tensors:
            file.read(name)
    except InvalidInput as error:
        assert error.message
