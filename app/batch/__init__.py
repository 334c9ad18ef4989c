"""Explanations of whole data sets: pictures in, shards of maps out."""
