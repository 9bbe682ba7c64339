"""Calls between processes: ``server.RpcServer`` answers, ``client.Channel`` asks."""
