"""The network: messages, HTTP/2, calls, TLS, and who may ask what."""
