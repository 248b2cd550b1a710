"""ansorlite: finds fast native programs for tensor computations by search."""
