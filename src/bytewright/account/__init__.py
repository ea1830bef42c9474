"""What a model costs, predicted from its shape: parameters and floating-point operations.

Formulas stand in the docstrings of `parameters` and `flops` and are written to be read; tests hold them equal
to what a built model has and does. `peak` knows what a device could do at best.
"""

from bytewright.account.flops import FlopCount, count_flops, flops_utilisation, training_flops_per_token
from bytewright.account.parameters import ParameterCount, count_parameters
from bytewright.account.peak import peak_flops

__all__ = [
    "FlopCount",
    "ParameterCount",
    "count_flops",
    "count_parameters",
    "flops_utilisation",
    "peak_flops",
    "training_flops_per_token",
]
