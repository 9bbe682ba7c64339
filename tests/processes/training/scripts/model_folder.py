"""Trains or scores a model folder: what ``paramfleet train`` and a launched process run."""

from paramfleet.runner.__main__ import main

main(prog_name="paramfleet")
