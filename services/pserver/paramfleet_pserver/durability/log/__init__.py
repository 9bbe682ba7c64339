"""The log of commands that a pserver keeps on its disk: appended in groups, read after a crash.

``recovery.open_log`` opens a folder, yields the commands that it holds, and hands over to a
``writer.LogWriter``, which continues behind them.
"""
