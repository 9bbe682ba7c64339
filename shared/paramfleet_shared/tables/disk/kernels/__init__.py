"""Compiled code of the tier on disk. Only tables that have such a tier compile it.

``python -m paramfleet_shared.tables.disk.warming`` does so ahead.
"""
