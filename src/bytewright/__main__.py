"""`python -m bytewright`: the same as the command `bytewright`."""

import sys

from bytewright.cli.main import main

sys.argv[0] = "bytewright"  # not the path of this file: runs record the command that started them
sys.exit(main())
