"""All tests: a package, because folders named ``tests`` that others install would hide it."""
