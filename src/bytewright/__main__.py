"""`python -m bytewright` is the same as the command `bytewright`."""

import sys

from bytewright.cli.main import start

sys.exit(start())
