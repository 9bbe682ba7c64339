"""HTTP/2 without sockets: bytes in, events out, calls in, buffers out (RFC 9113).

python-hyper's ``h2`` holds the protocol state. It never sees a payload:
received DATA lands in the body's own buffer, sent DATA leaves as views of the
caller's arrays. No module here knows an event loop or a clock; time is an argument.
"""
