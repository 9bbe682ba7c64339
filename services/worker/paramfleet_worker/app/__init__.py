"""The launcher and the script runner: core and processes put together."""
