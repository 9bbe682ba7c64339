"""Tables, their shards, and the threads that own them."""
