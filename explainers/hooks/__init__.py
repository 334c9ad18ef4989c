"""The only package that registers hooks: sessions, call sites, parameters, gradient taps."""
