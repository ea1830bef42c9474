"""What a model costs, predicted from its shape: parameters and floating-point operations.

Formulas stand in the docstrings of the modules and are written to be read; tests hold them equal to what a
built model has and does.
"""

from bytewright.account.flops import FlopCount, count_flops, flops_utilisation, training_flops_per_token
from bytewright.account.parameters import ParameterCount, count_parameters

__all__ = [
    "FlopCount",
    "ParameterCount",
    "count_flops",
    "count_parameters",
    "flops_utilisation",
    "training_flops_per_token",
]
