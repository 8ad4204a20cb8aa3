"""CRC-32C in numpy, many messages of equal length side by side; for where there is no C.

A CRC is kept as its register: `~register` is the value that others call the CRC. Appending zero
bytes multiplies a register by a power of x, so that a long message is cut into lanes that run
side by side and are joined at the end.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78
_LANES = 256  # a power of two
_LANE_MIN_BYTES = 64

U32 = NDArray[np.uint32]


def _step(registers: U32) -> U32:
    return (registers >> np.uint32(1)) ^ (registers & np.uint32(1)) * np.uint32(POLYNOMIAL)


@lru_cache(maxsize=1)
def _pair_table() -> U32:
    """The register after two bytes, by their value as a little-endian pair; 256 KiB."""
    registers = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(16):
        registers = _step(registers)
    return registers


def _multiply(a: int, registers: U32) -> U32:
    """Product with `a` modulo the polynomial, both reflected."""
    product = np.zeros_like(registers)
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= registers
        registers = _step(registers)
    return product


@lru_cache(maxsize=64)
def _zeros_tables(zero_bytes: int) -> U32:
    """Shape (4, 256): what each byte of a register becomes when `zero_bytes` zeros follow."""
    power, square = np.array([1 << 31], np.uint32), np.array([1 << 23], np.uint32)
    while zero_bytes:
        if zero_bytes & 1:
            power = _multiply(int(power[0]), square)
        square = _multiply(int(square[0]), square)
        zero_bytes >>= 1
    values = (
        np.arange(256, dtype=np.uint32)[None, :] << (8 * np.arange(4, dtype=np.uint32))[:, None]
    )
    return _multiply(int(power[0]), values)


def _append_zeros(registers: U32, zero_bytes: int) -> U32:
    tables = _zeros_tables(zero_bytes)
    out: U32 = tables[0][registers & 255]
    for byte in range(1, 4):
        out = out ^ tables[byte][(registers >> (8 * byte)) & 255]
    return out


def _run(registers: U32, rows: NDArray[np.uint8]) -> U32:
    """Registers after each row; rows of an even number of bytes are fastest."""
    table = _pair_table()
    even = rows.shape[1] & ~1
    columns = np.ascontiguousarray(rows[:, :even]).view("<u2").T
    for pair in np.ascontiguousarray(columns):
        registers = table.take(registers.astype(np.uint16) ^ pair) ^ (registers >> np.uint32(16))
    if rows.shape[1] & 1:
        low = (registers ^ rows[:, -1]) & 255
        registers = table[low << 8] ^ (registers >> 8)
    return registers


def crc32c_rows(seeds: U32, rows: NDArray[np.uint8]) -> U32:
    """CRC-32C of each row of `rows` (n, bytes), going on from `seeds` (n)."""
    registers = ~seeds
    count, size = rows.shape
    lane = size // _LANES & ~1
    if lane >= _LANE_MIN_BYTES:
        lanes = np.zeros((count, _LANES), np.uint32)
        lanes[:, 0] = registers
        body = rows[:, : lane * _LANES].reshape(count * _LANES, lane)
        lanes = _run(lanes.ravel(), body).reshape(count, _LANES)
        joined = lane
        while lanes.shape[1] > 1:
            lanes = _append_zeros(lanes[:, 0::2], joined) ^ lanes[:, 1::2]
            joined *= 2
        registers = lanes[:, 0]
        rows = rows[:, lane * _LANES :]
    return ~_run(registers, rows)


def crc32c(data: bytes, seed: int = 0) -> int:
    """CRC-32C of `data`, going on from `seed`."""
    row = np.frombuffer(data, np.uint8)[None, :]
    return int(crc32c_rows(np.array([seed], np.uint32), row)[0])
