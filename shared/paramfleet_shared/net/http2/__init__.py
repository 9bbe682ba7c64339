"""HTTP/2 without sockets: bytes in, events out, calls in, buffers out (RFC 9113).

From the bytes up: ``frames`` says how they look, ``reader`` cuts them, ``heads`` and
``hpack_memo`` read header blocks, ``control`` acts on frames without a message,
``sender`` and ``stream`` hold bodies, ``connection`` puts it together, ``client`` and
``server`` are its two sides. Received DATA lands in the body's own buffer, sent DATA
leaves as views of the caller's arrays. No module here knows an event loop or a clock;
time is an argument.
"""
