"""Sizes as people write them: GB is 10⁹ bytes and GiB 2³⁰, always written out.

The two readings of "80 GB" differ by 7 %, and the largest batch that fits differs with them.
"""

from __future__ import annotations

import math
import re

from bytewright.errors import UsageError

UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
}
PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q")


def parse_bytes(text: str) -> float:
    """Read a size with its unit.

    >>> parse_bytes("80GB"), parse_bytes("1.5 GiB")
    (80000000000.0, 1610612736.0)
    >>> parse_bytes("80")
    Traceback (most recent call last):
    bytewright.errors.UsageError: '80' is no size; write a number and a unit, as in 80GB (10⁹) or 80GiB (2³⁰)
    """
    matched = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([A-Za-z]+)\s*", text)
    units = {name.lower(): factor for name, factor in UNITS.items()}
    if matched:
        number, unit = matched.groups()
        try:
            size = float(number) * units[unit.lower()]
        except (ValueError, KeyError):
            size = math.nan
        if 0 < size < math.inf:
            return size
    raise UsageError(f"{text!r} is no size; write a number and a unit, as in 80GB (10⁹) or 80GiB (2³⁰)")


def word_bytes(num_bytes: float) -> str:
    """Write a size in both readings.

    >>> word_bytes(34_032_921_600), word_bytes(999_999), word_bytes(1000)
    ('34.03 GB (31.70 GiB)', '1.00 MB (976.56 KiB)', '1000 B')
    """
    if abs(num_bytes) < 1024:
        return f"{num_bytes:.0f} B"
    decimal, binary = _scale(num_bytes, 1000, ".2f"), _scale(num_bytes, 1024, ".2f")
    return f"{decimal[0]:.2f} {PREFIXES[decimal[1]]}B ({binary[0]:.2f} {_binary_prefix(binary[1])}B)"


def word_count(number: float, unit: str = "") -> str:
    """Write a number with four digits and the prefix of its size.

    >>> word_count(4_513_336_524_800, "FLOP"), word_count(2_127_057_600), word_count(999_960), word_count(12)
    ('4.513 TFLOP', '2.127 G', '1 M', '12')
    """
    value, power = _scale(number, 1000, ".4g")
    words = f"{value:.4g}" if abs(value) < 1000 else f"{value:.4e}"
    return f"{words} {PREFIXES[power]}{unit}".strip()


def _scale(number: float, base: int, digits: str) -> tuple[float, int]:
    """Give a number in the largest unit that it fills, once it is rounded as it will be written."""
    power = 0
    while abs(float(f"{number:{digits}}")) >= base and power < len(PREFIXES) - 1:
        number, power = number / base, power + 1
    return number, power


def _binary_prefix(power: int) -> str:
    return "" if power == 0 else f"{PREFIXES[power].upper()}i"
