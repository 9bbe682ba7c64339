"""A model whose rows are looked up at a server (``paramfleet serve``)."""
