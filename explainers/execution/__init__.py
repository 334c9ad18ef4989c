"""A model run in parts and in chunks, on accelerators and off them."""
