"""The operations of the data plane, and who may ask for them."""
