"""A job that is followed: its streams in a ledger, and those who serve and ask."""
