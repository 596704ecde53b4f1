// Nothing: lockstep_test_headers compiles headers for the other tests, and needs a file.
