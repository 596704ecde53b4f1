"""What needs torch and transformers, in one process, for they take seconds to load.

python models_test.py LOCKSTEP
"""
import unittest

import support

import capture_test
import check_op_test
import import_parts_test
import import_refused_test
import import_test


def load_tests(loader, _tests, _pattern):
    """The cases of all files."""
    return unittest.TestSuite(map(loader.loadTestsFromModule,
                                  (capture_test, check_op_test, import_test,
                                   import_parts_test, import_refused_test)))


if __name__ == "__main__":
    support.main()
