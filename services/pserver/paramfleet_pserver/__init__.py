"""The parameter server: sharded tables with optimizer updates."""
