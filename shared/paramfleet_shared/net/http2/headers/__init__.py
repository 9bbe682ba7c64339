"""HTTP/2 headers: what a request and an answer begin with, and their HPACK."""
