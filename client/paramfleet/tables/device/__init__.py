"""Rows on a device: tables of a closed set of ids, stepped where they are."""
