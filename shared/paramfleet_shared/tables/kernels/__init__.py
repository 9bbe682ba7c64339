"""Compiled code of the table engine: plain functions over arrays, checked by their callers.

Kernels take what their callers have checked and never raise. All of them work for any
row width: one compilation serves every table.
"""
