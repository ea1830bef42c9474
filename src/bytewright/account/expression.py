"""Sums of products of named sizes: a formula that can be printed and evaluated, so that the two agree.

    >>> T, d, L = symbols("T d L")
    >>> memory = 4 * L * T * (2 * d + T)
    >>> print(memory)
    8·L·T·d + 4·L·T²
    >>> memory.evaluate({"L": 48, "T": 1024, "d": 1600})
    830472192

Only what the accountant needs: addition and multiplication of polynomials with whole coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

Powers = tuple[tuple[str, int], ...]
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Expression:
    """A polynomial: a whole coefficient for each product of powers of symbols."""

    terms: Mapping[Powers, int]

    def __add__(self, other: Expression | int) -> Expression:
        terms = dict(self.terms)
        for powers, coefficient in _as_expression(other).terms.items():
            terms[powers] = terms.get(powers, 0) + coefficient
        return Expression({powers: value for powers, value in terms.items() if value})

    def __mul__(self, other: Expression | int) -> Expression:
        product = Expression({})
        for left, a in self.terms.items():
            for right, b in _as_expression(other).terms.items():
                powers = dict(left)
                for name, power in right:
                    powers[name] = powers.get(name, 0) + power
                product += Expression({tuple(sorted(powers.items())): a * b})
        return product

    __radd__, __rmul__ = __add__, __mul__

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Put numbers in the place of the symbols."""
        return sum(
            coefficient * math.prod(values[name] ** power for name, power in powers)
            for powers, coefficient in self.terms.items()
        )

    def __str__(self) -> str:
        """Write it down, the products in the order in which they were added."""
        return " + ".join(_word_term(powers, value) for powers, value in self.terms.items()) or "0"


def symbols(names: str) -> tuple[Expression, ...]:
    """Make one expression of each name."""
    return tuple(Expression({((name, 1),): 1}) for name in names.split())


def _as_expression(value: Expression | int) -> Expression:
    return value if isinstance(value, Expression) else Expression({(): value} if value else {})


def _word_term(powers: Powers, coefficient: int) -> str:
    factors = [name + (str(power).translate(SUPERSCRIPTS) if power > 1 else "") for name, power in powers]
    return "·".join([str(coefficient), *factors] if coefficient != 1 or not factors else factors)
