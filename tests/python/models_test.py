"""What needs torch and transformers, in two processes, for they take seconds to load.

python models_test.py captured|imported LOCKSTEP
"""
import sys
import unittest

import support

import bare_test
import capture_test
import check_op_test
import import_parts_test
import import_refused_test
import import_test
import two_engines_test

PARTS = {"captured": (capture_test, check_op_test, import_refused_test),
         "imported": (import_test, import_parts_test, bare_test, two_engines_test)}


def load_tests(loader, _tests, _pattern):
    """The cases of the files of the part."""
    return unittest.TestSuite(map(loader.loadTestsFromModule, PARTS[PART]))


if __name__ == "__main__":
    PART = sys.argv.pop(1)
    support.main()
