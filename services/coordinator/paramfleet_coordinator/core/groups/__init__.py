"""Which process hosts, follows and gets which group."""
