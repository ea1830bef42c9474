"""`python -m bytewright`: the same as the command `bytewright`."""

import sys

from bytewright.cli.main import main

sys.exit(main())
